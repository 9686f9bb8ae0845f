//! What a job costs: jobs that do nothing, sent and run in one process on the broker in memory.
//!
//! `cargo run --release -p pikake-jobs --example noop [jobs] [events]` prints the processor time of
//! one thread per job, for sending and for running, with the JSON of both. With `events`, the
//! worker sends events of its jobs.

use std::time::Duration;

use pikake_jobs::App;
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{sleep, spawn};

#[job(crate = pikake_jobs, name = "noop", ignore_result)]
async fn noop(number: u64) -> u64 {
    number
}

/// The same, but somebody wants the value.
#[job(crate = pikake_jobs, name = "valued")]
async fn valued(number: u64) -> u64 {
    number
}

/// What the system has counted for this thread.
fn processor_time() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Ok(Duration::from_nanos(nanos.unwrap_or_default()))
}

async fn measure(
    jobs: u64,
    with_values: bool,
    with_events: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let app = App::new("memory://")?
        .jobs([noop::JOB, valued::JOB])
        .send_events(with_events)
        .connect()
        .await?;
    let begin = processor_time()?;
    let mut handles = Vec::new();
    for number in 0..jobs {
        match with_values {
            true => handles.push(valued::delay(number).await?),
            false => drop(noop::delay(number).await?),
        }
    }
    let sent = processor_time()?;
    let started = std::rc::Rc::new(std::cell::RefCell::new(None));
    let told = started.clone();
    let worker = app.worker().on_start(move |handle| *told.borrow_mut() = Some(handle));
    let worker = spawn(worker.run());
    while app.stats().all.done < jobs {
        sleep(Duration::from_millis(1)).await?;
    }
    let ran = processor_time()?;
    for (number, handle) in (0..).zip(&handles) {
        assert_eq!(handle.wait().await?, number);
    }
    if let Some(shutdown) = started.take() {
        shutdown.warm();
    }
    worker.await??;
    let each = |length: Duration| length.as_secs_f64() * 1e6 / jobs as f64;
    let what = if with_values { "with values" } else { "ignoring values" };
    println!("{what}: {:.2} µs to send, {:.2} µs to run", each(sent - begin), each(ran - sent));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let jobs = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let with_events = std::env::args().nth(2).is_some_and(|word| word == "events");
    let kernel = Kernel::new()?;
    for with_values in [false, true, false, true] {
        kernel.run(measure(jobs, with_values, with_events))?;
    }
    Ok(())
}
