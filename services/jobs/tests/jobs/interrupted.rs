//! Calls and workers, interrupted at every moment at which they wait: a call says so, nothing is
//! lost, nothing is left over, and whatever was interrupted can be done again.
//!
//! Each test is a case that runs again and again in virtual time, interrupted one moment later each
//! time. A moment is one of the whole world: a message may be on its way, and other tasks may be
//! anywhere. `tests/injection` of the workspace interrupts the waits of one task, where real
//! threads and sockets answer.

#[cfg(feature = "amqp")]
mod brokers;
#[cfg(feature = "amqp")]
mod control;
mod jobs;
mod schedules;

use std::cell::Cell;
use std::fmt::Display;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{AppError, BrokerError, JobError, PublishError, ScheduleError};
use pikake_sim::Sim;
use pikake_traps::{Interrupted, check_interrupt, current, sleep, spawn, timed};

/// Moments are so far apart: a wait for the server has several.
const MOMENT: Duration = Duration::from_micros(7);
/// Of these moments one is tried in each run of the tests, and all of them in a long one.
const ONE_IN: u32 = 3;
/// A step takes so long in a simulation, so moments this far apart meet each suspension.
const STEP: Duration = Duration::from_micros(1);
/// What is on its way has come by then, and what is being closed is closed.
const QUIET: Duration = Duration::from_secs(5);
/// More moments than anything here takes.
const MANY: u32 = 20_000;
/// The reason of a cancel.
const REASON: &str = "now";

/// The ways to interrupt a call.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Timeout,
    /// Of the task that makes the call.
    Cancel,
}

const BOTH: [Kind; 2] = [Kind::Timeout, Kind::Cancel];

/// The interruption of one run of a case.
#[derive(Clone)]
struct Interruption {
    kind: Kind,
    after: Duration,
    /// Whether the moment was one of those that the case is about.
    is_met: Rc<Cell<bool>>,
}

/// An error that may be an interruption.
trait Failure: Display {
    fn interruption(&self) -> Option<&Interrupted>;
}

impl Interruption {
    /// Makes a call, and interrupts it. Its error is the interruption.
    async fn call<T, E: Failure>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let result = match self.kind {
            Kind::Timeout => {
                timed(self.after, call).await.output.expect("it waits on nothing but traps")
            }
            Kind::Cancel => {
                let (caller, after) = (current(), self.after);
                let canceller = spawn(async move {
                    sleep(after).await.unwrap();
                    caller.request_cancel(REASON);
                });
                let result = call.await;
                canceller.abort();
                // The answer may have come first.
                drop(check_interrupt());
                result
            }
        };
        if let Err(error) = &result {
            let why = error.interruption();
            let is_ours = why.is_some_and(|why| match self.kind {
                Kind::Timeout => why.is_timeout(),
                Kind::Cancel => why.reason() == Some(REASON),
            });
            assert!(is_ours, "it is not told that it was interrupted, but {error}");
            self.is_met.set(true);
        }
        result
    }

    /// Makes a call, and interrupts it if it is the one to interrupt.
    async fn call_if<T, E: Failure>(
        &self,
        is_the_one: bool,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        if is_the_one { self.call(call).await } else { call.await }
    }
}

/// Whether a run of a case met its interruption.
#[track_caller]
fn is_met(kind: Kind, after: Duration, case: &impl AsyncFn(&Interruption)) -> bool {
    let interruption = Interruption { kind, after, is_met: Rc::default() };
    // A case goes on after the interruption of a call, to see that the call can be made again.
    let ran = Sim::new(0).cleanup_limit(None).run_here("test", case(&interruption));
    let ran = ran.unwrap_or_else(|failure| panic!("{kind:?} after {after:?}: {failure}"));
    ran.outcome.unwrap_or_else(|error| panic!("{kind:?} after {after:?}: {error}"));
    interruption.is_met.get()
}

/// Runs a case with an interruption at each of these moments, and counts those that were met.
#[track_caller]
fn at_moments(
    kind: Kind,
    moments: impl Iterator<Item = Duration>,
    case: impl AsyncFn(&Interruption),
) -> usize {
    moments.filter(|&after| is_met(kind, after, &case)).count()
}

/// Runs a case again and again, interrupted one moment later each time, until the moment is not met
/// any more. Counts those that were. Where a wait has several moments, and `PIKAKE_LONG` is not
/// set, only some of them are tried.
#[track_caller]
fn at_every_moment(kind: Kind, moment: Duration, case: impl AsyncFn(&Interruption)) -> u32 {
    let is_long = std::env::var_os("PIKAKE_LONG").is_some();
    let moment = if is_long || moment == STEP { moment } else { ONE_IN * moment };
    let number = (0..MANY).find(|&number| !is_met(kind, moment * number, &case));
    let number = number.expect("it comes to its end");
    println!("{kind:?}: interrupted at {number} moments");
    number
}

impl Failure for BrokerError {
    fn interruption(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}

impl Failure for PublishError {
    fn interruption(&self) -> Option<&Interrupted> {
        match &self.cause {
            PublishFailure::Broker(error) => error.interruption(),
            _ => None,
        }
    }
}

impl Failure for ScheduleError {
    fn interruption(&self) -> Option<&Interrupted> {
        match self {
            Self::Broker(error) => error.interruption(),
            _ => None,
        }
    }
}

impl Failure for AppError {
    fn interruption(&self) -> Option<&Interrupted> {
        match self {
            Self::Broker(error) => error.interruption(),
            _ => None,
        }
    }
}

impl Failure for JobError {
    fn interruption(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}
