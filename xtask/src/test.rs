//! `cargo xtask test`: all tests, none of them skipped.

use xtask::needs::MUST_NOT_SKIP;

use crate::Result;
use crate::install::install;
use crate::programs::{self, Options, Program, Summary};
use crate::run::{cargo, run};

/// Installs what is missing, then runs all tests of the workspace; with arguments, `cargo test`
/// with these.
pub(crate) fn test(arguments: &[String]) -> Result {
    install(&[])?;
    if !arguments.is_empty() {
        let mut command = cargo(&["test", "--no-fail-fast"]);
        return run(command.args(arguments).env(MUST_NOT_SKIP, "1"));
    }
    let programs = programs::build(&[])?;
    let documentation = documentation();
    let programs: Vec<&Program> = programs.iter().collect();
    let options = Options { variables: vec![(MUST_NOT_SKIP, "1".into())], ..Options::default() };
    let mut summary = Summary::default();
    for ended in programs::run_all(&programs, &options)? {
        summary.add(&ended);
    }
    println!("\n{}, none skipped", summary.text());
    summary.check().and(documentation)
}

/// The examples of the documentation.
pub(crate) fn documentation() -> Result {
    run(cargo(&["test", "--workspace", "--no-fail-fast", "--doc"]).env(MUST_NOT_SKIP, "1"))
}
