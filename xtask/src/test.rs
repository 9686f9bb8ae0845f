//! `cargo xtask test`: all tests, none of them skipped.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use xtask::needs::MUST_NOT_SKIP;

use crate::Result;
use crate::group::Group;
use crate::install::install;
use crate::run::{cargo, name, wait};

/// For the tests and their building, on a machine of two cores.
const LIMIT: Duration = Duration::from_secs(55 * 60);

/// Installs what is missing, then runs `cargo test` with these arguments, by default for the whole
/// workspace.
pub(crate) fn test(arguments: &[String]) -> Result {
    install(&[])?;
    let mut cargo = cargo(&["test", "--no-fail-fast"]);
    match arguments {
        [] => cargo.arg("--workspace"),
        arguments => cargo.args(arguments),
    };
    let name = name(&cargo);
    cargo.env(MUST_NOT_SKIP, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut group = Group::start(&mut cargo)?;
    let output = BufReader::new(group.child().stdout.take().expect("it is piped"));
    // Read in a thread: the end of the output is no event of the program's, whose children may hold
    // it.
    let reader = std::thread::spawn(move || {
        let mut summary = Summary::default();
        for line in output.lines().map_while(std::io::Result::ok) {
            println!("{line}");
            summary.read(&line);
        }
        summary
    });
    let ended = wait(group, Some(LIMIT), &name);
    let summary = reader.join().expect("it does not panic");
    println!("\n{}", summary.text());
    ended
}

/// What the test harnesses have printed, added up.
#[derive(Default, Debug)]
struct Summary {
    passed: u64,
    ignored: u64,
    failed: Vec<String>,
}

impl Summary {
    fn read(&mut self, line: &str) {
        if let Some((test, "FAILED")) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        {
            self.failed.push(test.to_owned());
        }
        if let Some(counts) = line.strip_prefix("test result: ") {
            let words: Vec<_> = counts.split_whitespace().collect();
            for pair in words.windows(2) {
                let Ok(count) = pair[0].parse::<u64>() else { continue };
                match pair[1] {
                    "passed;" => self.passed += count,
                    "ignored;" => self.ignored += count,
                    _ => {}
                }
            }
        }
    }

    fn text(&self) -> String {
        let Self { passed, ignored, failed } = self;
        let mut text = format!(
            "{passed} tests passed, {} failed, {ignored} ignored, none skipped",
            failed.len()
        );
        for test in failed {
            text.push_str("\n    failed: ");
            text.push_str(test);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up_and_failures_named() {
        let mut summary = Summary::default();
        for line in [
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test slow - should panic ... ok",
            "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 7 filtered out; finished in 0.00s",
            "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            summary.read(line);
        }
        assert_eq!(
            summary.text(),
            "12 tests passed, 1 failed, 3 ignored, none skipped\n    failed: a::c"
        );
    }
}
