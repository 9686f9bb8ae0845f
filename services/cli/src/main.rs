//! The program `pikake`: all of the command line that needs no code of jobs.

use std::process::ExitCode;

fn main() -> ExitCode {
    pikake_cli::tool()
}
