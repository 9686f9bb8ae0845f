//! Celery's own programs before a worker of this library, beside one of Celery's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pikake_jobs::{App, JobError};
use pikake_macros::job;
use pikake_traps::{Interrupted, blocking, sleep};
use serde_json::{Value, json};

use super::{Running, app, python, with_celery};

#[job(crate = pikake_jobs, name = "control.nap")]
async fn nap(seconds: u64) -> Result<u64, Interrupted> {
    sleep(Duration::from_secs(seconds)).await?;
    Ok(seconds)
}

#[job(crate = pikake_jobs, name = "control.add")]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

const NAME: &str = "pikake@here";

/// What `celery ARGUMENTS` prints.
async fn celery(python: &Path, url: &str, arguments: &str) -> String {
    let mut command = Command::new(python);
    command.args(["-m", "celery", "-b", url]).args(arguments.split(' '));
    let output = blocking(move || command.output().expect("Celery runs")).await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The answer of the worker here to `celery KIND ARGUMENTS --json`.
async fn ask(python: &Path, url: &str, kind: &str, arguments: &str) -> Value {
    let arguments = format!("{kind} --json --timeout 10 --destination {NAME} {arguments}");
    let printed = celery(python, url, &arguments).await;
    let answers = printed.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let answers = answers.unwrap_or_else(|| panic!("{arguments}: {printed}"));
    // A list of one object for `control`, an object for `inspect`.
    let answer = answers.get(0).unwrap_or(&answers);
    answer[NAME].clone()
}

async fn started(url: &str) -> (App, Running) {
    let app = app(url).named(NAME).jobs([nap::JOB, add::JOB]);
    let worker = Running::start(&app).await;
    let asked = app.control().to([NAME]);
    while asked.ping().await.unwrap().is_empty() {}
    (app, worker)
}

#[test]
fn inspect_is_answered() {
    with_celery(async |python, url| {
        let (app, worker) = started(&url).await;
        let inspect = async |arguments: &str| ask(&python, &url, "inspect", arguments).await;

        assert_eq!(inspect("ping").await, json!({"ok": "pong"}));
        let status = celery(&python, &url, "status").await;
        assert!(status.contains(NAME) && status.contains("1 node online"), "{status}");
        let job = nap::with(1_000).on(&app).send().await.unwrap();
        while app.control().running().await.unwrap().is_empty() {}
        let id = job.id().to_string();
        assert_eq!(inspect("stats").await["pool"]["max-concurrency"], 64);
        let active = inspect("active").await;
        assert_eq!((&active[0]["id"], &active[0]["args"]), (&json!(id), &json!([1_000])));
        assert_eq!(inspect("registered").await, json!(["control.add", "control.nap"]));
        assert_eq!(inspect("active_queues").await[0]["name"], "celery");
        assert_eq!(inspect("conf").await["worker_concurrency"], 64);
        assert_eq!(inspect("scheduled").await, json!([]));
        assert_eq!(inspect("reserved").await, json!([]));
        assert_eq!(inspect(&format!("query_task {id} nobody")).await[&id][0], "active");
        let report = inspect("report").await;
        assert!(report["ok"].as_str().unwrap().contains("pikake"), "{report}");
        app.control().revoke(&id, true).await.unwrap();
        assert!(matches!(job.wait().await, Err(JobError::Revoked(_))));
        worker.end().await;
    });
}

#[test]
fn control_is_executed() {
    with_celery(async |python, url| {
        let (app, worker) = started(&url).await;
        let inspect = async |arguments: &str| ask(&python, &url, "inspect", arguments).await;
        let control = async |arguments: &str| ask(&python, &url, "control", arguments).await;
        let ok = |text: &str| json!({ "ok": text });

        let job = nap::with(1_000).on(&app).send().await.unwrap();
        while app.control().running().await.unwrap().is_empty() {}
        let id = job.id().to_string();
        let set = control("rate_limit control.add 10/s").await;
        assert_eq!(set, ok("new rate limit set successfully"));
        let unknown = control("rate_limit nobody 10/s").await;
        assert_eq!(unknown, json!({"error": "unknown task"}));
        let set = control("time_limit control.add 5 10").await;
        assert_eq!(set, ok("time limits set successfully"));
        assert_eq!(control("add_consumer other").await, ok("add consumer other"));
        let elsewhere = add::with(1, 2).on(&app).queue("other").send().await.unwrap();
        assert_eq!(elsewhere.wait().await.unwrap(), 3);
        assert_eq!(control("cancel_consumer other").await, ok("no longer consuming from other"));
        assert_eq!(control("pool_grow 2").await, ok("pool will grow"));
        assert_eq!(inspect("stats").await["pool"]["max-concurrency"], 66);
        assert_eq!(control("pool_shrink 2").await, ok("pool will shrink"));
        assert_eq!(control("enable_events").await, ok("task events enabled"));

        let terminated = control(&format!("terminate SIGTERM {id}")).await;
        assert_eq!(terminated, ok(&format!("terminate: {id}")));
        assert!(matches!(job.wait().await, Err(JobError::Revoked(_))));
        control("revoke some-id").await;
        assert_eq!(inspect("revoked").await, json!([id, "some-id"]));
        celery(&python, &url, "control --timeout 1 shutdown").await;
        worker.end().await;
    });
}

#[test]
fn workers_of_both_kinds_are_seen() {
    with_celery(async |python, url| {
        let (app, worker) = started(&url).await;
        let _celery = python::Worker::start(&python, &url, "peer");
        let control = app.control().wait(Duration::from_secs(3));
        while control.ping().await.unwrap().len() < 2 {}
        let workers = control.workers().await.unwrap();
        let theirs = workers.iter().find(|worker| worker.name != NAME).unwrap();
        assert_eq!(theirs.queues, ["peer"]);
        assert!(theirs.since.is_some() && theirs.concurrency == Some(1), "{theirs:?}");
        worker.end().await;
    });
}

/// `celery events --dump` prints the events of a job.
#[test]
fn events_are_dumped() {
    with_celery(async |python, url| {
        let (app, worker) = started(&url).await;
        let mut command = Command::new(&*python);
        command.args(["-m", "celery", "-b", &url, "events", "--dump"]);
        command.env("PYTHONUNBUFFERED", "1").stdout(std::process::Stdio::piped());
        let mut dump = command.spawn().expect("Celery runs");
        let output = dump.stdout.take().expect("piped");
        let lines = std::io::BufRead::lines(std::io::BufReader::new(output));
        let (sender, printed) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        app.control().enable_events(true).await.unwrap();
        let mut seen = Vec::new();
        let wanted = ["heartbeat", "task received", "task started", "task succeeded"];
        while !wanted.iter().all(|kind| seen.iter().any(|line: &String| line.contains(kind))) {
            add::with(1, 2).on(&app).send().await.unwrap().wait().await.unwrap();
            seen.extend(printed.try_iter());
        }
        drop(printed);
        dump.kill().unwrap();
        dump.wait().unwrap();
        reading.join().unwrap();
        worker.end().await;
    });
}

/// Flower lists the worker, its queues and its job.
#[test]
fn flower_shows_workers_and_jobs() {
    with_celery(async |python, url| {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(&*python);
        command.args(["-m", "celery", "-b", &url, "flower", "--address=127.0.0.1"]);
        command.arg(format!("--port={port}")).env("FLOWER_UNAUTHENTICATED_API", "true");
        let mut flower = command.spawn().expect("Flower runs");
        let (app, worker) = started(&url).await;
        let get = async |path: &str| {
            let code =
                "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())";
            let mut command = Command::new(&*python);
            command.args(["-c", code, &format!("http://127.0.0.1:{port}/api/{path}")]);
            let output = blocking(move || command.output().expect("Python runs")).await.unwrap();
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
        };
        app.control().enable_events(true).await.unwrap();
        let (mut workers, mut jobs) = (Value::Null, Value::Null);
        let is_seen = |workers: &Value, jobs: &Value| {
            workers[NAME]["active_queues"][0]["name"] == "celery"
                && jobs.as_object().is_some_and(|jobs| {
                    jobs.values()
                        .any(|job| job["state"] == "SUCCESS" && job["name"] == "control.add")
                })
        };
        while !is_seen(&workers, &jobs) {
            add::with(1, 2).on(&app).send().await.unwrap().wait().await.unwrap();
            sleep(Duration::from_secs(1)).await.unwrap();
            workers = get("workers?refresh=1").await;
            jobs = get("tasks").await;
        }
        assert_eq!(workers[NAME]["stats"]["pool"]["max-concurrency"], 64);
        flower.kill().unwrap();
        flower.wait().unwrap();
        worker.end().await;
    });
}
