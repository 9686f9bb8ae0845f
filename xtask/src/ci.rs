//! `cargo xtask ci`: what must hold before a change lands.

use std::time::Duration;

use xtask::needs::program;

use crate::Result;
use crate::checks::{benches, gate, memcheck};
use crate::run::{cargo, run, within};
use crate::steps::timed;
use crate::test::test;
use crate::tokio;

/// For the benchmarks' own test.
const LIMIT: Duration = Duration::from_secs(10 * 60);

pub(crate) fn ci(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("`ci` takes no arguments".into());
    }
    timed(|steps| {
        steps.run("format", format)?;
        steps.run("lints", lints)?;
        steps.run("documentation", || {
            let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps", "--quiet"]);
            run(doc.env("RUSTDOCFLAGS", "-D warnings"))
        })?;
        steps.run("tests (`cargo xtask test`)", || test(&[]))?;
        steps.run("the package under tokio's name", tokio::check)?;
        steps.run("benchmarks: they build, and the steady state allocates nothing", || {
            run(&mut benches(&["fmt", "--check"]))?;
            let bare = ["--no-default-features", "--quiet"];
            let lints = ["clippy", "--all-targets", "--", "-D", "warnings"];
            run(&mut benches(&[&lints[..2], &bare, &lints[2..]].concat()))?;
            within(Some(LIMIT), &mut benches(&[&["test", "--release"], &bare[..1]].concat()))
        })?;
        if program("valgrind").is_none() {
            println!("\nleft out, as there is no valgrind on this machine: instructions, memcheck");
            return Ok(());
        }
        steps.run("instructions, beside the recorded ones", || gate(&[]))?;
        steps.run("memcheck", || memcheck(&[]))
    })?;
    println!("all of it passed");
    Ok(())
}

pub(crate) fn format() -> Result {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

/// With all features, and without any.
pub(crate) fn lints() -> Result {
    let deny = ["--quiet", "--", "-D", "warnings"];
    run(cargo(&["clippy", "--workspace", "--all-targets", "--all-features"]).args(deny))?;
    run(cargo(&["clippy", "-p", "pikake", "--no-default-features"]).args(deny))
}
