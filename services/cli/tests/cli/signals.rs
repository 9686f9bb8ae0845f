//! Signals to a worker and to a program that waits for a job: no job is lost.

use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Place, Running, application, pikake, wait_for};

/// A worker with one job that naps so long.
fn napping(place: &Place, arguments: &[&str], millis: &str) -> (Running, String) {
    let arguments = [&["worker", "--json"], arguments].concat();
    let worker = place.worker(&application(), &arguments);
    let id = place.pikake(&["send", "nap", &place.argument(), millis]);
    wait_for("the job", || place.count(".begun") == 1);
    (worker, id)
}

#[test]
fn first_signal_waits_for_running_jobs() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let (worker, _) = napping(&place, &[], "700");
        worker.signal(signal);
        let ended = worker.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(place.count(".ended"), 1);
        let report = ended.json();
        assert_eq!((&report["jobs"]["nap"]["done"], &report["left"]), (&json!(1), &json!([])));
        let counts = place.counts("pikake");
        assert_eq!((&counts["ready"], &counts["taken"]), (&json!(0), &json!(0)));
    }
}

#[test]
fn hangup_is_a_warm_shutdown() {
    let place = Place::new();
    let (mut worker, _) = napping(&place, &["--grace", "0.2"], "600000");
    worker.signal(Signal::HUP);
    worker.until("SIGHUP: waiting for running jobs");
    worker.end().failed(143, &["interrupted and requeued: 1 job"]);
}

#[test]
fn ignored_hangup_stays_ignored() {
    let place = Place::new();
    let application = application();
    let line = ["-c", r#"trap "" HUP; exec "$0" worker"#, application.to_str().unwrap()];
    let worker = place.worker(Path::new("/bin/sh"), &line);
    worker.signal(Signal::HUP);
    assert_eq!(place.pikake(&["send", "add", "1", "2", "--wait"]), "3");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.err.contains("SIGHUP"), "{ended:?}");
}

#[test]
fn job_is_requeued_after_the_grace() {
    let place = Place::new();
    let (worker, id) = napping(&place, &["--grace", "0.2"], "600000");
    worker.signal(Signal::TERM);
    let ended = worker.end();
    ended.failed(143, &["interrupted and requeued: 1 job"]);
    assert_eq!(ended.json()["left"], json!([{ "id": id, "job": "nap" }]));
    let counts = place.counts("pikake");
    assert_eq!((&counts["ready"], &counts["taken"]), (&json!(1), &json!(0)));
}

#[test]
fn second_signal_requeues_at_once() {
    let place = Place::new();
    let (mut worker, id) = napping(&place, &[], "600000");
    worker.signal(Signal::INT);
    worker.until("SIGINT: waiting for running jobs");
    assert_eq!(place.counts("pikake")["taken"], 1, "it still runs");
    worker.signal(Signal::INT);
    worker.until("interrupting running jobs");
    let ended = worker.end();
    ended.failed(130, &[]);
    assert_eq!(ended.json()["left"][0]["id"], json!(id));
    assert_eq!(place.counts("pikake")["ready"], 1);
}

#[test]
fn third_signal_ends_the_process_losing_nothing() {
    let place = Place::new();
    let mut worker = place.worker(&application(), &["worker"]);
    place.pikake(&["send", "stubborn", &place.argument()]);
    let note = place.folder().join("stubborn.begun");
    wait_for("the job", || note.exists());
    for said in ["waiting for running jobs", "interrupting running jobs"] {
        worker.signal(Signal::TERM);
        worker.until(said);
    }
    worker.signal(Signal::TERM);
    worker.end().failed(143, &[]);
    std::fs::remove_file(&note).unwrap();
    let _other = place.worker(&application(), &["worker"]);
    wait_for("the job, in another worker", || note.exists());
}

#[test]
fn jobs_survive_many_workers() {
    const JOBS: usize = 40;
    let place = Place::new();
    for _ in 0..JOBS {
        place.pikake(&["send", "nap", &place.argument(), "200"]);
    }
    for round in 1..=3 {
        let arguments = ["worker", "--concurrency", "2", "--grace", "0.01"];
        let worker = place.worker(&application(), &arguments);
        wait_for("a few jobs", || place.count(".ended") >= round * 3);
        worker.signal(Signal::TERM);
        let code = worker.end().code;
        assert!(matches!(code, Some(0 | 143)), "{code:?}");
    }
    let counts = place.counts("pikake");
    let ready = counts["ready"].as_u64().unwrap();
    assert_eq!(counts["taken"], 0);
    assert!(ready > 0, "there is something left to do");
    let worker = place.worker(&application(), &["worker", "--json"]);
    wait_for("all jobs", || place.count(".ended") == JOBS);
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.json()["all"]["done"], json!(ready));
    assert_eq!(place.counts("pikake")["ready"], 0);
}

#[test]
fn signal_interrupts_a_wait_for_a_job() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let place = Place::new();
        let waiting =
            Running::start(place.command(&pikake(), &["send", "add", "1", "2", "--wait"]));
        let database = place.folder().join("jobs.db");
        wait_for("the job", || {
            database.exists() && place.run(&pikake(), &["status", "pikake"]).code == Some(0)
        });
        wait_for("the job", || place.counts("pikake")["ready"] == 1);
        waiting.signal(signal);
        let ended = waiting.end();
        ended.failed(code, &[]);
        assert_eq!(ended.out, "");
        assert_eq!(place.counts("pikake")["ready"], 1, "the job goes on");
    }
}

#[test]
fn signal_during_setup_ends_the_worker() {
    for (setup, signals) in [("fails", 1), ("goes on", 1), ("deaf", 3)] {
        let place = Place::new();
        let mut command = place.command(&application(), &["worker"]);
        command.env("TEST_APP_SETUP", setup);
        let mut worker = Running::start(command);
        worker.until("setting up");
        for _ in 0..signals {
            worker.signal(Signal::TERM);
            // Two of a kind at once are one.
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        let begun = std::time::Instant::now();
        let ended = worker.end();
        assert!(begun.elapsed().as_secs() < 30, "{setup}: {ended:?}");
        // One that has begun after all has nothing to give back.
        let code = if setup == "goes on" { 0 } else { 143 };
        ended.failed(code, &[]);
        assert!(!ended.err.contains("error"), "{setup}: {ended:?}");
    }
}
