//! Outcomes of a worker with two connections while the broker takes no messages. On the broker for
//! tests, in virtual time.

use std::future::Future;
use std::time::Duration;

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::{App, current_job};
use pikake_macros::job;
use pikake_traps::{elapsed_since, now, sleep, timeout_after};
use tracing::Level;

use super::fake::{SECOND, in_a_world, serving};
use crate::lines::Lines;
use crate::{Running, add};

/// The length of a value of which some dozens are kept.
const LONG: usize = 1 << 20;

/// What is sent comes in the alarm.
const LATER: Duration = Duration::from_secs(5);

#[job(crate = pikake_jobs, name = "tests.late")]
async fn late(number: i64) -> i64 {
    sleep(LATER).await.expect("nobody interrupts it");
    number
}

#[job(crate = pikake_jobs, name = "tests.long")]
async fn long(length: usize) -> String {
    "x".repeat(length)
}

/// Tells of more progress than outcomes are kept.
#[job(crate = pikake_jobs, name = "tests.tells")]
async fn tells() -> u32 {
    for _ in 0..8 {
        current_job().progress("x".repeat(10 * LONG));
        sleep(SECOND).await.expect("nobody interrupts it");
    }
    7
}

fn app() -> App {
    let app = App::new("amqp://127.0.0.1").unwrap().default_queue("jobs");
    app.jobs([add::JOB, late::JOB, long::JOB, tells::JOB]).connections(2).concurrency(2)
}

/// With an application that sends, and one whose worker takes two messages at a time.
fn with_worker<F: Future<Output = ()>>(
    grace: Duration,
    test: impl FnOnce(Server, App, App, Running) -> F,
) {
    in_a_world(async {
        let server = Server::new();
        let _serving = serving(&server).await.cancel_on_drop();
        let sender = app().connect().await.unwrap();
        let app = app().connect().await.unwrap();
        let worker = Running::start(&app, grace).await;
        test(server, sender, app, worker).await;
    });
}

#[test]
fn awaited_jobs_drain_and_their_outcomes_come_later() {
    with_worker(SECOND, async |server, sender, app, worker| {
        let mut jobs = Vec::new();
        for number in 0..100 {
            jobs.push(add::with(number, 1).on(&sender).countdown(LATER).send().await.unwrap());
        }
        let followed = late::with(1).then(add::after(1)).on(&sender).send().await.unwrap();
        server.block(Some("memory"));
        sleep(10 * SECOND).await.unwrap();
        // The job that follows another one is a durable message, and so its message stays.
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 1));
        assert_eq!(app.stats().all.done, 100);
        let none = timeout_after(SECOND, jobs.pop().unwrap().wait()).await;
        assert!(none.is_err(), "{none:?}");
        server.block(None);
        for (number, job) in (0..).zip(jobs) {
            let value = timeout_after(10 * SECOND, job.wait()).await.expect("it comes");
            assert_eq!(value.unwrap(), number + 1);
        }
        let value = timeout_after(60 * SECOND, followed.wait()).await.expect("it comes");
        assert_eq!(value.unwrap(), 2);
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.given_back), (102, 0));
    });
}

#[test]
fn outcomes_without_room_keep_their_messages() {
    with_worker(SECOND, async |server, sender, _app, worker| {
        let mut jobs = Vec::new();
        for _ in 0..80 {
            jobs.push(long::with(LONG).on(&sender).countdown(LATER).send().await.unwrap());
        }
        server.block(Some("memory"));
        sleep(20 * SECOND).await.unwrap();
        let left = server.ready("jobs") + server.unacked("jobs");
        assert!((80 - 64..=80 - 60).contains(&left), "{left}");
        assert!(server.unacked("jobs") >= 2);
        server.block(None);
        for job in jobs {
            let value = timeout_after(60 * SECOND, job.wait()).await.expect("it comes");
            assert_eq!(value.unwrap().len(), LONG);
        }
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
        worker.end().await;
    });
}

#[test]
fn progress_takes_no_room_of_outcomes() {
    with_worker(SECOND, async |server, sender, _app, worker| {
        let job = tells::with().on(&sender).send().await.unwrap();
        server.block(Some("memory"));
        sleep(15 * SECOND).await.unwrap();
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
        server.block(None);
        let value = timeout_after(10 * SECOND, job.wait()).await.expect("it comes");
        assert_eq!(value.unwrap(), 7);
        worker.end().await;
    });
}

#[test]
fn a_worker_that_ends_sends_outcomes_within_its_grace() {
    with_worker(20 * SECOND, async |server, sender, _app, worker| {
        let job = add::with(3, 3).on(&sender).countdown(LATER).send().await.unwrap();
        server.block(Some("memory"));
        sleep(10 * SECOND).await.unwrap();
        assert_eq!(server.unacked("jobs"), 0);
        worker.shutdown.warm();
        sleep(10 * SECOND).await.unwrap();
        assert!(!worker.task.is_finished());
        server.block(None);
        let value = timeout_after(5 * SECOND, job.wait()).await.expect("it comes");
        assert_eq!(value.unwrap(), 6);
        timeout_after(5 * SECOND, worker.task).await.unwrap().unwrap().unwrap();
    });
}

#[test]
fn a_worker_that_ends_in_an_alarm_says_what_is_lost() {
    let (lines, _guard) = Lines::collect(&["pikake_jobs"], Level::WARN);
    with_worker(20 * SECOND, async |server, sender, _app, worker| {
        let job = add::with(3, 3).on(&sender).countdown(LATER).send().await.unwrap();
        server.block(Some("memory"));
        sleep(10 * SECOND).await.unwrap();
        let begun = now();
        worker.shutdown.warm();
        let report = timeout_after(60 * SECOND, worker.task).await.unwrap().unwrap().unwrap();
        let took = elapsed_since(begun);
        assert!(took >= 20 * SECOND && took < 40 * SECOND, "{took:?}");
        assert_eq!((report.stats.all.done, report.left.len()), (1, 0));
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
        assert!(timeout_after(SECOND, job.wait()).await.is_err());
    });
    let lines = lines.take();
    assert!(lines.iter().any(|line| line.contains("are lost") && line.contains('1')), "{lines:?}");
}
