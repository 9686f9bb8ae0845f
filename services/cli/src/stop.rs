//! How a command fails: its error message and exit code.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use pikake::console::client::ClientError;
use pikake::console::text::escaped;
use pikake::jobs::{App, AppError, BrokerError, JobError, PublishFailure, SendError};

use crate::log::write_line;

const JOB_FAILED: u8 = 1;
const USAGE: u8 = 2;
const ABSENT: u8 = 3;
const TIMED_OUT: u8 = 4;
const OTHER: u8 = 5;
/// The exit code of a process that a signal ends is this plus the signal's number, as in shells.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct Stop {
    code: u8,
    /// `None` if the message was printed already, or none is needed.
    message: Option<String>,
    /// Whether the process ends without waiting for what is under way.
    is_abrupt: bool,
}

impl Stop {
    fn new(code: u8, message: impl Display) -> Self {
        Self { code, message: Some(message.to_string()), is_abrupt: false }
    }

    /// A failure whose message was printed already.
    fn silent(code: u8) -> Self {
        Self { code, message: None, is_abrupt: false }
    }

    /// The same failure, which ends the process without waiting for what is under way.
    pub(crate) fn abruptly(self) -> Self {
        Self { is_abrupt: true, ..self }
    }

    pub(crate) fn is_abrupt(&self) -> bool {
        self.is_abrupt
    }

    pub(crate) fn job_failed() -> Self {
        Self::silent(JOB_FAILED)
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn absent(message: impl Display) -> Self {
        Self::new(ABSENT, message)
    }

    pub(crate) fn timed_out(message: impl Display) -> Self {
        Self::new(TIMED_OUT, message)
    }

    pub(crate) fn other(message: impl Display) -> Self {
        Self::new(OTHER, message)
    }

    /// Standard output cannot be written. A closed pipe is no failure.
    pub(crate) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(0),
            _ => Self::other(format!("standard output cannot be written: {error}")),
        }
    }

    /// Whether standard output was closed.
    pub(crate) fn is_closed_output(&self) -> bool {
        self.code == 0
    }

    /// A signal ended the command.
    pub(crate) fn signal(number: i32, message: Option<String>) -> Self {
        Self { message, ..Self::silent(u8::try_from(SIGNAL_BASE + number).unwrap_or(OTHER)) }
    }

    /// An application that could not be connected or run.
    pub(crate) fn app(error: AppError) -> Self {
        match error {
            AppError::Url(what) => Self::usage(what),
            AppError::Broker(error) => Self::new(ABSENT, error),
            error => Self::other(error),
        }
    }

    /// As [`app`](Self::app), with the broker's URL in the message, and a hint for a broker that
    /// does not run.
    pub(crate) fn app_at(app: &App, error: AppError) -> Self {
        let error = match error {
            AppError::Broker(error) => error,
            error => return Self::app(error),
        };
        let is_lost_server =
            matches!(error, BrokerError::Lost(_)) && !app.url().starts_with("sqlite://");
        let mut stop = Self::broker(app, error);
        if let (true, Some(message)) = (is_lost_server, &mut stop.message) {
            message.push_str(
                "\nIs it running? On Debian, `apt-get install rabbitmq-server` installs and starts one; without any \
                 server, there is `--broker sqlite:///path/to/jobs.db`.",
            );
        }
        stop
    }

    /// A call to the broker failed.
    pub(crate) fn broker(app: &App, error: BrokerError) -> Self {
        let url = app.redacted_url();
        let message = match error {
            BrokerError::ResultsLost(why) | BrokerError::ResultsRefused(why) => why,
            BrokerError::Lost(why) => format!("the broker {url} cannot be reached: {why}"),
            BrokerError::Refused(why) => format!("the broker {url} refuses: {why}"),
            BrokerError::Io(error) => format!("the broker {url} failed: {error}"),
            error => format!("the broker {url}: {error}"),
        };
        Self::new(ABSENT, message)
    }

    /// A process that cannot be reached, or refuses.
    pub(crate) fn console(error: ClientError) -> Self {
        // The process may say anything.
        let message = escaped(&error.to_string());
        match error {
            ClientError::NotAnswering(..) => Self::timed_out(message),
            _ => Self::new(ABSENT, message),
        }
    }

    /// A process refuses a request, for this reason.
    pub(crate) fn refused(why: String) -> Self {
        Self::console(ClientError::Failed(why))
    }

    /// A task that was asked to end has not ended yet. The command has said so.
    pub(crate) fn task_lives() -> Self {
        Self::silent(TIMED_OUT)
    }

    /// A call for one queue failed, which may not exist.
    pub(crate) fn queue(app: &App, error: BrokerError) -> Self {
        let is_refused = matches!(error, BrokerError::Refused(_));
        let mut stop = Self::broker(app, error);
        if let (true, Some(message)) = (is_refused, &mut stop.message) {
            message.push_str(
                "\nThe first worker or `send` that names a queue creates it; `status` shows the known queues.",
            );
        }
        stop
    }

    pub(crate) fn send(app: &App, error: SendError) -> Self {
        match error {
            SendError::Broker(error) => Self::broker(app, error),
            SendError::Publish(error) => match error.cause {
                PublishFailure::Broker(cause) if !error.is_uncertain => Self::broker(app, cause),
                _ => Self::new(ABSENT, format!("the broker {}: {error}", app.redacted_url())),
            },
            error => Self::other(error),
        }
    }

    pub(crate) fn wait(app: &App, error: JobError) -> Self {
        match error {
            JobError::Broker(error) => Self::broker(app, error),
            error => Self::other(error),
        }
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            write_line("ERROR", &format!("error: {message}"));
        }
        ExitCode::from(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_is_escaped() {
        let stop = Stop::refused("kernel 1\u{1b}[2J\nerror: none".into());
        assert_eq!(stop.message.as_deref(), Some("kernel 1\\u{1b}[2J\\nerror: none"));
    }

    #[test]
    fn only_a_failed_connect_names_packages() {
        let app = App::new("amqp://ann:secret@host/").expect("a URL");
        let lost = || BrokerError::Lost("it hung up".into());
        let message = |stop: Stop| stop.message.expect("a message");
        let connecting = message(Stop::app_at(&app, AppError::Broker(lost())));
        assert!(connecting.contains("apt-get install rabbitmq-server"), "{connecting}");
        for later in [Stop::broker(&app, lost()), Stop::queue(&app, lost())] {
            let later = message(later);
            assert_eq!(later, "the broker amqp://…@host/ cannot be reached: it hung up");
        }
        // A lost or busy Redis of the results is not called the broker.
        let lost = || BrokerError::ResultsLost("Redis at host:6379: LOADING".into());
        for of_results in [
            Stop::app_at(&app, AppError::Broker(lost())),
            Stop::wait(&app, JobError::Broker(lost())),
        ] {
            assert_eq!(message(of_results), "Redis at host:6379: LOADING");
        }
    }
}
