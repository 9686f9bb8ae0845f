//! The program `pikake`: the commands that need no application.

use std::process::ExitCode;

fn main() -> ExitCode {
    pikake_cli::tool()
}
