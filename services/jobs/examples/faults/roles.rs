//! What the processes do that are killed: they are the same program, told by the environment.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pikake_jobs::{App, Returns, Workflow, current_job, map};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{random, sleep};

/// Where the broker is, for a worker,
const URL: &str = "PIKAKE_FAULTS_URL";
/// where it notes what it has done,
const PLACE: &str = "PIKAKE_FAULTS_PLACE";
/// and the number of its place among the workers: one that follows a killed one has that one's.
const SLOT: &str = "PIKAKE_FAULTS_SLOT";

/// How many jobs a worker runs at a time.
const CONCURRENCY: usize = 20;
/// Every so many jobs fails the first time, and waits for its retry.
const FAILS: u64 = 97;
/// How long a job takes at most, in milliseconds.
const LONGEST: u64 = 40;
/// How much longer one takes that is acknowledged early.
const EARLY: Duration = Duration::from_millis(150);
/// How long a job takes that is revoked.
const UNWANTED: Duration = Duration::from_secs(5);
/// The longest that a worker without a broker waits to be let in again.
const KNOCK: Duration = Duration::from_millis(200);

/// Appends a line to a file that outlives the process. One write, so that the line is there or not.
fn note(kind: &str, number: u64, values: &[u64]) -> Result<(), String> {
    static FILE: OnceLock<fs::File> = OnceLock::new();
    let mut file = FILE.get_or_init(|| {
        let place = std::env::var(PLACE).expect("it says where to note");
        append_to(&Path::new(&place).join(format!("done.{}", std::process::id())))
    });
    file.write_all(line(kind, number, values).as_bytes()).map_err(|error| error.to_string())
}

/// A file to which lines are appended.
pub(crate) fn append_to(path: &Path) -> fs::File {
    OpenOptions::new().append(true).create(true).open(path).expect("a file")
}

/// A line of such a file.
pub(crate) fn line(kind: &str, number: u64, values: &[u64]) -> String {
    let values: String = values.iter().map(|value| format!(" {value}")).collect();
    format!("{kind} {number}{values}\n")
}

/// Long enough to be killed in.
async fn work() -> Result<(), String> {
    let length = Duration::from_millis(random::range(0..LONGEST));
    sleep(length).await.map_err(|why| why.to_string())
}

/// Some fail the first time.
#[job(crate = pikake_jobs, name = "faults.record", retries = 5, backoff(first = "100ms", cap = "500ms"))]
pub(crate) async fn record(number: u64) -> Result<u64, String> {
    if number % FAILS == 0 && current_job().retries() == 0 {
        return Err("the first time".into());
    }
    work().await?;
    note("plain", number, &[])?;
    Ok(number)
}

/// The same, acknowledged before it is run: who is killed in it has lost it.
#[job(crate = pikake_jobs, name = "faults.record_early", acks = "early", retries = 5, backoff(first = "100ms", cap = "500ms"))]
pub(crate) async fn record_early(number: u64) -> Result<u64, String> {
    // So long that all of a worker's jobs are under way when it is killed.
    sleep(EARLY).await.map_err(|why| why.to_string())?;
    record(number).await
}

/// Is revoked before it begins, or while it runs. One that is not revoked ends.
#[job(crate = pikake_jobs, name = "faults.unwanted")]
pub(crate) async fn unwanted(number: u64) -> Result<(), String> {
    sleep(UNWANTED).await.map_err(|why| why.to_string())?;
    note("revoked", number, &[])
}

/// Fails each time, and is then dead.
#[job(crate = pikake_jobs, name = "faults.fails", retries = 1, backoff(first = "100ms", cap = "200ms"))]
pub(crate) async fn fails(number: u64) -> Result<(), String> {
    work().await?;
    if current_job().retries() == 1 {
        note("fails", number, &[])?;
    }
    Err("for good".into())
}

/// A link of a chain, or a member of a chord.
#[job(crate = pikake_jobs, name = "faults.link")]
pub(crate) async fn link(number: u64) -> Result<u64, String> {
    work().await?;
    Ok(number + 1)
}

/// The last job of a chain.
#[job(crate = pikake_jobs, name = "faults.end")]
pub(crate) async fn end_of_chain(value: u64, number: u64) -> Result<(), String> {
    note("chain", number, &[value])
}

/// What follows the members of a chord.
#[job(crate = pikake_jobs, name = "faults.sum")]
pub(crate) async fn sum(values: Vec<u64>, number: u64) -> Result<(), String> {
    note("chord", number, &[values.len() as u64, values.iter().sum()])
}

/// A job that returns a chord.
#[job(crate = pikake_jobs, name = "faults.fan_out")]
pub(crate) async fn fan_out(size: u64, number: u64) -> Result<Workflow<()>, String> {
    work().await?;
    Ok(map(grow::with, 0..size).then(sum_of_returned::after(number)))
}

/// A member that adds another one.
#[job(crate = pikake_jobs, name = "faults.grow")]
pub(crate) async fn grow(number: u64) -> Result<Returns<u64>, String> {
    work().await?;
    Ok(Returns::Members(number, vec![link::with(number).into()]))
}

/// The job after the chord that a job has returned.
#[job(crate = pikake_jobs, name = "faults.sum_of_returned")]
pub(crate) async fn sum_of_returned(values: Vec<u64>, number: u64) -> Result<(), String> {
    note("returned", number, &[values.len() as u64, values.iter().sum()])
}

/// Starts a worker.
pub(crate) fn start(url: &str, place: &Path, slot: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    // A test harness is to run nothing but the test that plays the role.
    command.args(["role", "--exact"]).env(URL, url).env(PLACE, place);
    command.env(SLOT, slot.to_string()).stdout(Stdio::null());
    command.stderr(append_to(&place.join("log")));
    command.spawn().expect("it can be started")
}

/// Works, if this is a worker's process; until it is killed.
pub(crate) fn play() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    pikake::log_to_stderr();
    let [place, slot] = [PLACE, SLOT].map(|name| std::env::var(name).expect("it is told"));
    Kernel::new().expect("a kernel").run(async {
        loop {
            let app = App::new(&url)
                .expect("a URL")
                .jobs([
                    record::JOB,
                    record_early::JOB,
                    unwanted::JOB,
                    fails::JOB,
                    link::JOB,
                    end_of_chain::JOB,
                    sum::JOB,
                    fan_out::JOB,
                    grow::JOB,
                    sum_of_returned::JOB,
                ])
                .bury_failed()
                .state_file(Path::new(&place).join(format!("state.{slot}")))
                .concurrency(CONCURRENCY)
                // Workers are killed for as long as the run lasts: that is no job's fault.
                .max_deliveries(u32::MAX);
            if let Err(error) = app.run_worker().await {
                // The broker may not be there, and lets in who comes again.
                if !matches!(&error, pikake_jobs::AppError::Broker(broker) if broker.is_lost()) {
                    eprintln!("a worker has ended: {error}");
                }
            }
            sleep(KNOCK).await.expect("nobody interrupts it");
        }
    })
}
