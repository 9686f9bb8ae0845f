//! `cargo xtask package`: the packages of the published crates.

use crate::Result;
use crate::run::{cargo, run};

/// What is for this workspace alone.
const NOT_PUBLISHED: [&str; 7] = [
    "pikake-accounts",
    "pikake-amqp-testing",
    "pikake-libraries",
    "pikake-read-at-least",
    "pikake-tour",
    "pikake-tutorial",
    "xtask",
];

/// `cargo xtask package [ARGUMENTS OF cargo package]`: makes the packages, and builds each of them.
/// The packages that were made before stand in for those of the registry.
pub(crate) fn package(arguments: &[String]) -> Result {
    let mut command = cargo(&["package", "--workspace"]);
    for name in NOT_PUBLISHED {
        command.args(["--exclude", name]);
    }
    run(command.args(arguments))
}
