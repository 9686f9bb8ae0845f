//! The command line's options, and their help texts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the job failed, 2 wrong command line, 3 the broker cannot be reached \
                          or refuses, 4 timed out, 5 any other error, 130 SIGINT, 143 SIGTERM";

/// Runs this application's jobs, sends jobs, and inspects its queues.
#[derive(Debug, Parser)]
#[command(name = "application", after_help = EXIT_CODES)]
pub(crate) struct AppLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: AppCommand,
}

/// Sends jobs, inspects queues, and starts the workers of applications.
#[derive(Debug, Parser)]
#[command(name = "pikake", version, after_help = EXIT_CODES)]
pub(crate) struct ToolLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: ToolCommand,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The broker: `sqlite:///path/to/jobs.db`, or `amqp://user:password@host/vhost` (RabbitMQ; `amqps://` over TLS)
    #[arg(long, global = true, value_name = "URL", env = "PIKAKE_BROKER", hide_env_values = true)]
    pub(crate) broker: Option<String>,
    /// Prints JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// Runs jobs until SIGTERM or SIGINT; a second signal interrupts running jobs
    Worker(WorkerOptions),
    #[command(flatten)]
    Shared(Shared),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Runs the worker of an application: executes its binary with `worker`
    Worker(ExecOptions),
    #[command(flatten)]
    Shared(Shared),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Shared {
    /// Sends a job and prints its id; with --wait, its value
    Send(SendOptions),
    /// Prints how many jobs each queue has
    Status {
        /// The queues; by default, all that the broker lists or the application names
        queues: Vec<String>,
    },
    /// Removes all ready and delayed jobs of a queue
    Purge {
        /// The queue
        queue: String,
        /// Does not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Lists dead jobs, or puts them back into their queue
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// Prints the dead jobs of a queue, oldest first, and why they died
    List {
        /// The queue
        queue: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Puts the dead jobs of a queue back into it
    Replay {
        /// The queue
        queue: String,
        /// Only the job of this id
        #[arg(long, value_name = "ID")]
        job: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct WorkerOptions {
    /// Consumes only this queue; may be repeated
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
    /// How many jobs run at a time
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) concurrency: Option<usize>,
    /// How many connections to RabbitMQ; with 2, the queues are drained even while RabbitMQ accepts no messages
    #[arg(long, value_name = "1|2", value_parser = one_or_two)]
    pub(crate) connections: Option<usize>,
    /// How many processes run jobs marked `process`
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) processes: Option<usize>,
    /// How long running jobs may go on after the first signal
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecOptions {
    /// The application's binary, for example `./target/release/myapp`
    pub(crate) program: Option<PathBuf>,
    /// The arguments of its `worker`, after `--`
    #[arg(last = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SendOptions {
    /// The job's name
    pub(crate) name: String,
    /// The job's arguments, each JSON: `2`, `'"a text"'`, `'[1, 2]'`
    #[arg(value_name = "JSON", allow_negative_numbers = true)]
    pub(crate) arguments: Vec<String>,
    /// Arguments by name, for example `{"to": "ann"}`
    #[arg(long, value_name = "JSON")]
    pub(crate) kwargs: Option<String>,
    /// The queue, instead of the job's own
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// How long the job waits at the broker before it may run
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) countdown: Option<Duration>,
    /// Waits until the job has ended
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait at most
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of at least 1 is needed".to_owned()),
        Ok(count) => Ok(count),
    }
}

fn one_or_two(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "2" => Ok(2),
        _ => Err("1 or 2 is needed".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is needed".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_definitions_are_valid() {
        AppLine::command().debug_assert();
        ToolLine::command().debug_assert();
    }
}
