//! Members of different kinds, and the trace of their events.

use std::fmt::Display;

use pikake::sleep;
use pikake::task::Failure;
use pikake::time::{Ticks, elapsed_since, now};

use crate::support::{Log, ms};

/// A log whose events carry the time at which they happened, in milliseconds.
#[derive(Clone)]
pub(crate) struct Trace {
    log: Log,
    start: Ticks,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { log: Log::default(), start: now() }
    }

    pub(crate) fn add(&self, event: impl Display) {
        let time = elapsed_since(self.start).as_millis();
        self.log.add(format_args!("{time} {event}"));
    }

    pub(crate) fn take(&self) -> Vec<String> {
        self.log.take()
    }
}

/// Sleeps, and if interrupted cleans up by awaiting; writes down all of it.
pub(crate) async fn worker(
    name: &'static str,
    length: u64,
    cleanup: u64,
    trace: Trace,
) -> &'static str {
    match sleep(ms(length)).await {
        Ok(()) => trace.add(format_args!("{name} done")),
        Err(why) => {
            trace.add(format_args!("{name} told: {why}"));
            sleep(ms(cleanup)).await.expect("cleanup is left alone");
            trace.add(format_args!("{name} clean"));
        }
    }
    name
}

/// The name and error of each failure, without location and number.
pub(crate) fn told(failures: &[Failure]) -> Vec<String> {
    failures.iter().map(|failure| format!("{}: {}", failure.name(), failure.error())).collect()
}

/// Fails after a while.
pub(crate) async fn broken<T>(length: u64, text: &'static str) -> T {
    sleep(ms(length)).await.unwrap();
    panic!("{text}")
}
