//! What may be said on the command line. Its help is written here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the job failed, 2 wrong command line, 3 the broker cannot be reached \
                          or refuses, 4 timed out, 5 something else, 130 SIGINT, 143 SIGTERM";

/// Runs this application's jobs, sends some, and looks at its queues.
#[derive(Debug, Parser)]
#[command(name = "application", after_help = EXIT_CODES)]
pub(crate) struct AppLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: AppCommand,
}

/// Sends jobs, looks at queues, and starts the workers of applications.
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
    /// Runs jobs until SIGTERM or SIGINT; the second one does not wait for those that run
    Worker(WorkerOptions),
    #[command(flatten)]
    Shared(Shared),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Runs the worker of an application: its binary, of which this process becomes `worker`
    Worker(OutsideOptions),
    #[command(flatten)]
    Shared(Shared),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Shared {
    /// Sends a job, and prints its id; with --wait, its value
    Send(SendOptions),
    /// Prints how many jobs are where
    Status {
        /// The queues; without any, all that the broker or the application knows of
        queues: Vec<String>,
    },
    /// Removes all jobs that wait in a queue
    Purge {
        /// The queue
        queue: String,
        /// Does not ask first
        #[arg(long)]
        yes: bool,
    },
    /// What could not be run: lists it, or sends it again
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
        /// The job of this id, and no other
        #[arg(long, value_name = "ID")]
        job: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct WorkerOptions {
    /// Runs the jobs of this queue and no others; may be said several times
    #[arg(long = "queue", value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
    /// How many jobs run at a time
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) concurrency: Option<usize>,
    /// How many connections it has to RabbitMQ; with 2, its queues are worked off also while RabbitMQ takes no messages
    #[arg(long, value_name = "1|2", value_parser = one_or_two)]
    pub(crate) connections: Option<usize>,
    /// How many processes run jobs marked `process`
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) processes: Option<usize>,
    /// How long jobs may run on after the first signal
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct OutsideOptions {
    /// The application's binary, as `./target/release/myapp`
    pub(crate) program: Option<PathBuf>,
    /// What its `worker` is told, after `--`
    #[arg(last = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SendOptions {
    /// The job's name
    pub(crate) name: String,
    /// Its arguments, each JSON: `2`, `'"a text"'`, `'[1, 2]'`
    #[arg(value_name = "JSON", allow_negative_numbers = true)]
    pub(crate) arguments: Vec<String>,
    /// Arguments by name, as `{"to": "ann"}`
    #[arg(long, value_name = "JSON")]
    pub(crate) kwargs: Option<String>,
    /// To this queue
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Not to be run before so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) countdown: Option<Duration>,
    /// Waits for the job's end
    #[arg(long)]
    pub(crate) wait: bool,
    /// Waits no longer than this
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "wait")]
    pub(crate) timeout: Option<Duration>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number from 1 on is needed".to_owned()),
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
    fn the_definitions_hold() {
        AppLine::command().debug_assert();
        ToolLine::command().debug_assert();
    }
}
