//! `pikake worker`: the worker of an application, whose jobs are in a binary of its own.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::arguments::{Common, OutsideOptions};
use crate::stop::Stop;

/// Turns this process into the application's worker; returns if that cannot be done.
pub(crate) fn worker(common: &Common, options: &OutsideOptions) -> Stop {
    let Some(program) = &options.program else {
        return Stop::usage(
            "whose worker? Jobs are functions of your own program: have its `main` call `pikake_cli::run(app)`, and \
             say `pikake worker ./target/release/myapp`, or `./target/release/myapp worker`",
        );
    };
    let mut command = Command::new(program);
    command.arg("worker").args(&options.arguments);
    if let Some(url) = &common.broker {
        command.env("PIKAKE_BROKER", url);
    }
    if common.json {
        command.arg("--json");
    }
    let error = command.exec();
    Stop::usage(format!(
        "`{}` cannot be run: {error}\nIt is to be the path of a program that calls `pikake_cli::run(app)`.",
        program.display()
    ))
}
