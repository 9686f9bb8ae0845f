//! `cargo xtask ci`: everything that must hold before a change lands.

use std::time::Duration;

use xtask::needs::{MUST_NOT_SKIP, program};

use crate::Result;
use crate::book::book;
use crate::checks::{benches, gate, memcheck};
use crate::msrv::{self, Rust};
use crate::run::{cargo, run, within};
use crate::test::test;

/// For the runs of a part of the tests.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Features of the facade, each of which builds without the others.
const FEATURES: [&str; 29] = [
    "log-to-stderr",
    "signals",
    "process",
    "watch",
    "tls",
    "dns",
    "tokio-io",
    "futures-io",
    "http",
    "pool",
    "http-client",
    "http-gzip",
    "console",
    "profile",
    "metrics",
    "tokio-console",
    "task-spans",
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
];

pub(crate) fn ci(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("`ci` takes no arguments".into());
    }
    say("format");
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    say("lints");
    lints()?;
    say("documentation");
    let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps", "--quiet"]);
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    say("tests (`cargo xtask test`)");
    test(&[])?;
    say("model checking of what threads share");
    let mut shuttle =
        cargo(&["test", "-p", "pikake-sync", "-p", "pikake-traps", "-p", "pikake-kernel", "--lib"]);
    shuttle.env("RUSTFLAGS", "--cfg pikake_shuttle");
    within(Some(LIMIT), shuttle.env("CARGO_TARGET_DIR", xtask::target().join("shuttle")))?;
    say("tests on mio's poll(2) back end");
    on_poll(&["--test", "net", "--test", "task"])?;
    let kernels = ["--test", "alone", "--test", "kernel", "--test", "os", "--"];
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
    on_poll(&[&kernels[..], &tests[..]].concat())?;
    say("spans of tasks, a feature that no crate of the workspace asks for");
    on_poll(&["--features", "pikake/task-spans", "--test", "task_spans"])?;
    say("benchmarks: they build, and the steady state allocates nothing");
    run(&mut benches(&["fmt", "--check"]))?;
    run(&mut benches(&[
        "clippy",
        "--no-default-features",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    within(Some(LIMIT), &mut benches(&["test", "--release", "--no-default-features"]))?;
    if program("valgrind").is_some() {
        say("instructions, beside the recorded ones");
        gate(&[])?;
        say("memcheck");
        memcheck(&[])?;
    } else {
        say("memcheck: left out, there is no valgrind on this machine");
    }
    match Rust::find() {
        Ok(rust) => {
            say("the oldest Rust");
            msrv::build(&rust)?;
        }
        Err(missing) => say(&format!("the oldest Rust: left out ({missing})")),
    }
    say("the book");
    book(&[])?;
    say("all of it passed");
    Ok(())
}

fn lints() -> Result {
    let deny = ["--quiet", "--", "-D", "warnings"];
    run(cargo(&["clippy", "--workspace", "--all-targets", "--all-features"]).args(deny))?;
    // The workspace has all features on, since its libraries ask for them; here none, and each by
    // itself.
    let bare = || cargo(&["clippy", "-p", "pikake", "--no-default-features"]);
    run(bare().arg("--all-targets").args(deny))?;
    FEATURES.iter().try_for_each(|feature| run(bare().args(["--features", feature]).args(deny)))
}

fn on_poll(arguments: &[&str]) -> Result {
    let mut command = cargo(&["test", "--features", "pikake/process"]);
    for package in ["pikake", "pikake-kernel", "pikake-net", "pikake-os", "pikake-task"] {
        command.args(["-p", package]);
    }
    command.env("RUSTFLAGS", "--cfg mio_unsupported_force_poll_poll").env(MUST_NOT_SKIP, "1");
    // In a folder of its own: flags that differ would build everything anew each time.
    command.env("CARGO_TARGET_DIR", xtask::target().join("poll"));
    within(Some(LIMIT), command.args(arguments))
}

fn say(what: &str) {
    println!("\n=== {what}");
}
