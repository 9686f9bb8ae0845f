//! The program of the guide to jobs: one job, and a command line for it.
//!
//! ```sh
//! first_job worker &
//! first_job send add 2 3 --wait
//! ```

use std::process::ExitCode;

use pikake::jobs::App;

/// Adds two numbers, in whichever process a worker runs.
#[pikake::job(name = "add", retries = 3)]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

fn main() -> ExitCode {
    let app = App::new("sqlite://jobs.db").expect("it is a broker's URL").jobs([add::JOB]);
    pikake_cli::run(app)
}
