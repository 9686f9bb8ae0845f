//! `pikake worker`: replaces this process by the worker of an application's binary.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::arguments::{Common, ExecOptions};
use crate::log::Format;
use crate::stop::Stop;

/// Executes the application's worker in this process; returns only an error.
pub(crate) fn worker(common: &Common, options: &ExecOptions) -> Stop {
    let Some(program) = &options.program else {
        return Stop::usage(
            "whose worker? Jobs are functions of your own program: have its `main` call `pikake_cli::run(app)`, and \
             run `pikake worker ./target/release/myapp`, or `./target/release/myapp worker`",
        );
    };
    let mut command = Command::new(program);
    command.arg("worker").args(&options.arguments);
    if let Some(url) = &common.broker {
        command.env("PIKAKE_BROKER", url);
    }
    if let Some(url) = &common.results {
        command.env("PIKAKE_RESULTS", url);
    }
    if common.json {
        command.arg("--json");
    }
    if let Some(targets) = &common.log.log_level {
        command.arg("--log-level").arg(targets.to_string());
    }
    if common.log.log_format == Format::Json {
        command.args(["--log-format", "json"]);
    }
    let error = command.exec();
    Stop::usage(format!(
        "`{}` cannot be run: {error}\nName the path of a program that calls `pikake_cli::run(app)`.",
        program.display()
    ))
}
