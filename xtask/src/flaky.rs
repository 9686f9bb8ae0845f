//! `cargo xtask flaky [ROUNDS] [FILTER…]`: which tests fail now and then on a busy machine.
//!
//! The tests run again and again, beside processes that do nothing but compute. Each round writes
//! its results into a file of its own; a round whose file is there is not repeated, so a command
//! that was ended goes on where it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xtask::needs::MUST_NOT_SKIP;

use crate::Result;
use crate::group::Group;
use crate::install::install;
use crate::programs::{self, Ended, Options, Program, results};

/// The processes that compute beside the tests.
const LOAD: usize = 8;

/// Rounds, if no number is given.
const ROUNDS: u32 = 5;

pub(crate) fn flaky(arguments: &[String]) -> Result {
    let (rounds, filters) = match arguments.first().map(|word| word.parse()) {
        Some(Ok(rounds)) => (rounds, &arguments[1..]),
        _ => (ROUNDS, arguments),
    };
    install(&[])?;
    rounds_of(rounds, filters)
}

/// Runs the tests whose names contain one of the filters, or all of them, so many times.
pub(crate) fn rounds_of(rounds: u32, filters: &[String]) -> Result {
    let all = programs::build(&[])?;
    let mut programs: Vec<&Program> = Vec::new();
    for program in &all {
        if !program.tests(filters)?.is_empty() {
            programs.push(program);
        }
    }
    let folder = folder(filters)?;
    println!("{} programs, {rounds} rounds, into {}", programs.len(), folder.display());
    for round in 1..=rounds {
        let file = folder.join(format!("{round}.tsv"));
        if file.exists() {
            continue;
        }
        let _load = load()?;
        let options = Options {
            arguments: filters,
            variables: vec![(MUST_NOT_SKIP, "1".into())],
            folder: folder.join(round.to_string()),
            is_quiet: true,
            ..Options::default()
        };
        let ended = programs::run_all(&programs, &options)?;
        let half = file.with_extension("half");
        fs::write(&half, ended.iter().flat_map(lines).collect::<String>())?;
        fs::rename(half, file)?;
        println!("round {round} of {rounds} is over");
    }
    let failed = failed(&folder, rounds)?;
    for (test, count) in &failed {
        println!("failed in {count} of {rounds} rounds: {test}");
    }
    match failed.len() {
        0 => {
            println!("no test failed in {rounds} rounds");
            Ok(())
        }
        count => Err(format!("{count} tests failed at least once").into()),
    }
}

/// The results of a commit and its filters. Uncommitted changes are not told apart.
fn folder(filters: &[String]) -> Result<PathBuf> {
    let mut git = Command::new("git");
    let output = git.current_dir(xtask::root()).args(["rev-parse", "--short", "HEAD"]).output()?;
    let commit = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let words = std::iter::once(commit).chain(filters.iter().cloned());
    let name = words.collect::<Vec<_>>().join("-").replace([':', '/'], "_");
    let folder = xtask::target().join("flaky").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Processes that compute until they are dropped.
fn load() -> Result<Vec<Group>> {
    let start = || {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Group::start(&mut command)
    };
    (0..LOAD).map(|_| Ok(start()?)).collect()
}

/// The results of a program: its package, its name, a test, and `ok`, `FAILED` or `ignored`.
fn lines(ended: &Ended) -> Vec<String> {
    let Ended { package, name, is_ok, output, .. } = ended;
    let mut lines: Vec<String> = results(output)
        .map(|(test, result)| format!("{package}\t{name}\t{test}\t{result}\n"))
        .collect();
    if !is_ok && !lines.iter().any(|line| line.ends_with("FAILED\n")) {
        lines.push(format!("{package}\t{name}\tthe program\tFAILED\n"));
    }
    lines
}

/// The tests that failed in at least one of the first rounds, and in how many.
fn failed(folder: &Path, rounds: u32) -> Result<BTreeMap<String, u32>> {
    let mut failed = BTreeMap::new();
    for round in 1..=rounds {
        let text = fs::read_to_string(folder.join(format!("{round}.tsv")))?;
        for test in text.lines().filter_map(|line| line.strip_suffix("\tFAILED")) {
            *failed.entry(test.replace('\t', ", ")).or_default() += 1;
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(is_ok: bool, output: &str) -> Ended {
        let (package, name) = ("pikake".into(), "net".into());
        Ended { package, name, seconds: 1.0, is_ok, output: output.into() }
    }

    #[test]
    fn failures_of_all_rounds_are_counted() {
        let folder = std::env::temp_dir().join(format!("pikake-flaky-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let rounds = [
            ended(true, "test a ... ok\ntest b ... ok"),
            ended(false, "test a ... ok\ntest b ... FAILED"),
            ended(false, "test a ... ok"),
        ];
        for (round, ended) in (1..).zip(&rounds) {
            let text: String = lines(ended).concat();
            fs::write(folder.join(format!("{round}.tsv")), text).unwrap();
        }
        let found = failed(&folder, 3).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let expected = [("pikake, net, b", 1), ("pikake, net, the program", 1)];
        assert_eq!(found, expected.map(|(test, count)| (test.to_owned(), count)).into());
    }
}
