//! The commands that ask and control workers: on a database, where the broker keeps what was said,
//! and on RabbitMQ.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, Running, application, pikake, wait_for};

/// On a database, and on RabbitMQ if there is one.
fn places() -> Vec<Place> {
    [Some(Place::new()), xtask::fresh_url().map(Place::at)].into_iter().flatten().collect()
}

/// The jobs that run, as `running` prints them.
fn running(place: &Place) -> Vec<Value> {
    let running = place.run(&pikake(), &["running", "--json"]).json();
    running["jobs"].as_array().expect("a list").clone()
}

/// Waits until this many workers answer: one that has begun a moment ago may not yet.
fn until_workers_answer(place: &Place, count: usize) {
    wait_for("answers", || {
        let told = place.run(&pikake(), &["workers", "--json"]).json();
        let workers = told["workers"].as_array().expect("a list");
        workers.iter().filter(|worker| !worker["pid"].is_null()).count() == count
    });
}

/// Sends a job that naps for ten minutes, and waits for its begin. Returns its id.
fn nap(place: &Place) -> String {
    let begun = place.count(".begun");
    let id = place.pikake(&["send", "nap", &place.argument(), "600000"]);
    wait_for("the job", || place.count(".begun") > begun);
    id
}

#[test]
fn workers_and_their_jobs_are_listed() {
    for place in places() {
        place.run(&pikake(), &["send", "add", "1", "2", "--queue", "other"]).good();
        let line = ["worker", "--name", "one@here", "--concurrency", "3"];
        let worker = place.worker(&application(), &line);
        let _other =
            place.worker(&application(), &["worker", "--name", "two@there", "--queue", "other"]);
        let id = nap(&place);
        until_workers_answer(&place, 2);
        let told = place.run(&pikake(), &["workers", "--json"]).json();
        let of = |name: &str| {
            let workers = told["workers"].as_array().expect("a list");
            workers.iter().find(|worker| worker["name"] == name).expect("it answers").clone()
        };
        let one = of("one@here");
        assert_eq!((&one["running"], &one["concurrency"]), (&json!(1), &json!(3)), "{told}");
        assert_eq!(one["pid"], json!(worker.id()));
        assert_eq!(of("two@there")["queues"], json!(["other"]));
        let text = place.pikake(&["workers"]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..4], ["worker", "running", "at", "most"]);
        assert_eq!(rows[1][..3], ["one@here", "1", "3"], "{text}");

        let jobs = running(&place);
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        assert_eq!((&jobs[0]["id"], &jobs[0]["name"]), (&json!(id), &json!("nap")));
        assert_eq!((&jobs[0]["worker"], &jobs[0]["queue"]), (&json!("one@here"), &json!("pikake")));
        let text = place.pikake(&["running"]);
        assert!(
            text.starts_with("id ") && text.contains(&id) && text.contains("one@here"),
            "{text}"
        );

        let status = place.run(&pikake(), &["status", "--json"]).json();
        assert_eq!(status["running"][0]["id"], json!(id), "{status}");
        assert_eq!(place.counts("pikake")["taken"], 1);
        assert!(place.pikake(&["status"]).contains(&id));
        // Only of the queues that were asked for.
        let status = place.run(&pikake(), &["status", "other", "--json"]).json();
        assert_eq!(status["running"], json!([]), "{status}");
    }
}

#[test]
fn progress_of_jobs_is_shown() {
    for place in places() {
        let _worker = place.worker(&application(), &["worker"]);
        place.pikake(&["send", "import", "600000", "--id", "it"]);
        let told = json!({"current": 3, "total": 10});
        wait_for("its progress", || {
            running(&place).first().is_some_and(|job| job["progress"] == told)
        });
        let text = place.pikake(&["running"]);
        assert_eq!(text.lines().nth(1).and_then(|row| row.split_whitespace().last()), Some("3/10"));
        // RabbitMQ has the outcome for the sender alone.
        if place.url().starts_with("sqlite:") {
            let result = || place.run(&pikake(), &["result", "it", "--json"]);
            wait_for("its stored progress", || result().out.contains("PROGRESS"));
            assert_eq!(result().json(), json!({"id": "it", "state": "PROGRESS", "progress": told}));
            let said = "job it has not ended: its progress is 3/10";
            place.run(&pikake(), &["result", "it"]).failed(4, &[said]);
        }
    }
}

#[test]
fn cancelled_jobs_end() {
    for place in places() {
        let worker = place.worker(&application(), &["worker"]);
        until_workers_answer(&place, 1);
        let waiting = |id: &str| {
            let begun = place.count(".begun");
            let line = ["send", "nap", &place.argument(), "600000", "--wait", "--id", id];
            let waiting = Running::start(place.command(&pikake(), &line));
            wait_for("the job", || place.count(".begun") > begun);
            waiting
        };
        // By the program and by the application, under both names.
        for (program, command) in [
            (pikake(), "cancel"),
            (pikake(), "revoke"),
            (application(), "cancel"),
            (application(), "revoke"),
        ] {
            let id = format!("{command}-{}", place.count(".begun"));
            let waiting = waiting(&id);
            // Without `--terminate`, a job that runs goes on.
            let told = place.run(&program, &[command, &id]).good();
            assert_eq!(told, format!("job {id} is revoked: 1 worker answered"));
            assert_eq!(running(&place).len(), 1);
            let told = place.run(&program, &[command, &id, "--terminate", "--json"]).json();
            assert_eq!((&told["id"], &told["terminate"]), (&json!(id), &json!(true)));
            assert_eq!(told["answers"].as_array().map(Vec::len), Some(1), "{told}");
            waiting.end().failed(1, &["nap was revoked"]);
        }
        // One that has not begun never does.
        let later = ["send", "nap", &place.argument(), "1", "--id", "later", "--countdown", "3"];
        place.pikake(&later);
        let begun = place.count(".begun");
        place.pikake(&["cancel", "later"]);
        wait_for("its end", || place.counts("pikake")["delayed"] == 0);
        wait_for("its end", || place.counts("pikake")["ready"] == 0);
        worker.signal(Signal::TERM);
        assert_eq!(worker.end().code, Some(0));
        assert_eq!(place.count(".begun"), begun);
    }
}

#[test]
fn paused_queue_keeps_its_jobs() {
    for place in places() {
        let _worker = place.worker(&application(), &["worker"]);
        until_workers_answer(&place, 1);
        assert_eq!(place.pikake(&["pause", "pikake"]), "queue pikake is paused: 1 worker answered");
        place.pikake(&["send", "add", "1", "2", "--id", "sum"]);
        let late = ["send", "add", "2", "3", "--wait", "--timeout", "3"];
        place.run(&pikake(), &late).failed(4, &[]);
        let status = place.run(&pikake(), &["status", "pikake", "--json"]).json();
        assert_eq!(status["paused"], json!(["pikake"]), "{status}");
        assert_eq!(place.counts("pikake")["ready"], 2);
        assert!(place.pikake(&["workers"]).contains("pikake (paused)"));
        let told = place.run(&application(), &["resume", "pikake", "--json"]).json();
        assert_eq!((&told["queue"], &told["paused"]), (&json!("pikake"), &json!(false)));
        wait_for("the jobs", || place.counts("pikake")["ready"] == 0);
        let status = place.run(&pikake(), &["status", "pikake", "--json"]).json();
        assert_eq!(status["paused"], json!([]), "{status}");
    }
}

#[test]
fn nobody_answers_without_workers() {
    let place = Place::new();
    place.pikake(&["send", "nap", &place.argument(), "1", "--id", "never"]);
    assert_eq!(place.pikake(&["workers"]), "no worker answers");
    assert_eq!(place.pikake(&["running"]), "no job runs");
    // The database keeps it for workers that start later.
    assert_eq!(place.pikake(&["cancel", "never"]), "job never is revoked: 0 workers answered");
    let _worker = place.worker(&application(), &["worker"]);
    wait_for("its end", || place.run(&pikake(), &["result", "never"]).code == Some(1));
    assert_eq!(place.count(".begun"), 0);

    let Some(place) = xtask::fresh_url().map(Place::at) else { return };
    place.run(&pikake(), &["cancel", "never"]).failed(3, &["no worker has answered"]);
}

#[test]
fn state_file_keeps_revoked_jobs() {
    let Some(place) = xtask::fresh_url().map(Place::at) else { return };
    let file = place.folder().join("state");
    let line = ["worker", "--statedb", file.to_str().expect("text"), "--events"];
    let worker = place.worker(&application(), &line);
    until_workers_answer(&place, 1);
    place.pikake(&["send", "nap", &place.argument(), "1", "--id", "later", "--countdown", "20"]);
    place.pikake(&["cancel", "later"]);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));
    let mut worker = place.worker(&application(), &[&line[..], &["--log-level", "info"]].concat());
    worker.until("revoked");
    assert_eq!(place.count(".begun"), 0);
}
