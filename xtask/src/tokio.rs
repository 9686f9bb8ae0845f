//! `cargo xtask tokio COMMAND`: the package under tokio's name, in `services/tokio-facade`.
//!
//! `source` unpacks tokio's own package, of the version in `Cargo.lock`: the other one includes its
//! files. `check` is a part of `cargo xtask ci`. For `tests` see its file.

mod source;
mod suite;

use std::process::Command;

use xtask::needs::MUST_NOT_SKIP;

use crate::Result;
use crate::run::{cargo, run};

/// The package under tokio's name, in the repository.
const PACKAGE: &str = "services/tokio-facade";

/// The server of the SDK of AWS, as the examples want it.
const MOTO: &str = "moto[server]==5.1.22";

pub(crate) fn tokio(arguments: &[String]) -> Result {
    match arguments {
        [command] if command == "source" => source::unpack().map(drop),
        [command] if command == "check" => check(),
        [command, options @ ..] if command == "tests" => suite::tests(options),
        _ => {
            Err(format!("`tokio` has the commands `source`, `check` and `{}`", suite::USAGE).into())
        }
    }
}

/// A command of cargo in the workspace of the package.
fn inside(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.current_dir(xtask::root().join(PACKAGE));
    command.env("CARGO_TARGET_DIR", xtask::target().join("tokio-facade"));
    command
}

/// Format, lints of all examples, and the tests that need no server.
pub(crate) fn check() -> Result {
    source::unpack()?;
    run(&mut inside(&["fmt", "--all", "--check"]))?;
    let targets = ["--workspace", "--lib", "--tests", "--examples", "--quiet"];
    run(inside(&["clippy"]).args(targets).args(["--", "-D", "warnings"]))?;
    run(&mut inside(&["test", "--quiet", "--package", "tokio", "--package", "pikake-tokio-mio"]))
}

/// The examples with their servers, and tokio's own tests.
pub(crate) fn long() -> Result {
    source::unpack()?;
    let moto = xtask::target().join("moto");
    if !moto.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&moto))?;
        run(Command::new(moto.join("bin/pip")).args(["install", "--quiet", MOTO]))?;
    }
    run(inside(&["test", "--package", "pikake-tokio-examples"]).env(MUST_NOT_SKIP, "1"))?;
    suite::tests(&[])
}
