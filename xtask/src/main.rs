//! The commands of this workspace: `cargo xtask` lists them.

mod book;
mod checks;
mod ci;
mod filters;
mod flaky;
mod group;
mod install;
mod long;
mod msrv;
mod package;
mod programs;
mod quick;
mod run;
mod serve;
mod steps;
mod suites;
mod test;
mod tokio;

use std::error::Error;
use std::process::ExitCode;

/// What a command comes to; its error is for people.
type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A command: its name and arguments, one line about it, and what it does with the arguments.
type Command = (&'static str, &'static str, fn(&[String]) -> Result);

const COMMANDS: [Command; 16] = [
    (
        "test [ARGUMENTS OF cargo test]",
        "installs what the tests need and runs all of them",
        test::test,
    ),
    ("install", "installs what the tests need (Debian, as root)", install::install),
    (
        "quick [COMMIT]",
        "runs the tests of what changed since a commit, by default the last one",
        quick::quick,
    ),
    ("ci", "runs what must hold before a change lands", ci::ci),
    ("long [STEP…]", "runs what takes hours: model checking, fuzzing, many seeds", long::long),
    (
        "flaky [ROUNDS] [FILTER…]",
        "runs tests again and again on a busy machine, and lists those that failed",
        flaky::flaky,
    ),
    (
        "suites [SUITE…]",
        "runs h1spec and httpwg against the HTTP server, or `amqp`, `autobahn` or `celery` alone",
        suites::suites,
    ),
    (
        "tokio source|check|tests",
        "the package under tokio's name: unpacks tokio's files, checks it, runs tokio's tests on it",
        tokio::tokio,
    ),
    (
        "book",
        "renews the code on the pages of docs/, and builds them into the target folder",
        book::book,
    ),
    ("msrv", "builds pikake with the oldest Rust that is supported", msrv::msrv),
    (
        "package [ARGUMENTS OF cargo package]",
        "makes the packages of the published crates, and builds each",
        package::package,
    ),
    ("budget [--write]", "counts the code lines of each package", checks::budget),
    ("memcheck", "runs the task cell's tests under valgrind", checks::memcheck),
    ("gate [--renew]", "compares instructions per operation with the recorded ones", checks::gate),
    (
        "server postgres|rabbitmq|redis",
        "runs a server on loopback until its input ends",
        serve::serve,
    ),
    (
        "celery FOLDER [PACKAGES]",
        "makes an environment with Celery and prints its Python",
        install::celery,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = arguments.first() else {
        print!("{}", list());
        return ExitCode::SUCCESS;
    };
    let is_named = |(usage, ..): &&Command| usage.split(' ').next() == Some(name.as_str());
    let Some((.., command)) = COMMANDS.iter().find(is_named) else {
        eprintln!("error: there is no command `{name}`\n\n{}", list());
        return ExitCode::from(2);
    };
    run::watch_signals();
    match command(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> String {
    let width = COMMANDS.iter().map(|(usage, ..)| usage.len()).max().unwrap_or(0);
    let lines = COMMANDS.iter().map(|(usage, about, _)| format!("    {usage:width$}  {about}\n"));
    format!("cargo xtask COMMAND\n\n{}", lines.collect::<String>())
}
