//! Rate limits of jobs, and of the values of an argument.

use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, Rate};
use pikake_macros::job;
use pikake_traps::{sleep, timeout_after};

use crate::{Running, SECOND, Stage, add, app, in_worlds, note, noted, stage};

#[job(crate = pikake_jobs, name = "tests.call", rate = "6/m")]
async fn call() {
    note("call");
}

#[job(crate = pikake_jobs, rate = "0.1/s", rate_by = "user")]
async fn call_for(what: String, user: String) {
    note(&format!("{what} for {user}"));
}

/// Sends some calls, which seeds begin in any order.
async fn send(count: u32) {
    for _ in 0..count {
        call::delay().await.unwrap();
    }
}

#[test]
fn runs_are_spaced_by_their_rate() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([call::JOB])).await;
        send(4).await;
        sleep(100 * SECOND).await.unwrap();
        send(2).await;
        sleep(100 * SECOND).await.unwrap();
        worker.end().await;
        let calls = ["0 call", "10 call", "20 call", "30 call", "100 call", "110 call"];
        assert_eq!(*events.borrow(), calls);
    });
}

#[test]
fn each_value_of_an_argument_has_the_rate_for_itself() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([call_for::JOB])).await;
        for user in ["a", "b", "b", "a"] {
            call_for::delay("call".into(), user.into()).await.unwrap();
        }
        sleep(100 * SECOND).await.unwrap();
        worker.end().await;
        let mut events = events.take();
        events.sort();
        assert_eq!(events, ["0 call for a", "0 call for b", "10 call for a", "10 call for b"]);
    });
}

#[test]
fn jobs_without_a_rate_pass_those_that_wait() {
    in_worlds(async || {
        let Stage { worker, .. } =
            stage(|app| app.jobs([call::JOB, add::JOB]).concurrency(1).prefetch(10)).await;
        noted();
        send(4).await;
        let sum = add::delay(1, 2).await.unwrap();
        assert_eq!(timeout_after(SECOND, sum.wait()).await.unwrap().unwrap(), 3);
        worker.end().await;
    });
}

#[test]
fn a_rate_is_set_while_runs_wait() {
    in_worlds(async || {
        let Stage { app, worker, events, .. } = stage(|app| app.jobs([call::JOB])).await;
        send(6).await;
        sleep(15 * SECOND).await.unwrap();
        assert!(app.set_rate("tests.call", Some("1/s".parse().unwrap())));
        sleep(SECOND + SECOND / 2).await.unwrap();
        assert!(app.set_rate("tests.call", None));
        sleep(SECOND).await.unwrap();
        worker.end().await;
        let calls = ["0 call", "10 call", "15 call", "16 call", "16 call", "16 call"];
        assert_eq!(*events.borrow(), calls);
    });
}

/// Seven hundred of the longest intervals are longer than the clock counts.
#[test]
fn runs_wait_until_the_end_of_the_clock() {
    in_worlds(async || {
        let (app, _) = app();
        let app: App = app.jobs([call::JOB]).prefetch(1_000);
        assert!(app.set_rate("tests.call", Some(Rate::spaced(Duration::MAX))));
        let worker = Running::start(&app, SECOND).await;
        let events = noted();
        send(700).await;
        sleep(100 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["0 call"]);
        assert!(app.set_rate("tests.call", None));
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 700);
    });
}

#[test]
fn runs_that_wait_are_requeued_by_a_shutdown() {
    in_worlds(async || {
        let (app, store) = app();
        let worker = Running::start(&app.jobs([call::JOB]), 60 * SECOND).await;
        let events = noted();
        send(4).await;
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 1);
        assert_eq!(*events.borrow(), ["0 call"]);
        let app = App::on(Rc::new(store.open())).jobs([call::JOB]);
        let worker = Running::start(&app, SECOND).await;
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 3);
    });
}

#[test]
fn a_run_that_expires_while_it_waits_is_revoked() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([call::JOB])).await;
        send(1).await;
        sleep(SECOND).await.unwrap();
        call::with().expires(5 * SECOND).send().await.unwrap();
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.revoked, 1);
        assert_eq!(*events.borrow(), ["0 call"]);
    });
}
