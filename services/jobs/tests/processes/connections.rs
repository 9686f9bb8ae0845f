//! The number of connections to RabbitMQ: one, with 1, 20 and 100 jobs at a time in tasks, threads
//! and processes.

use std::cell::Cell;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::App;
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_sync::Event;
use pikake_traps::{blocking, sleep, spawn};

thread_local! {
    /// How many jobs wait for [`GO_ON`], and what they wait for.
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static GO_ON: Rc<Event> = Rc::default();
}

#[job(crate = pikake_jobs)]
async fn small(number: usize) -> usize {
    number
}

/// Sends another job, and stays until it is told to go on.
#[job(crate = pikake_jobs)]
async fn sends(number: usize) -> Result<usize, String> {
    let value = small::delay(number).await.map_err(|error| error.to_string())?;
    WAITING.set(WAITING.get() + 1);
    GO_ON.with(Rc::clone).wait().await.map_err(|error| error.to_string())?;
    value.wait().await.map_err(|error| error.to_string())
}

#[job(crate = pikake_jobs)]
fn in_a_thread(number: usize) -> usize {
    std::thread::sleep(Duration::from_millis(10));
    number
}

/// Says that it runs, and stays until it is told to go on.
#[job(crate = pikake_jobs, process)]
fn in_a_process(folder: PathBuf, number: usize) -> u32 {
    std::fs::write(folder.join(number.to_string()), "").expect("the folder is there");
    while !folder.join("go on").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::id()
}

/// How many connections there are to a virtual host, and how many channels.
fn counted(rabbit: &xtask::Server, host: &str) -> (usize, usize) {
    let lines = rabbit.command("ctl list_connections vhost channels --no-table-headers");
    let ours = lines.iter().filter_map(|line| line.strip_prefix(host));
    let channels: Vec<usize> =
        ours.map(|channels| channels.trim().parse().expect("a number")).collect();
    (channels.len(), channels.iter().sum())
}

fn app(url: &str) -> App {
    App::new(url).unwrap().jobs([small::JOB, sends::JOB, in_a_thread::JOB, in_a_process::JOB])
}

/// Where a process finds the URL of its worker, which it could connect to as well.
fn note(worker: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("connections-of-{worker}"))
}

/// Runs the jobs of a worker of this test; returns in other processes.
pub(crate) fn run_if_child() {
    if let Ok(url) = std::fs::read_to_string(note(parent_id())) {
        app(&url).run_if_child();
    }
}

pub(crate) fn one_connection_for_all_jobs() {
    let Some(rabbit) = xtask::rabbitmq() else { return };
    let note = note(std::process::id());
    for jobs in [1, 20, 100] {
        let url = rabbit.fresh_url();
        std::fs::write(&note, &url).unwrap();
        let host = url.rsplit('/').next().expect("a virtual host").to_owned();
        let rabbit = rabbit.clone();
        Kernel::new().unwrap().run(async move {
            // Besides those that wait, one at a time.
            let app = app(&url).processes(jobs).concurrency(2 * jobs + 1).connect().await.unwrap();
            let worker = spawn(app.run_worker());
            WAITING.set(0);
            GO_ON.with(|go_on| go_on.clear());
            let (mut waiting, mut threaded, mut processed) = (Vec::new(), Vec::new(), Vec::new());
            let folder = tempfile::tempdir().unwrap();
            let begun = || std::fs::read_dir(folder.path()).unwrap().count();
            for number in 0..jobs {
                waiting.push(sends::delay(number).await.unwrap());
            }
            for number in 0..jobs {
                processed.push(in_a_process::delay(folder.path().into(), number).await.unwrap());
            }
            while WAITING.get() < jobs || begun() < jobs {
                sleep(Duration::from_millis(5)).await.unwrap();
            }
            for number in 0..jobs {
                threaded.push(in_a_thread::delay(number).await.unwrap());
            }
            // Asked in a thread: the broker is not to find the connection idle for long.
            let (connections, channels) =
                blocking(move || counted(&rabbit, &host)).await.unwrap();
            println!(
                "{jobs} jobs at a time, and in {jobs} processes: {connections} connection, {channels} channels"
            );
            assert_eq!(connections, 1);
            assert!(channels <= 8, "{channels} channels");
            GO_ON.with(|go_on| go_on.set());
            for (number, handle) in waiting.iter().enumerate().chain(threaded.iter().enumerate()) {
                assert_eq!(handle.wait().await.unwrap(), number);
            }
            std::fs::write(folder.path().join("go on"), "").unwrap();
            let mut processes = std::collections::BTreeSet::new();
            for handle in processed {
                processes.insert(handle.wait().await.unwrap());
            }
            assert_eq!(processes.len(), jobs);
            worker.request_cancel("the test is over");
            worker.await.unwrap().unwrap();
        });
    }
    std::fs::remove_file(note).unwrap();
}
