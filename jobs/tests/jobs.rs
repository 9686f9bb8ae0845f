//! Jobs end to end on the broker in memory, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, AppError, Handle, JobError, OutcomeState, Report, ShutdownHandle, current_job};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_sync::Promise;
use pikake_traps::{Interrupted, Task, sleep, spawn, timeout_after};

const SECOND: Duration = Duration::from_secs(1);

#[job(crate = pikake_jobs)]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[job(crate = pikake_jobs, name = "tests.fail", retries = 2, backoff(first = "10s", cap = 15))]
async fn fail(why: String) -> Result<(), String> {
    Err(why)
}

#[job(crate = pikake_jobs, soft_limit = "2s")]
async fn nap(seconds: u64) -> Result<&'static str, Interrupted>
where
{
    sleep(Duration::from_secs(seconds)).await?;
    Ok("slept")
}

fn main() {}
