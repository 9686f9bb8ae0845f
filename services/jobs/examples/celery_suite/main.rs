//! The jobs of Celery's own integration tests (`t/integration/tasks.py` of Celery 5.7), as a worker
//! of pikake has them. `cargo xtask suites celery` runs the tests against this worker.
//!
//! ```text
//! celery_suite BROKER RESULTS NAME
//! ```
//!
//! Names, arguments and values are those of the Python functions. A value is a `Value` where Python
//! takes any; a Python `*args` is a [`Definition`](pikake::jobs::Definition) of its own.

mod calls;
mod failures;
mod numbers;
mod redis;
mod replaced;
mod requests;
mod retries;
mod signatures;

use std::error::Error;
use std::process::ExitCode;

use pikake::jobs::App;

/// Celery's queue.
const QUEUE: &str = "celery";

fn app() -> Result<App, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [broker, results, name] = &arguments[..] else {
        return Err("celery_suite BROKER RESULTS NAME".into());
    };
    let app = App::new(broker)?
        .results(results)?
        .default_queue(QUEUE)
        .named(name)
        // As Celery's worker in these tests: some count on a job that waits for another one.
        .concurrency(1)
        .prefetch(4)
        .jobs(calls::JOBS)
        .jobs(failures::JOBS)
        .jobs(numbers::JOBS)
        .jobs(redis::JOBS)
        .jobs(replaced::JOBS)
        .jobs(requests::JOBS)
        .jobs(retries::JOBS)
        .jobs(signatures::JOBS);
    Ok(app)
}

fn main() -> ExitCode {
    pikake::log_to_stderr();
    let worked = match app() {
        Ok(app) => pikake::run(app.run_worker()).map(drop).map_err(Into::into),
        Err(error) => Err(error),
    };
    match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
