//! SQLite with a process that hangs or is killed: its messages are delivered again when its lease
//! expires.
//!
//! That process is this test itself; the environment says that it is to take a message.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pikake_jobs::{Broker, JobId, Message, OutcomeState, QueueOptions, SqliteBroker};
use pikake_kernel::Kernel;
use pikake_traps::{sleep, timeout_after, wall_time};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

const PLACE: &str = "PIKAKE_HANGS_PLACE";
const PATIENCE: Duration = Duration::from_secs(60);

async fn open(place: &Path) -> SqliteBroker {
    let broker = SqliteBroker::open(place.join("jobs.db")).await.unwrap();
    broker.declare("work", &QueueOptions::default()).await.unwrap();
    broker
}

fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message
}

/// What the process does that was started by a test below; nothing in others.
pub(crate) fn play() {
    let Ok(place) = std::env::var(PLACE) else { return };
    Kernel::new().unwrap().run(async {
        let broker = open(Path::new(&place)).await;
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        std::fs::write(Path::new(&place).join("taken"), "").unwrap();
        sleep(2 * PATIENCE).await.unwrap();
        drop(delivery);
    });
}

/// Stops a process while another connection holds the database: a process that stops in the middle
/// of a write would keep all others from writing.
fn stop(child: &Child, place: &Path) {
    let database = rusqlite::Connection::open(place.join("jobs.db")).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let child = Pid::from_child(child);
    kill_process(child, Signal::STOP).unwrap();
    waitpid(Some(child), WaitOptions::UNTRACED).unwrap();
    database.execute_batch("ROLLBACK").unwrap();
}

#[test]
fn only_a_hung_process_loses_its_messages() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact"]).env(PLACE, place).stdout(Stdio::null());
    Kernel::new().unwrap().run(async {
        let (lives, looks) = (open(place).await, open(place).await);
        lives.publish("work", message("hung"), None).await.unwrap();
        let mut hung = command.spawn().unwrap();
        while !place.join("taken").exists() {
            sleep(Duration::from_millis(10)).await.unwrap();
        }
        stop(&hung, place);
        let stopped = Instant::now();
        lives.publish("work", message("kept"), None).await.unwrap();
        let mut keeps = lives.consume("work", 1).await.unwrap();
        let kept = keeps.next().await.unwrap().unwrap();
        assert_eq!(kept.message.job(), Some("kept"));

        let mut deliveries = looks.consume("work", 10).await.unwrap();
        let delivery = timeout_after(PATIENCE, deliveries.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((delivery.message.job(), delivery.attempt), (Some("hung"), 1));
        // Its last heartbeat was a third of the lease before the signal at most.
        assert!(stopped.elapsed() > SqliteBroker::LEASE / 2, "{:?}", stopped.elapsed());
        // As long again: the living process renews its lease, though it makes no calls.
        let other = timeout_after(Duration::from_secs(12), deliveries.next()).await;
        assert!(other.is_err(), "{other:?}");
        lives.ack(kept.receipt).await.unwrap();
        looks.ack(delivery.receipt).await.unwrap();
        let counts = looks.counts("work").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (0, Some(0)));
        hung.kill().unwrap();
        hung.wait().unwrap();
    });
}

#[test]
fn an_expired_job_of_a_killed_worker_is_revoked() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact"]).env(PLACE, place).stdout(Stdio::null());
    Kernel::new().unwrap().run(async {
        let broker = open(place).await;
        let mut worker = command.spawn().unwrap();
        let mut sent = message("slow");
        sent.expires = Some(wall_time() + Duration::from_secs(5));
        broker.expect(&mut sent).await.unwrap();
        broker.publish("work", sent, None).await.unwrap();
        while !place.join("taken").exists() {
            sleep(Duration::from_millis(10)).await.unwrap();
        }
        worker.kill().unwrap();
        worker.wait().unwrap();
        let job = JobId("slow".to_owned());
        let told = timeout_after(Duration::from_secs(40), broker.wait(&job)).await;
        assert_eq!(told.expect("it is told").unwrap().state, OutcomeState::Revoked);
        assert_eq!(broker.counts("work").await.unwrap().taken, Some(0));
    });
}
