//! `cargo xtask long [STEP…]`: what takes hours, or needs a build of its own.
//!
//! Before a release all of it, and a step of it when a change concerns the step's subject. Steps
//! build in target folders of their own where the compiler's flags differ.

use std::process::Command;

use xtask::needs::MUST_NOT_SKIP;

use crate::Result;
use crate::book::book;
use crate::filters;
use crate::flaky;
use crate::install::install;
use crate::msrv::msrv;
use crate::programs::{self, Options, Program, Summary};
use crate::run::{cargo, run};
use crate::steps::timed;
use crate::tokio;

/// A step: its name, one line about it, and the step.
type Step = (&'static str, &'static str, fn() -> Result);

const STEPS: [Step; 10] = [
    ("features", "each feature alone", features),
    ("msrv", "the oldest Rust", || msrv(&[])),
    ("book", "the book of docs/", || book(&[])),
    ("models", "model checking of what threads share", models),
    ("poll", "tests on mio's poll(2) back end", poll),
    ("fuzz", "an hour of random bytes for each parser and server", fuzz),
    ("tokio", "libraries on the package under tokio's name, and tokio's own tests", tokio::long),
    ("seeds", "10,000 seeds of every simulated and random test", seeds),
    ("faults", "100,000 jobs, on each broker, while processes are killed", faults),
    ("flaky", "30 rounds of all tests on a busy machine", || flaky::rounds_of(30, &[])),
];

/// Features of the facade, each of which builds without the others.
const FEATURES: [&str; 26] = [
    "log-to-stderr",
    "signals",
    "process",
    "watch",
    "tls",
    "dns",
    "io-traits",
    "http",
    "pool",
    "http-client",
    "console",
    "profile",
    "tokio-console",
    "axum",
    "tokio",
    "jobs",
    "jobs-sqlite",
    "jobs-amqp",
    "jobs-amqp,tls",
    "jobs-redis",
    "jobs-redis,tls",
    "postgres",
    "postgres,tls",
    "rpc",
    "rpc,tls",
    "http,tls",
];

/// The simulated runs and random cases of each test.
const RUNS: &str = "10000";

/// The seconds, and the random messages in each world of jobs, which take about as long.
const FUZZ: [(&str, &str); 2] = [("PIKAKE_HOSTILE_SECONDS", "3600"), ("PIKAKE_FUZZ", "20000000")];

/// The names of the tests that have those variables.
const FUZZED: [&str; 3] = ["fuzz::", "garbage_closes_one_connection", "mutated::"];

pub(crate) fn long(arguments: &[String]) -> Result {
    let unknown = arguments.iter().find(|name| !STEPS.iter().any(|(step, ..)| step == name));
    if let Some(name) = unknown {
        let steps = STEPS.iter().map(|(step, about, _)| format!("\n    {step:8}  {about}"));
        return Err(format!("there is no step `{name}`, but{}", steps.collect::<String>()).into());
    }
    timed(|steps| {
        let is_wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|it| it == name);
        for (name, about, step) in STEPS.iter().filter(|(name, ..)| is_wanted(name)) {
            steps.run(&format!("{name}: {about}"), step)?;
        }
        Ok(())
    })
}

fn features() -> Result {
    FEATURES.iter().try_for_each(|features| {
        let clippy = ["clippy", "-p", "pikake", "--no-default-features", "--quiet"];
        run(cargo(&clippy).args(["--features", features, "--", "-D", "warnings"]))
    })
}

fn models() -> Result {
    let packages = ["-p", "pikake-sync", "-p", "pikake-traps", "-p", "pikake-kernel"];
    let mut command = cargo(&["test"]);
    command.args(packages).arg("--lib").env("RUSTFLAGS", "--cfg pikake_shuttle");
    run(in_folder(&mut command, "shuttle"))
}

fn poll() -> Result {
    on_poll(&["--test", "net", "--test", "task"], &[])?;
    let kernels = ["--test", "alone", "--test", "kernel", "--test", "os"];
    let tests = [
        "descriptors::",
        "helpers::",
        "kernels::",
        "process::",
        "runs::",
        "shortage::",
        "signals::",
        "wakes::",
    ];
    on_poll(&kernels, &tests)
}

/// Runs the tests that any of these filters matches, or all.
fn on_poll(arguments: &[&str], tests: &[&str]) -> Result {
    let command = || {
        let mut command = cargo(&["test", "--features", "pikake/process"]);
        for package in ["pikake", "pikake-kernel", "pikake-net", "pikake-os", "pikake-task"] {
            command.args(["-p", package]);
        }
        command.env("RUSTFLAGS", "--cfg mio_unsupported_force_poll_poll").env(MUST_NOT_SKIP, "1");
        in_folder(&mut command, "poll").args(arguments);
        command
    };
    filters::check(&mut command(), tests)?;
    run(command().arg("--").args(tests))
}

/// In a folder of its own: flags that differ would build everything anew each time.
fn in_folder<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    command.env("CARGO_TARGET_DIR", xtask::target().join(name))
}

fn fuzz() -> Result {
    let tests = FUZZED.map(str::to_owned);
    optimised("fuzz", &tests, &FUZZ)
}

fn seeds() -> Result {
    let variables = [("PIKAKE_RUNS", RUNS), ("PROPTEST_CASES", RUNS), ("PIKAKE_LONG", "1")];
    optimised("seeds", &[], &variables)
}

/// Runs the tests with these names, built with optimisation.
fn optimised(name: &str, tests: &[String], variables: &[(&str, &str)]) -> Result {
    install(&[])?;
    let all = programs::build(&["--release", "--config", "profile.release.lto=\"off\""])?;
    let mut programs: Vec<&Program> = Vec::new();
    for program in &all {
        if !program.tests(tests)?.is_empty() {
            programs.push(program);
        }
    }
    let options = Options {
        arguments: tests,
        variables: variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        folder: xtask::target().join(name),
        limit: None,
        is_quiet: true,
    };
    let mut summary = Summary::default();
    for ended in programs::run_all(&programs, &options)? {
        summary.add(&ended);
    }
    println!("{}", summary.text());
    summary.check()
}

fn faults() -> Result {
    install(&[])?;
    ["sqlite", "rabbitmq"].iter().try_for_each(|broker| {
        let example = ["run", "--release", "-p", "pikake-jobs", "--example", "faults", "--"];
        run(cargo(&example).args([broker, "100000", "3"]))
    })
}
