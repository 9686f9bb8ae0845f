//! The console of a program under `#[pikake::main]`, by the option `console` and the variable
//! `PIKAKE_CONSOLE`.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pikake_traps::figures::measure_times;

use crate::crash::CrashReport;
use crate::place::{Setting, VARIABLE};
use crate::server::Console;

static CONSOLE: Mutex<Option<Console>> = Mutex::new(None);

/// Why there is no socket, until the program has its log.
static TROUBLE: Mutex<Option<String>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement leaves a value that is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work`, with a console if the program or the variable asks for one, and the variable does
/// not forbid it.
pub fn with_console<R>(is_asked: bool, work: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            end_console();
        }
    }

    // The first text of the metrics is to have the times from the begin of the program on.
    measure_times();
    let builder = match Setting::from_environment() {
        Setting::Off => None,
        Setting::Unset => is_asked.then(Console::builder),
        Setting::Folder => Some(Console::builder()),
        Setting::Path(path) => Some(Console::builder().path(path)),
    };
    if let Some(builder) = builder {
        let builder = if is_asked { builder.dump_on_signals() } else { builder };
        let (console, trouble) = builder.start_for_main();
        *lock(&CONSOLE) = console;
        *lock(&TROUBLE) = trouble.map(|error| error.to_string());
    }
    let _end = End;
    work()
}

/// Ends the console of [`with_console`]. For a program that exits the process before `with_console`
/// returns.
pub fn end_console() {
    let console = lock(&CONSOLE).take();
    drop(console);
}

/// The future of the main task, with a report of its crash if there is a console, and with a
/// warning after its first poll if there is no socket: the program sets its log in that poll.
pub async fn with_reports<F: Future>(future: F) -> F::Output {
    let _report = CrashReport::new();
    let mut future = pin!(future);
    let mut is_first = true;
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if is_first {
            is_first = false;
            if let Some(error) = lock(&TROUBLE).take() {
                tracing::warn!(
                    error,
                    "the console has no socket: nobody can look into this process ({VARIABLE}=0 turns \
                     the console off)"
                );
            }
        }
        polled
    })
    .await
}
