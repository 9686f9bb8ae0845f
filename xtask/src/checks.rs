//! The checks under valgrind, and the count of code lines.

use std::fs;
use std::process::Command;
use std::time::Duration;

use xtask::budget::{Budget, FILE};
use xtask::needs::program;

use crate::Result;
use crate::programs::{self, Program};
use crate::run::{cargo, within};

const MEMCHECK: Duration = Duration::from_secs(15 * 60);
const GATE: Duration = Duration::from_secs(10 * 60);

/// Any invalid access, use of uninitialised memory or definite leak fails a test.
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

/// The test programs with [`TESTS`]: their packages and names.
const PROGRAMS: [(&str, &str); 4] = [
    ("pikake-traps", "pikake_traps"),
    ("pikake-traps", "traps"),
    ("pikake-kernel", "kernel"),
    ("pikake-net", "net"),
];

/// The tests of the allocator, of the task cell, of careless kernels, of other threads' wakes, and
/// of reads into buffers that are not initialized.
/// Two cases of `bound` leak on purpose, and are left out.
const TESTS: [&str; 14] = [
    "memory::",
    "cell::",
    "handlers::",
    "bound::bound_value_is",
    "bound::bound_value_panics",
    "bound::value_dropped_elsewhere_is",
    "bound::value_dropped_at_home",
    "bound::wait_dropped",
    "bound::task_of",
    "wakes::wakers_that_outlive",
    "wakes::handles_start",
    "wakes::shutdown_and_stop",
    "wakes::closure_sent",
    "foreign_io::uninitialized_buffers",
];

/// `cargo xtask memcheck`.
pub(crate) fn memcheck(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("`memcheck` takes no arguments".into());
    }
    has_valgrind()?;
    let mut programs = programs::build(&[])?;
    programs.retain(|program| PROGRAMS.contains(&(&*program.package, &*program.name)));
    for test in TESTS {
        let has_test = |program: &Program| Ok(!program.tests(&[test.to_owned()])?.is_empty());
        if !programs.iter().map(has_test).collect::<Result<Vec<_>>>()?.contains(&true) {
            return Err(format!("no test matches {test}").into());
        }
    }
    for program in &programs {
        // One after another: valgrind runs one thread at a time, and the output stays readable.
        let mut command = program.command_under(&VALGRIND);
        within(Some(MEMCHECK), command.arg("--test-threads=1").args(TESTS))?;
    }
    println!("memcheck: nothing to report");
    Ok(())
}

/// `cargo xtask gate [--renew]`.
pub(crate) fn gate(arguments: &[String]) -> Result {
    match arguments {
        [] => {}
        [renew] if renew == "--renew" => {}
        _ => return Err("what with the baselines? cargo xtask gate [--renew]".into()),
    }
    has_valgrind()?;
    let mut command =
        benches(&["run", "--release", "--quiet", "--no-default-features", "--", "gate"]);
    within(Some(GATE), command.args(arguments))
}

/// `cargo xtask budget [--write]`. The recorded sum is a bound, which a person lowers.
pub(crate) fn budget(arguments: &[String]) -> Result {
    match arguments {
        [] => print!("{}", Budget::count(xtask::root())?),
        [write] if write == "--write" => {
            let file = xtask::root().join(FILE);
            let text = fs::read_to_string(&file)?;
            let mut found = Budget::count(xtask::root())?;
            found.published = Budget::parse(&text)?.published;
            let header = text.split_inclusive('\n').take_while(|line| line.starts_with('#'));
            fs::write(file, format!("{}{found}", header.collect::<String>()))?;
        }
        _ => return Err("what with the lines? cargo xtask budget [--write]".into()),
    }
    Ok(())
}

/// Cargo in the workspace of the benchmarks.
pub(crate) fn benches(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.current_dir(xtask::root().join("benches"));
    command.env("CARGO_TARGET_DIR", xtask::target().join("benches"));
    command
}

fn has_valgrind() -> Result {
    match program("valgrind") {
        Some(_) => Ok(()),
        None => Err("valgrind is missing: apt-get install valgrind".into()),
    }
}
