//! The command line's options, and their help texts.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::Timestamp;
use pikake::console::groups::Sort;

use crate::log::LogOptions;
use crate::page::Token;
use crate::stop::Stop;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the job failed, 2 wrong command line, 3 the broker cannot be reached \
                          or refuses, 4 timed out, 5 any other error, 130 SIGINT, 143 SIGTERM";
const TOOL_EXIT_CODES: &str = "Exit codes: 0 done, 1 the job failed, 2 wrong command line, 3 the broker or the process \
                               cannot be reached or refuses, or has no such queue, job or task, 4 timed out, 5 any \
                               other error, 130 SIGINT, 143 SIGTERM";
/// How long a profile lasts by default.
const PROFILE_SECONDS: &str = "5";

/// Runs this application's jobs, sends jobs, and inspects its queues.
#[derive(Debug, Parser)]
#[command(name = "application", after_help = EXIT_CODES)]
pub(crate) struct AppLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: AppCommand,
}

/// Looks into live processes, sends jobs, inspects queues, and starts the workers of applications.
///
/// Without a command: lists the processes that have a console, by `#[pikake::main(console)]` or the
/// variable PIKAKE_CONSOLE=1.
#[derive(Debug, Parser)]
#[command(name = "pikake", version, after_help = TOOL_EXIT_CODES)]
pub(crate) struct ToolLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<ToolCommand>,
}

/// Looks into one process; Ctrl-D ends
#[derive(Debug, Parser)]
#[command(name = "", no_binary_name = true)]
pub(crate) struct ConsoleLine {
    /// Prints JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: LookCommand,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The broker: `sqlite:///path/to/jobs.db`, or `amqp://user:password@host/vhost` (RabbitMQ;
    /// `amqps://` over TLS)
    #[arg(long, global = true, value_name = "URL", env = "PIKAKE_BROKER", hide_env_values = true)]
    pub(crate) broker: Option<String>,
    /// The Redis that has the results, as Celery's: `redis://:password@host:port/db` (`rediss://`
    /// over TLS)
    #[arg(long, global = true, value_name = "URL", env = "PIKAKE_RESULTS", hide_env_values = true)]
    pub(crate) results: Option<String>,
    /// Prints JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) log: LogOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// Runs jobs until SIGTERM or SIGINT; a second signal interrupts running jobs
    Worker(WorkerOptions),
    /// Revokes a job: no worker begins it any more
    #[command(visible_alias = "revoke")]
    Cancel(RevokeOptions),
    #[command(flatten)]
    Shared(Shared),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Runs the worker of an application: executes its binary with `worker`
    Worker(ExecOptions),
    /// Revokes a job: no worker begins it any more; `cancel ID` does the same, unless the id is a
    /// number
    Revoke(RevokeOptions),
    #[command(flatten)]
    Shared(Shared),
    #[command(flatten)]
    Look(LookCommand),
    /// Reads a recording, which the variable PIKAKE_RECORD makes a program write, and shows a
    /// moment of it; without a view, a summary
    Replay(ReplayOptions),
    /// Reads commands for one process, without its number; with --web, serves a page about it
    Console {
        #[command(flatten)]
        process: ProcessOption,
        /// Serves a page on this machine for a browser
        #[arg(long)]
        web: bool,
        /// The port of the page; by default, any free one
        #[arg(long, value_name = "PORT", requires = "web", default_value_t = 0)]
        port: u16,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReplayOptions {
    /// A file of a recording, or a folder, of which the last recording is read
    #[arg(value_name = "FILE|FOLDER")]
    pub(crate) path: PathBuf,
    /// The view: as the command of this name for a live process
    #[arg(value_enum)]
    pub(crate) view: Option<ReplayView>,
    /// The moment: `-30s` is before the end of the recording, `90s` after its begin, and
    /// `2027-01-31T07:00:00Z` a time; by default, the end
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
    /// With `trace`: only the events of the last N seconds before the moment
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
    /// Of `trace`: writes the events to a file for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Of `waits`: prints the graph in the language of Graphviz
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    // In place of the options of all commands.
    /// Refused
    #[arg(long, hide = true, value_parser = no_broker)]
    broker: Option<String>,
    /// Refused
    #[arg(long, hide = true, value_parser = no_broker)]
    results: Option<String>,
}

/// The ways to show a moment of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ReplayView {
    /// The tasks: what each one does, and what it waits for
    Ps,
    /// Which task waits for which other one, and deadlocks
    Waits,
    /// The tasks with their children and all their waits
    Tree,
    /// The tasks, those with the most steps in the last 5 seconds first
    Top,
    /// The figures of the process and of its kernels, as of the last snapshot
    Stats,
    /// The events
    Trace,
}

/// The process, as the first argument.
#[derive(Debug, Args)]
pub(crate) struct ProcessOption {
    /// The number of the process; not needed if only one has a console
    pub(crate) pid: Option<u32>,
    // In place of the options of all commands.
    /// Refused
    #[arg(long, hide = true, value_parser = no_broker)]
    broker: Option<String>,
    /// Refused
    #[arg(long, hide = true, value_parser = no_broker)]
    results: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PsOptions {
    #[command(flatten)]
    pub(crate) process: ProcessOption,
    /// One line for the tasks that were spawned at the same place
    #[arg(long, conflicts_with_all = ["json", "sort", "all"])]
    pub(crate) group: bool,
    /// Only tasks with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,
    /// The order of the tasks; by default, the oldest first
    #[arg(long, value_name = "KEY")]
    pub(crate) sort: Option<SortKey>,
    /// The most lines; the rest is counted
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) limit: Option<usize>,
    /// Each task on a line of its own, also if more than 100 do the same
    #[arg(long)]
    pub(crate) all: bool,
}

/// The order of `ps`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SortKey {
    Id,
    Name,
    Since,
    Steps,
    Busy,
    Longest,
    Bytes,
}

impl From<SortKey> for Sort {
    fn from(key: SortKey) -> Self {
        match key {
            SortKey::Id => Self::Id,
            SortKey::Name => Self::Name,
            SortKey::Since => Self::Since,
            SortKey::Steps => Self::Steps,
            SortKey::Busy => Self::Busy,
            SortKey::Longest => Self::Longest,
            SortKey::Bytes => Self::Bytes,
        }
    }
}

/// The commands that look into a process.
#[derive(Debug, Subcommand)]
pub(crate) enum LookCommand {
    /// Lists the tasks: what each one does, and what it waits for
    Ps(PsOptions),
    /// Shows the tasks with their children, all their waits, and the deadlines around these
    Tree(ProcessOption),
    /// Shows one task in full
    #[command(allow_missing_positional = true)]
    Where {
        #[command(flatten)]
        process: ProcessOption,
        /// The task, as in `ps`
        task: String,
    },
    /// Shows which task waits for which other one, and names deadlocks
    Waits {
        #[command(flatten)]
        process: ProcessOption,
        /// Prints the graph in the language of Graphviz
        #[arg(long, conflicts_with = "json")]
        dot: bool,
        /// Names leaks instead: groups of tasks that only grow, and waits for ended tasks
        #[arg(long, conflicts_with = "dot")]
        leaks: bool,
    },
    /// Prints the figures of the process and of its kernels
    Stats(ProcessOption),
    /// Lists the locks that tasks waited for: how long, and who had them
    Locks(ProcessOption),
    /// Shows the kernels that are in one step for too long, and the last long steps, each with the
    /// stack of the thread
    Blocked(ProcessOption),
    /// Asks a task to end: its next wait returns an error with the reason. With the id of a job: as
    /// `revoke`
    Cancel(CancelOptions),
    /// Drops the future of a task
    #[command(allow_missing_positional = true)]
    Abort {
        #[command(flatten)]
        process: ProcessOption,
        /// The task, as in `ps`
        task: String,
    },
    /// Prints the last events; with --seconds, those of the time from now, with the lengths of
    /// steps
    Trace {
        #[command(flatten)]
        process: ProcessOption,
        /// How long to record
        #[arg(long, value_name = "N", value_parser = seconds)]
        seconds: Option<Duration>,
        /// Writes the events to a file for <https://ui.perfetto.dev>
        #[arg(long, value_name = "FILE")]
        perfetto: Option<PathBuf>,
    },
    /// Records for some seconds which tasks are stepped, how often and for how long
    Profile {
        #[command(flatten)]
        process: ProcessOption,
        /// How long to record
        #[arg(long, value_name = "N", value_parser = seconds, default_value = PROFILE_SECONDS)]
        seconds: Duration,
        /// Writes the profile to a page for a browser
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Shows the tasks on the terminal, each second anew, the busiest first
    Top(ProcessOption),
}

impl LookCommand {
    /// The process that the command line names.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Ps(options) => options.process.pid,
            Self::Tree(process) | Self::Stats(process) => process.pid,
            Self::Blocked(process) | Self::Top(process) | Self::Locks(process) => process.pid,
            Self::Where { process, .. } | Self::Waits { process, .. } => process.pid,
            Self::Abort { process, .. } | Self::Trace { process, .. } => process.pid,
            Self::Profile { process, .. } => process.pid,
            Self::Cancel(options) => options.parts(false).0,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    override_usage = "pikake cancel [OPTIONS] [PID] <TASK> [REASON]...\n       pikake cancel [OPTIONS] <ID> [--terminate]"
)]
pub(crate) struct CancelOptions {
    /// The number of the process, if more than one has a console; the task, as in `ps`; the reason
    /// that it sees
    #[arg(value_name = "WORD", required = true)]
    words: Vec<String>,
    /// Interrupts the job of this id, if it runs
    #[arg(long)]
    terminate: bool,
}

impl CancelOptions {
    /// What the words ask for if they are the id of a job, and not the numbers of a process or
    /// task.
    pub(crate) fn job(&self) -> Option<RevokeOptions> {
        match &self.words[..] {
            [id] if !is_task(id) => {
                Some(RevokeOptions { id: id.clone(), terminate: self.terminate })
            }
            _ => None,
        }
    }

    /// Whether a job is to be interrupted.
    pub(crate) fn terminates(&self) -> bool {
        self.terminate
    }

    /// The process, the task, and the reason. A task after the first word makes that word the
    /// process, unless the words begin with the task in any case.
    pub(crate) fn parts(&self, begins_with_task: bool) -> (Option<u32>, &str, String) {
        let pid = match self.words.get(1) {
            Some(second) if !begins_with_task && is_task(second) => self.words[0].parse().ok(),
            _ => None,
        };
        let words = &self.words[usize::from(pid.is_some())..];
        (pid, &words[0], words[1..].join(" "))
    }
}

/// Whether a word is the number of a task, or of a kernel and a task, and so no id of a job.
fn is_task(word: &str) -> bool {
    word.split('.').count() <= 2 && word.split('.').all(|part| part.parse::<u64>().is_ok())
}

#[derive(Debug, Args)]
pub(crate) struct RevokeOptions {
    /// The job's id
    pub(crate) id: String,
    /// Interrupts the job, if it runs
    #[arg(long)]
    pub(crate) terminate: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WatchOption {
    /// Looks again every so many seconds, until a signal
    #[arg(long, value_name = "SECONDS", value_parser = seconds, num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    watch: Option<Duration>,
}

impl WatchOption {
    /// The pause between two looks; `None` for one look.
    pub(crate) fn seconds(&self) -> Option<Duration> {
        self.watch
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Shared {
    /// Sends a job and prints its id; with --wait, its value
    Send(SendOptions),
    /// Prints the value of a job that has ended, or its error
    Result {
        /// The job's id
        id: String,
    },
    /// Prints how many jobs each queue has, and the jobs that run
    Status {
        /// The queues; by default, all that the broker lists or the application names
        queues: Vec<String>,
        #[command(flatten)]
        watch: WatchOption,
    },
    /// Lists the workers: their running jobs, their limits, their queues
    Workers(WatchOption),
    /// Lists the jobs that run, on all workers
    Running(WatchOption),
    /// Has the workers take no more jobs of a queue, until `resume`; running jobs go on
    Pause {
        /// The queue
        queue: String,
    },
    /// Has the workers take jobs of a paused queue again
    Resume {
        /// The queue
        queue: String,
    },
    /// Serves a page about the queues and workers of a broker
    Dashboard(DashboardOptions),
    /// Removes all ready and delayed jobs of a queue
    Purge {
        /// The queue
        queue: String,
        /// Does not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Prints a script that completes this command line, for a shell to read
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
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
    /// Consumes only these queues, with commas between them; may be repeated
    #[arg(
        short = 'Q',
        long = "queue",
        alias = "queues",
        value_name = "QUEUE",
        value_delimiter = ','
    )]
    pub(crate) queues: Vec<String>,
    /// How many jobs run at a time
    #[arg(short, long, value_name = "N", value_parser = count)]
    pub(crate) concurrency: Option<usize>,
    /// How many connections to RabbitMQ; with 2, the queues are drained even while RabbitMQ accepts
    /// no messages
    #[arg(long, value_name = "1|2", value_parser = RangedU64ValueParser::<usize>::new().range(1..=2))]
    pub(crate) connections: Option<usize>,
    /// How many processes run jobs marked `process`
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) processes: Option<usize>,
    /// How long running jobs may go on after the first signal
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) grace: Option<Duration>,
    /// The worker's name: `mail@%h`, or `mail` for that on this host
    #[arg(short, long)]
    pub(crate) name: Option<String>,
    /// Sends events of jobs, for monitors such as Flower
    #[arg(long, short = 'E')]
    pub(crate) events: bool,
    /// The file that keeps revoked jobs and paused queues over restarts, if the broker does not
    #[arg(long, value_name = "FILE")]
    pub(crate) statedb: Option<PathBuf>,
    /// Whether to wait for a broker that is not there yet: `yes` or `no`
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no, default_value = "yes", action = ArgAction::Set)]
    pub(crate) wait_for_broker: bool,
    /// Serves /healthz, /readyz, /metrics and the dashboard at this address, for example
    /// `127.0.0.1:8080`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) token: TokenOption,
}

#[derive(Debug, Args)]
pub(crate) struct TokenOption {
    /// The secret part of the dashboard's address; by default, a random one
    #[arg(
        long = "http-token",
        value_name = "TOKEN",
        env = "PIKAKE_HTTP_TOKEN",
        hide_env_values = true
    )]
    value: Option<String>,
}

impl TokenOption {
    /// The token that somebody has chosen. Read for a page only: a worker without one may have the
    /// variable, too.
    pub(crate) fn chosen(&self) -> Result<Option<Token>, Stop> {
        let invalid = |why: String| {
            Stop::usage(format!("invalid value for `--http-token` or PIKAKE_HTTP_TOKEN: {why}"))
        };
        self.value.as_deref().map(str::parse).transpose().map_err(invalid)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DashboardOptions {
    /// The address of the page's server; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) token: TokenOption,
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
    /// The job's id, instead of a random one
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// The job's priority: higher ones run first, in queues that have priorities
    #[arg(long, value_name = "N")]
    pub(crate) priority: Option<u8>,
    /// How long the job waits at the broker before it may run
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) countdown: Option<Duration>,
    /// The moment before which the job does not run, for example `2027-01-31T07:00:00Z`
    #[arg(long, value_name = "MOMENT", conflicts_with = "countdown")]
    pub(crate) eta: Option<Timestamp>,
    /// How long after now the job is revoked unless it has begun
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) expires: Option<Duration>,
    /// Waits until the job has ended
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long all of this may take, the connection to the broker included
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Sends a job that this program does not have
    #[arg(long)]
    pub(crate) unregistered: bool,
}

fn no_broker(_: &str) -> Result<String, &'static str> {
    Err("this command looks into a process, which has no broker; leave the option out")
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of at least 1 is needed".to_owned()),
        Ok(count) => Ok(count),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no is needed".to_owned()),
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
        ConsoleLine::command().debug_assert();
    }

    fn look(line: &str) -> LookCommand {
        let words = ["pikake"].into_iter().chain(line.split_whitespace());
        match ToolLine::try_parse_from(words).map(|line| line.command) {
            Ok(Some(ToolCommand::Look(command))) => command,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn process_may_be_left_out() {
        for (line, expected) in [("where 17", None), ("where 4711 17", Some(4711))] {
            let LookCommand::Where { process, task } = look(line) else { panic!("{line}") };
            assert_eq!((process.pid, task.as_str()), (expected, "17"), "{line}");
        }
        let LookCommand::Abort { process, task } = look("abort 1.17") else { panic!() };
        assert_eq!((process.pid, task.as_str()), (None, "1.17"));
        assert!(matches!(
            look("ps"),
            LookCommand::Ps(PsOptions { process: ProcessOption { pid: None, .. }, .. })
        ));
    }

    /// The options are in the help of the commands that ask a broker, and of no other one.
    #[test]
    fn only_commands_of_brokers_take_one() {
        let mut pikake = ToolLine::command();
        pikake.build();
        let take = |command: &&clap::Command| {
            let shown = |name: &str| {
                command.get_arguments().any(|it| it.get_id() == name && !it.is_hide_set())
            };
            assert_eq!(shown("broker"), shown("results"), "{command}");
            shown("broker")
        };
        let (of_brokers, others): (Vec<_>, Vec<_>) = pikake.get_subcommands().partition(take);
        let names = |all: Vec<&clap::Command>| {
            all.iter().map(|command| command.get_name().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            names(of_brokers),
            "worker revoke send result status workers running pause resume dashboard purge \
             completions dead cancel"
        );
        assert_eq!(
            names(others),
            "ps tree where waits stats locks blocked abort trace profile top replay console help"
        );
    }

    #[test]
    fn process_has_no_broker() {
        for line in ["ps --broker sqlite:///jobs.db", "top 17 --results redis://host"] {
            let words = ["pikake"].into_iter().chain(line.split_whitespace());
            let error = ToolLine::try_parse_from(words).expect_err(line).to_string();
            assert!(error.contains("looks into a process, which has no broker"), "{error}");
        }
    }

    #[test]
    fn cancel_takes_process_task_and_reason() {
        let cases = [
            ("cancel 17", None, "17", ""),
            ("cancel 17 closing time", None, "17", "closing time"),
            ("cancel 4711 17", Some(4711), "17", ""),
            ("cancel 4711 1.17 closing time", Some(4711), "1.17", "closing time"),
            ("cancel 4711 17 3 times", Some(4711), "17", "3 times"),
        ];
        for (line, pid, task, reason) in cases {
            let LookCommand::Cancel(options) = look(line) else { panic!("{line}") };
            assert_eq!(options.parts(false), (pid, task, reason.to_owned()), "{line}");
        }
        let LookCommand::Cancel(options) = look("cancel 17 3 times") else { panic!() };
        assert_eq!(options.parts(true), (None, "17", "3 times".to_owned()));
    }
}
