//! The command line of an application with jobs, and the program `pikake`.
//!
//! An application's own binary hands itself to [`run`], and has a worker, a sender, and a look at its queues:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use pikake::jobs::App;
//!
//! #[pikake::job(name = "add")]
//! async fn add(a: i64, b: i64) -> i64 {
//!     a + b
//! }
//!
//! fn main() -> ExitCode {
//!     let app = App::new("sqlite://jobs.db").expect("a URL").jobs(add);
//!     pikake_cli::run(app)
//! }
//! ```
//!
//! ```sh
//! myapp worker &
//! myapp send add 2 3 --wait
//! myapp status
//! ```
//!
//! The program `pikake` ([`tool`]) is the same without jobs of its own.
//!
//! # What it prints
//!
//! Standard output has the answer: text for people, or with `--json` one JSON document (of `dead list`, one for each
//! line). Everything else, as what happens meanwhile and errors, goes to standard error; what moves there, moves on a
//! terminal only. If nobody reads standard output any more, the command ends without a word.
//!
//! # Exit codes
//!
//! | code | what happened |
//! | --- | --- |
//! | 0 | what was asked for; a worker ended in good order |
//! | 1 | the job failed or was revoked (`send --wait`) |
//! | 2 | the command line is wrong |
//! | 3 | the broker cannot be reached, refuses, or has no such queue or job |
//! | 4 | the job has not ended in time (`send --wait --timeout`); it goes on |
//! | 5 | something else: the application's own setup, or the system |
//! | 130, 143 | SIGINT or SIGTERM came before the end; of a worker: jobs were interrupted for it, and given back |
//!
//! # The end of a worker
//!
//! The first SIGTERM or SIGINT is a warm shutdown: no more jobs are taken, and those that run may end within the grace.
//! The second one is a cold shutdown: they are interrupted, and given back. The third one ends the process.

#![forbid(unsafe_code)]

mod arguments;
mod dead;
mod output;
mod outside;
mod queues;
mod send;
mod session;
mod stop;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use pikake::jobs::App;

use crate::arguments::{AppCommand, AppLine, Common, Shared, ToolCommand, ToolLine};
use crate::output::Output;
use crate::session::Meanwhile;
use crate::stop::Stop;

/// Does what the command line of this process asks of an application, and gives the exit code for `main`.
///
/// Called outside of a kernel, it makes one. In a process that was started by a worker to run jobs marked `process`, it
/// runs those and never returns.
pub fn run(app: App) -> ExitCode {
    run_from(app, std::env::args_os())
}

/// As [`run`], for a command line from elsewhere. The first of `line` is the program's name.
pub fn run_from(app: App, line: impl IntoIterator<Item = OsString>) -> ExitCode {
    app.run_if_child();
    let AppLine { common, command } = match AppLine::try_parse_from(line) {
        Ok(line) => line,
        Err(error) => return misunderstood(&error),
    };
    finish(|| {
        let app = placed(app, &common)?;
        let output = Output::new(common.json);
        match command {
            AppCommand::Worker(options) => {
                session::run(Meanwhile::Own, worker::run(app, options, output))
            }
            AppCommand::Shared(command) => shared(app, command, output),
        }
    })
}

/// What the program `pikake` does.
pub fn tool() -> ExitCode {
    let ToolLine { common, command } = match ToolLine::try_parse() {
        Ok(line) => line,
        Err(error) => return misunderstood(&error),
    };
    finish(|| match command {
        ToolCommand::Worker(options) => Err(outside::worker(&common, &options)),
        ToolCommand::Shared(command) => {
            let Some(url) = &common.broker else {
                return Err(Stop::usage(
                    "which broker? Say `--broker URL` or set PIKAKE_BROKER: `sqlite:///path/to/jobs.db` or \
                     `amqp://user:password@host/vhost`",
                ));
            };
            shared(App::new(url).map_err(Stop::app)?, command, Output::new(common.json))
        }
    })
}

/// What works without the application's jobs.
fn shared(app: App, command: Shared, output: Output) -> Result<(), Stop> {
    if app.url().starts_with("memory://") {
        return Err(Stop::usage(
            "`memory://` is inside one process, so there is nothing that another one could see or send to; say \
             `--broker sqlite:///path/to/jobs.db` or `--broker amqp://user:password@host/vhost`",
        ));
    }
    session::run(Meanwhile::Interrupt, async move {
        match command {
            Shared::Send(options) => send::run(&app, options, &output).await,
            Shared::Status { queues } => queues::status(&app, &queues, &output).await,
            Shared::Purge { queue, yes } => queues::purge(&app, &queue, yes, &output).await,
            Shared::Dead { command } => dead::run(&app, command, &output).await,
        }
    })
}

/// The application at the broker that the command line names, if it names one.
fn placed(app: App, common: &Common) -> Result<App, Stop> {
    match &common.broker {
        Some(url) => app.at(url).map_err(Stop::app),
        None => Ok(app),
    }
}

/// Help and the version, too.
fn misunderstood(error: &clap::Error) -> ExitCode {
    // Nobody may be there to read it.
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn finish(command: impl FnOnce() -> Result<(), Stop>) -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.tell(),
    }
}
