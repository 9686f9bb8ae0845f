//! The command line of an application with jobs, and the program `pikake`.
//!
//! An application's binary calls [`run`], and so has commands to run a worker, send jobs, and
//! inspect its queues:
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
//!     let app = App::new("sqlite://jobs.db").expect("a URL").jobs([add::JOB]);
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
//! The program `pikake` ([`tool`]) has the same commands without an application, and commands that
//! look into a live process:
//!
//! ```sh
//! pikake             # lists the processes that have a console
//! pikake ps 4711     # lists its tasks
//! pikake waits 4711  # names deadlocks
//! pikake replay FOLDER ps --at -30s  # the same of a recording, 30 seconds before its end
//! ```
//!
//! `cancel ID` revokes a job. In the program `pikake`, a number after `cancel` is a task of a
//! process; `revoke` always takes the id of a job.
//!
//! A program has a console by `#[pikake::main(console)]` (see `pikake::console`). The number of the
//! process may be left out if only one has a console.
//!
//! # Output
//!
//! Standard output has the answer: text for people, or with `--json` one JSON document (of
//! `dead list`, one for each line). Progress and errors go to standard error, with a spinner on a
//! terminal only. If standard output is a closed pipe, the command ends silently. `--watch` looks
//! again until a signal: in place on a terminal, and in a pipe as one block or document each.
//!
//! # Log
//!
//! Warnings and errors of `tracing` go to standard error, unless the program has set a subscriber
//! before it calls [`run`]. `--log-level` or else `RUST_LOG` chooses other events: `info`,
//! `warn,pikake::jobs=info`. With `--log-format json`, each line of standard error is a JSON
//! document.
//!
//! The target `pikake::jobs` has a line for each end of a job: `done`, `retried` and `revoked`
//! (info), `killed` (warn), `failed` and `dead` (error); `started` and `requeued` are debug. The
//! fields are `id`, `job`, `queue`, `seconds` (from the start of the run) and `error`. An outage of
//! a broker is a warning when it begins, further ones after growing pauses, and `connected again`.
//!
//! # Exit codes
//!
//! | code | what happened |
//! | --- | --- |
//! | 0 | the command has succeeded; a worker has shut down in order |
//! | 1 | the job failed or was revoked (`send --wait`, `result`) |
//! | 2 | the command line is wrong |
//! | 3 | the broker cannot be reached, refuses, or has no such queue or job; a worker refuses a command, or on RabbitMQ none answers; there is no such process, it has no console or refuses, or it has no such task |
//! | 4 | the job was not sent or has not ended in time (`send --timeout`, `result`), nor the task (`cancel`), which go on; the process or its kernel does not answer |
//! | 5 | any other error, for example in the application's setup or of the system |
//! | 130, 143 | SIGINT or SIGTERM ended the command; of a worker: jobs were interrupted and requeued |
//!
//! # Shutdown of a worker
//!
//! The first SIGTERM or SIGINT is a warm shutdown: the worker takes no more jobs, and running ones
//! may end within the grace. The second is a cold shutdown: running jobs are interrupted and
//! requeued. The third ends the process. SIGHUP counts as SIGTERM, unless it was ignored when the
//! worker started, as under `nohup`.

#![forbid(unsafe_code)]

mod arguments;
mod completions;
mod console;
mod control;
mod dashboard;
mod dead;
mod exec;
mod functions;
mod log;
mod output;
mod page;
mod queues;
mod replay;
mod result;
mod send;
mod session;
mod stop;
mod watch;
mod web;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use pikake::console::client::{Client, TIMEOUT};
use pikake::jobs::App;

use crate::arguments::{
    AppCommand, AppLine, Common, LookCommand, RevokeOptions, Shared, ToolCommand, ToolLine,
};
use crate::output::Output;
use crate::session::SignalMode;
use crate::stop::Stop;

/// Runs the command on this process's command line for an application, and returns the exit code
/// for `main`.
///
/// Call this function outside a kernel; it creates one. In a process that a worker has started for
/// jobs marked `process`, the function runs those jobs and never returns.
pub fn run(app: App) -> ExitCode {
    run_from(app, std::env::args_os())
}

/// As [`run`], with `line` as the command line. Its first element is the program's name.
pub fn run_from(app: App, line: impl IntoIterator<Item = OsString>) -> ExitCode {
    pikake::traps::note_panic_places();
    let AppLine { common, command } = match AppLine::try_parse_from(line) {
        Ok(line) => line,
        Err(error) => return print_usage(&error),
    };
    log::start(&common.log);
    // It has the command line of its worker.
    app.run_if_child();
    finish(|| {
        let app = with_broker(app, &common)?;
        let output = Output::new(common.json);
        match command {
            AppCommand::Worker(options) => {
                let _console = worker::console();
                session::run(SignalMode::Handled, worker::run(app, options, output))
            }
            AppCommand::Cancel(options) => revoke(app, options, output),
            AppCommand::Shared(command) => shared::<AppLine>(app, command, output),
        }
    })
}

/// The `main` of the program `pikake`.
pub fn tool() -> ExitCode {
    let ToolLine { common, command } = match ToolLine::try_parse() {
        Ok(line) => line,
        Err(error) => return print_usage(&error),
    };
    log::start(&common.log);
    let output = Output::new(common.json);
    finish(|| match command {
        None => console::list(output),
        Some(ToolCommand::Revoke(options)) => revoke(at_broker(&common)?, options, output),
        Some(ToolCommand::Look(LookCommand::Cancel(options))) if options.job().is_some() => {
            options.job().map_or(Ok(()), |job| revoke(at_broker(&common)?, job, output))
        }
        Some(ToolCommand::Look(command)) => console::look(command, None, output),
        Some(ToolCommand::Replay(options)) => replay::run(&options, output),
        Some(ToolCommand::Console { process, web: true, port }) => {
            let pid = console::choose(process.pid)?;
            web::run(move || Client::connect(pid, TIMEOUT), port, output)
        }
        Some(ToolCommand::Console { process, .. }) => {
            console::read_lines(console::choose(process.pid)?, output)
        }
        Some(ToolCommand::Worker(options)) => Err(exec::worker(&common, &options)),
        Some(ToolCommand::Shared(Shared::Completions { shell })) => {
            completions::print::<ToolLine>(shell, output)
        }
        Some(ToolCommand::Shared(command)) => {
            shared::<ToolLine>(at_broker(&common)?, command, output)
        }
    })
}

/// An application without jobs at the broker that the command line names.
fn at_broker(common: &Common) -> Result<App, Stop> {
    let Some(url) = &common.broker else {
        return Err(Stop::usage(
            "which broker? Use `--broker URL` or set PIKAKE_BROKER: `sqlite:///path/to/jobs.db` or \
             `amqp://user:password@host/vhost`",
        ));
    };
    with_results(App::new(url).map_err(Stop::app)?, common)
}

/// Refuses a broker that other processes cannot reach.
fn check_reach(app: &App) -> Result<(), Stop> {
    match app.url().starts_with("memory://") {
        true => Err(Stop::usage(
            "`memory://` is inside one process, so this command cannot reach it; use \
             `--broker sqlite:///path/to/jobs.db` or `--broker amqp://user:password@host/vhost`",
        )),
        false => Ok(()),
    }
}

fn revoke(app: App, options: RevokeOptions, output: Output) -> Result<(), Stop> {
    check_reach(&app)?;
    session::run(
        SignalMode::Interrupt,
        async move { control::revoke(&app, &options, output).await },
    )
}

/// Runs a command that needs no jobs of the application. `L` is the command line.
fn shared<L: CommandFactory>(app: App, command: Shared, output: Output) -> Result<(), Stop> {
    if let Shared::Completions { shell } = command {
        return completions::print::<L>(shell, output);
    }
    check_reach(&app)?;
    session::run(SignalMode::Interrupt, async move {
        match command {
            Shared::Send(options) => send::run(&app, options, output).await,
            Shared::Result { id } => result::run(&app, id, output).await,
            Shared::Status { queues, watch } => queues::status(&app, &queues, watch, output).await,
            Shared::Workers(watch) => control::workers(&app, watch, output).await,
            Shared::Running(watch) => control::running(&app, watch, output).await,
            Shared::Pause { queue } => control::pause(&app, &queue, true, output).await,
            Shared::Resume { queue } => control::pause(&app, &queue, false, output).await,
            Shared::Dashboard(options) => dashboard::run(&app, options, output).await,
            Shared::Purge { queue, yes } => queues::purge(&app, &queue, yes, &output).await,
            Shared::Dead { command } => dead::run(&app, command, &output).await,
            Shared::Completions { .. } => Ok(()),
        }
    })
}

/// The application at the command line's broker, if one is named there.
fn with_broker(app: App, common: &Common) -> Result<App, Stop> {
    let app = match &common.broker {
        Some(url) => app.at(url).map_err(Stop::app)?,
        None => app,
    };
    with_results(app, common)
}

/// The application with its results at the command line's Redis, if one is named there.
fn with_results(app: App, common: &Common) -> Result<App, Stop> {
    match &common.results {
        Some(url) => app.results(url).map_err(Stop::app),
        None => Ok(app),
    }
}

/// Prints clap's error, help or version.
fn print_usage(error: &clap::Error) -> ExitCode {
    // The output may be closed.
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn finish(command: impl FnOnce() -> Result<(), Stop>) -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.report(),
    }
}
