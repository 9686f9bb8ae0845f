//! SQLite under `kill -9`: whoever publishes and whoever works is killed again and again.
//!
//! The processes are this test itself, told by the environment what to be. Each notes in a file
//! what it has done: a publisher what was confirmed, a worker what it has run, before it
//! acknowledges it.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{Broker, Message, Outcome, QueueOptions, SqliteBroker};
use pikake_kernel::Kernel;
use pikake_traps::spawn;
use tempfile::TempDir;

const ROLE: &str = "PIKAKE_KILLS_ROLE";
const PLACE: &str = "PIKAKE_KILLS_PLACE";
/// Short, so that the messages of killed workers come back in the time of the test.
const LEASE: Duration = Duration::from_secs(1);
const JOBS: usize = 10_000;
const AT_ONCE: usize = 50;
const KILLED_EVERY: Duration = Duration::from_millis(200);
/// Workers that have acknowledged nothing are killed after so long.
const SPARED: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(240);

fn message(number: usize) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(number.to_string());
    message.body = b"[[], {}, {}]".to_vec();
    message
}

fn note(place: &Path, file: &str, what: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(place.join(file)).unwrap();
    file.write_all(format!("{what}\n").as_bytes()).unwrap();
}

fn noted(place: &Path, file: &str) -> Vec<usize> {
    let text = fs::read_to_string(place.join(file)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

async fn open(place: &Path) -> Rc<SqliteBroker> {
    let broker = SqliteBroker::open_with_lease(place.join("jobs.db"), LEASE).await.unwrap();
    broker.declare("work", &QueueOptions::default()).await.unwrap();
    Rc::new(broker)
}

/// Publishes what has not been confirmed yet.
async fn publisher(place: &Path) {
    let broker = open(place).await;
    let confirmed: BTreeSet<usize> = noted(place, "confirmed").into_iter().collect();
    let missing: Vec<usize> = (0..JOBS).filter(|number| !confirmed.contains(number)).collect();
    for some in missing.chunks(AT_ONCE) {
        let mut tasks = Vec::new();
        for number in some {
            let (broker, number, place) = (broker.clone(), *number, place.to_owned());
            tasks.push(spawn(async move {
                broker.publish("work", message(number), None).await.unwrap();
                note(&place, "confirmed", &number.to_string());
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
    broker.close().await.unwrap();
}

/// Works until it is killed.
async fn worker(place: &Path) {
    let broker = open(place).await;
    let mut deliveries = broker.consume("work", AT_ONCE as u16).await.unwrap();
    while let Some(delivery) = deliveries.next().await.unwrap() {
        let (broker, place) = (broker.clone(), place.to_owned());
        let work = spawn(async move {
            let job = delivery.message.job().unwrap().to_owned();
            note(&place, "run", &job);
            let outcome = Outcome::success(delivery.attempt.into());
            broker.store(&delivery.message, outcome).await.unwrap();
            broker.ack(delivery.receipt).await.unwrap();
            note(&place, "acknowledged", &job);
        });
        work.detach();
    }
}

/// What a process does that was started by a test below; nothing in others.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = std::env::var(PLACE).unwrap();
    let kernel = Kernel::new().unwrap();
    match role.as_str() {
        "publisher" => kernel.run(publisher(Path::new(&place))),
        _ => kernel.run(worker(Path::new(&place))),
    }
}

fn start(role: &str, place: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact"]).env(ROLE, role).env(PLACE, place);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn nothing_is_lost_when_processes_are_killed() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    let begun = Instant::now();
    let (mut kills, mut published) = (0, None);
    let (mut before, mut spared_until) = (0, SPARED);
    let mut publisher = Some(start("publisher", place));
    let mut workers = vec![start("worker", place), start("worker", place)];
    loop {
        std::thread::sleep(KILLED_EVERY);
        if let Some(mut child) = publisher.take() {
            publisher = match child.try_wait().unwrap() {
                Some(status) => {
                    assert!(status.success(), "the publisher failed");
                    published = Some(begun.elapsed());
                    None
                }
                None if kills % 3 == 0 => {
                    kill(child);
                    Some(start("publisher", place))
                }
                None => Some(child),
            };
        }
        // Each has time for something, however slow the disk.
        let acknowledged = noted(place, "acknowledged").len();
        if acknowledged > before || begun.elapsed() > spared_until {
            kill(workers.remove(0));
            workers.push(start("worker", place));
            kills += 1;
            (before, spared_until) = (acknowledged, begun.elapsed() + SPARED);
        }
        let run: BTreeSet<usize> = noted(place, "run").into_iter().collect();
        if published.is_some() && run.len() >= JOBS {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{} of {JOBS} were run in time", run.len());
    }
    // The last ones are given time to be acknowledged.
    let counts = Kernel::new().unwrap().run(async {
        let broker = open(place).await;
        loop {
            let counts = broker.counts("work").await.unwrap();
            if (counts.ready, counts.taken) == (0, Some(0)) || begun.elapsed() > PATIENCE {
                break counts;
            }
            pikake_traps::sleep(KILLED_EVERY).await.unwrap();
        }
    });
    workers.into_iter().for_each(kill);
    assert_eq!((counts.ready, counts.taken, counts.dead), (0, Some(0), 0));
    let ran = noted(place, "run");
    let different: BTreeSet<usize> = ran.iter().copied().collect();
    assert_eq!(different, (0..JOBS).collect(), "each was run");
    println!(
        "{JOBS} jobs, {kills} kills, {} run twice, in {:?}",
        ran.len() - JOBS,
        begun.elapsed()
    );
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Leases, and files beside the database.
#[test]
fn killed_processes_leave_nothing_behind() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    let publisher = start("publisher", place);
    wait_for("a message", || !noted(place, "confirmed").is_empty());
    let worker = start("worker", place);
    wait_for("a job", || !noted(place, "run").is_empty());
    kill(worker);
    kill(publisher);
    let is_empty = |table: &str| {
        let db = rusqlite::Connection::open(place.join("jobs.db")).unwrap();
        let count = format!("SELECT count(*) FROM {table}");
        db.query_row(&count, [], |row| row.get::<_, u32>(0)).unwrap() == 0
    };
    let worker = start("worker", place);
    wait_for("the end of the last job", || is_empty("message"));
    wait_for("the end of the last lease", || is_empty("lease"));
    kill(worker);
    let files = fs::read_dir(place).unwrap().map(|file| file.unwrap().file_name());
    let files: BTreeSet<_> = files.map(|name| name.into_string().unwrap()).collect();
    let known = ["acknowledged", "confirmed", "jobs.db", "jobs.db-shm", "jobs.db-wal", "run"];
    assert_eq!(files, known.map(str::to_owned).into());
}
