//! Events of `tracing` on standard error, for programs that have set no subscriber.
//!
//! pikake, like other libraries, reports crashes, long steps and lost connections as events.
//! Without a subscriber nobody sees them.

use std::env::{self, VarError};
use std::future::{Future, poll_fn};

use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, dispatcher};

use self::lines::{Directives, Lines};

mod lines;

/// The variable that chooses the events.
const VARIABLE: &str = "RUST_LOG";

/// The least severe level without that variable.
const DEFAULT: LevelFilter = LevelFilter::WARN;

/// Prints the events of `tracing` to standard error, unless the program has set a subscriber.
///
/// The function sets a global subscriber, which prints a line for each warning and error. The
/// variable `RUST_LOG` chooses other events: `RUST_LOG=debug`, `RUST_LOG=warn,my_app=trace`,
/// `RUST_LOG=off`. If the variable cannot be read, the subscriber says so and prints warnings and
/// errors. A line has time, level, target, message and fields, and not the spans around. Control
/// characters other than line breaks and tabs are escaped. A line that cannot be written is lost.
///
/// If the program has set any subscriber before, global or scoped, the function does nothing.
///
/// `#[pikake::main]` calls this function after the first step of the main task, so a program that
/// wants another subscriber sets that one before its first `await`. A later attempt fails, and
/// `tracing_subscriber::fmt::init()` panics then. Programs that set their subscriber later turn the
/// default feature `log-to-stderr` off. `pikake::run` and `Kernel::run` do not call this function.
///
/// # Examples
///
/// ```
/// pikake::log_to_stderr();
/// tracing::warn!("this line is on standard error");
/// ```
pub fn log_to_stderr() {
    if dispatcher::has_been_set() {
        return;
    }
    let (directives, complaint) = match directives() {
        Ok(directives) => (directives, None),
        Err(complaint) => (None, Some(complaint)),
    };
    let lines = Lines(directives.unwrap_or_else(|| Directives::all(DEFAULT)));
    // Fails if another thread has set a subscriber since, which then stays.
    let is_set = dispatcher::set_global_default(Dispatch::new(lines));
    if let (Ok(()), Some(complaint)) = (is_set, complaint) {
        tracing::warn!(
            "{VARIABLE} {complaint}: warnings and errors are shown; write for example `debug` or \
             `warn,my_app=debug`"
        );
    }
}

/// The events that the variable asks for, if it is set, or its error.
fn directives() -> Result<Option<Directives>, String> {
    let text = match env::var(VARIABLE) {
        Ok(text) => text,
        Err(VarError::NotPresent) => String::new(),
        Err(VarError::NotUnicode(_)) => return Err("is not UTF-8".into()),
    };
    Directives::parse(&text).map_err(|error| format!("is `{text}` ({error})"))
}

/// Whether [`log_to_stderr`] would print trace events of this target.
pub fn is_traced(target: &str) -> bool {
    matches!(directives(), Ok(Some(directives)) if directives.choose(target, &Level::TRACE))
}

/// The future, with a call of [`log_to_stderr`] after its first poll.
///
/// A program sets a subscriber of its own in that poll.
pub fn log_after_first_step<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let mut future = Box::pin(future);
    let mut is_first = true;
    poll_fn(move |cx| {
        let polled = future.as_mut().poll(cx);
        if is_first {
            is_first = false;
            log_to_stderr();
        }
        polled
    })
}
