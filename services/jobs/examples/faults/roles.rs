//! What the processes do that are killed: they are the same program, told by the environment.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pikake_jobs::{App, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{random, sleep};

/// Where the broker is, for a worker,
const URL: &str = "PIKAKE_FAULTS_URL";
/// and where it notes what it has done.
const PLACE: &str = "PIKAKE_FAULTS_PLACE";

/// How many jobs a worker runs at a time.
const CONCURRENCY: usize = 20;
/// Every so many jobs fails the first time, and waits for its retry.
const FAILS: u64 = 97;
/// How long a job takes at most, in milliseconds.
const LONGEST: u64 = 40;
/// How much longer one takes that is acknowledged early.
const EARLY: Duration = Duration::from_millis(150);
/// The longest that a worker without a broker waits to be let in again.
const KNOCK: Duration = Duration::from_millis(200);

/// Notes that it was done, in a file that outlives the process.
#[job(crate = pikake_jobs, name = "faults.record", retries = 5, backoff(first = "100ms", cap = "500ms"))]
pub(crate) async fn record(number: u64) -> Result<u64, String> {
    static FILE: OnceLock<fs::File> = OnceLock::new();
    if number % FAILS == 0 && current_job().retries() == 0 {
        return Err("the first time".into());
    }
    // Long enough to be killed in.
    let length = Duration::from_millis(random::range(0..LONGEST));
    sleep(length).await.map_err(|why| why.to_string())?;
    let file = FILE.get_or_init(|| {
        let place = std::env::var(PLACE).expect("it says where to note");
        let path = Path::new(&place).join(format!("done.{}", std::process::id()));
        OpenOptions::new().append(true).create(true).open(path).expect("a file")
    });
    let mut file = file;
    file.write_all(format!("{number}\n").as_bytes()).map_err(|error| error.to_string())?;
    Ok(number)
}

/// The same, acknowledged before it is run: who is killed in it has lost it.
#[job(crate = pikake_jobs, name = "faults.record_early", acks = "early", retries = 5, backoff(first = "100ms", cap = "500ms"))]
pub(crate) async fn record_early(number: u64) -> Result<u64, String> {
    // So long that all of a worker's jobs are under way when it is killed.
    sleep(EARLY).await.map_err(|why| why.to_string())?;
    record.run(number).await
}

/// All that was noted, in no order.
pub(crate) fn recorded(place: &Path) -> Vec<u64> {
    let files = fs::read_dir(place).expect("the folder is there").flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().starts_with("done."));
    let texts = files.map(|file| fs::read_to_string(file.path()).expect("it can be read"));
    texts
        .flat_map(|text| {
            text.lines().map(|line| line.parse().expect("a number")).collect::<Vec<_>>()
        })
        .collect()
}

/// Starts a worker.
pub(crate) fn start(url: &str, place: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    // A test harness is to run nothing but the test that plays the role.
    command.args(["role", "--exact"]).env(URL, url).env(PLACE, place).stdout(Stdio::null());
    command.spawn().expect("it can be started")
}

/// Works, if this is a worker's process; until it is killed.
pub(crate) fn play() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    Kernel::new().expect("a kernel").run(async {
        loop {
            let app = App::new(&url)
                .expect("a URL")
                .jobs((record, record_early))
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
