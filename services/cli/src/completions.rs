//! `completions`: a script with which a shell completes the command line.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::output::Output;
use crate::stop::Stop;

/// Prints the script for the program under the name by which it was called.
pub(crate) fn print<L: CommandFactory>(shell: Shell, output: Output) -> Result<(), Stop> {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called)
        .file_name()
        .map_or_else(|| called.to_string_lossy(), |name| name.to_string_lossy());
    let mut script = Vec::new();
    generate(shell, &mut L::command(), name.into_owned(), &mut script);
    let script = String::from_utf8(script).map_err(Stop::other)?;
    output.answer(
        || serde_json::json!({ "shell": shell.to_string(), "script": script }),
        || script.clone(),
    )
}
