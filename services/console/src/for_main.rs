//! The console and the recording of a program under `#[pikake::main]`, by the option `console` and
//! the variables `PIKAKE_CONSOLE` and `PIKAKE_RECORD`.

use std::future::{Future, poll_fn};
use std::mem::take;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pikake_traps::figures::measure_times;

use crate::crash::CrashReport;
use crate::place::{self, Setting};
use crate::record::{self, Settings};
use crate::server::{Console, Trouble};

static CONSOLE: Mutex<Option<Console>> = Mutex::new(None);

/// Warnings, until the program has its log.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement leaves a value that is half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts what the variables ask for, or the program does (`is_asked`): a console, and a recording.
/// Returns warnings about what cannot be had.
pub fn start(is_asked: bool) -> (Option<Console>, Vec<String>) {
    let builder = match Setting::from_environment() {
        Setting::Off => None,
        Setting::Unset => is_asked.then(Console::builder),
        Setting::Folder => Some(Console::builder()),
        Setting::Path(path) => Some(Console::builder().path(path)),
    };
    let (recording, wrong) = Settings::from_environment();
    let mut warnings: Vec<String> =
        wrong.into_iter().map(|wrong| format!("the recording: {wrong}")).collect();
    let (has_socket, is_recorded) = (builder.is_some(), recording.is_some());
    if !has_socket && !is_recorded {
        return (None, warnings);
    }
    let mut builder = builder.unwrap_or_default();
    if has_socket && is_asked {
        builder = builder.dump_on_signals();
    }
    if let Some(recording) = recording {
        builder = builder.record(recording);
    }
    let (console, troubles) = builder.start_for_main(has_socket);
    warnings.extend(troubles.iter().map(warning));
    (console, warnings)
}

fn warning(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Socket(error) => format!(
            "the console has no socket: nobody can look into this process ({}=0 turns the console \
             off): {error}",
            place::VARIABLE
        ),
        Trouble::Recording(error) => format!(
            "this process is not recorded ({}=0 turns the recording off): {error}",
            record::VARIABLE
        ),
        Trouble::Thread(error) => {
            format!("there is no console, and no recording, without a thread: {error}")
        }
    }
}

/// Calls `work`, with a console and a recording if the program or the variables ask for them.
pub fn with_console<R>(is_asked: bool, work: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            end_console();
        }
    }

    // The first text of the metrics is to have the times from the begin of the program on.
    measure_times();
    let (console, warnings) = start(is_asked);
    *lock(&CONSOLE) = console;
    *lock(&WARNINGS) = warnings;
    let _end = End;
    work()
}

/// Ends the console of [`with_console`]. For a program that exits the process before `with_console`
/// returns.
pub fn end_console() {
    let console = lock(&CONSOLE).take();
    drop(console);
}

/// The future of the main task, with a report of its crash if there is a console, and with
/// [warnings](start) after its first poll: the program sets its log in that poll.
pub async fn with_reports<F: Future>(future: F) -> F::Output {
    let _report = CrashReport::new();
    let mut future = pin!(future);
    let mut is_first = true;
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if is_first {
            is_first = false;
            for warning in take(&mut *lock(&WARNINGS)) {
                tracing::warn!("{warning}");
            }
        }
        polled
    })
    .await
}
