//! Filters of tests by their names.
//!
//! The harness runs no test and succeeds if a filter matches none, as after a move or a new name.

use std::process::{Command, Stdio};

use crate::Result;
use crate::run::name;

/// Checks that each filter matches a test of this `cargo test`, which gets no other arguments for
/// the harness.
pub(crate) fn check(cargo_test: &mut Command, filters: &[&str]) -> Result {
    cargo_test.args(["--", "--list"]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = cargo_test.output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", name(cargo_test), output.status).into());
    }
    match unmatched(&String::from_utf8_lossy(&output.stdout), filters)[..] {
        [] => Ok(()),
        ref unmatched => Err(format!("no test matches {}", unmatched.join(", ")).into()),
    }
}

fn unmatched<'a>(list: &str, filters: &[&'a str]) -> Vec<&'a str> {
    let tests: Vec<_> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let matches = |filter: &&str| tests.iter().any(|test| test.contains(*filter));
    filters.iter().filter(|filter| !matches(filter)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_without_a_test_is_found() {
        let list = "cell::outcome: test\nbound::is_home: test\n\n2 tests, 0 benchmarks\n";
        assert_eq!(unmatched(list, &["cell::", "bound::is_"]), [""; 0]);
        assert_eq!(unmatched(list, &["cells::", "bound::", "2 tests"]), ["cells::", "2 tests"]);
    }
}
