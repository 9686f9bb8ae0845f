//! Jobs that Celery sends, run here; Celery gets what became of them.

use std::time::{Duration, SystemTime};

use pikake_jobs::{Failure, current_job};
use pikake_macros::job;
use pikake_traps::{Interrupted, sleep};
use serde_json::{Value, json};

use super::{Running, app, python, with_celery};

#[job(crate = pikake_jobs, name = "tests.add")]
pub(crate) async fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// In a thread.
#[job(crate = pikake_jobs, name = "tests.join")]
fn join(first: String, second: Option<String>, sign: Option<String>) -> String {
    [first, second.unwrap_or_default()].join(&sign.unwrap_or_default())
}

#[job(crate = pikake_jobs, name = "tests.fail")]
pub(crate) async fn fail(text: String) -> Result<(), Failure> {
    Err(Failure::new("ValueError", "builtins", text))
}

#[job(crate = pikake_jobs, name = "tests.text")]
async fn texts() -> Result<(), String> {
    Err("only a text".into())
}

#[job(crate = pikake_jobs, name = "tests.panics")]
async fn panics() {
    panic!("a bug");
}

#[job(crate = pikake_jobs, name = "tests.flaky", retries = 3, backoff(first = "50ms", cap = "100ms"))]
pub(crate) async fn flaky(failures: u32) -> Result<u32, String> {
    match current_job().retries() {
        tried if tried < failures => Err(format!("try {tried}")),
        tried => Ok(tried),
    }
}

#[job(crate = pikake_jobs, name = "tests.now")]
pub(crate) async fn now() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}

#[job(crate = pikake_jobs, name = "tests.nap")]
async fn nap(milliseconds: u64) -> Result<(), Interrupted> {
    sleep(Duration::from_millis(milliseconds)).await
}

#[job(crate = pikake_jobs, name = "tests.echo")]
async fn echo(value: Value) -> Value {
    value
}

#[job(crate = pikake_jobs, name = "tests.import")]
async fn import() -> Result<u64, Interrupted> {
    current_job().progress(json!({"current": 1, "total": 2}));
    sleep(Duration::from_secs(3)).await?;
    Ok(2)
}

fn failed(told: &Value, state: &str, kind: &str, text: &str) {
    assert_eq!((&told["state"], &told["kind"]), (&json!(state), &json!(kind)), "{told}");
    assert!(told["text"].as_str().unwrap().contains(text), "{told}");
}

#[test]
fn values_arguments_and_failures() {
    with_celery(async |python, url| {
        let app = app(&url).jobs([
            add::JOB,
            join::JOB,
            fail::JOB,
            texts::JOB,
            panics::JOB,
            flaky::JOB,
            echo::JOB,
        ]);
        let worker = Running::start(&app).await;
        let odd = json!({"größe": [1, 2.5, null, true, "\u{1f600}"], "deep": {"a": [[]]}});
        let calls = json!([
            // By `delay`, which Celery knows the function of.
            {"task": "tests.add", "args": [2, 3]},
            {"task": "tests.add", "kwargs": {"b": 3, "a": 2}},
            // By `send_task`, which it knows by its name only.
            {"task": "tests.add", "args": [2], "kwargs": {"b": 40}, "options": {"priority": 3}},
            {"task": "tests.join", "args": ["a"], "kwargs": {"second": "b", "sign": "-"}},
            {"task": "tests.join", "args": ["a"]},
            {"task": "tests.echo", "args": [odd]},
            {"task": "tests.flaky", "args": [2]},
            {"task": "tests.fail", "args": ["no good"]},
            {"task": "tests.text"},
            {"task": "tests.panics"},
            {"task": "tests.flaky", "args": [9]},
            {"task": "tests.nope"},
            {"task": "tests.add", "args": [1]},
            {"task": "tests.add", "args": [1, "x"]},
            // Nobody wants to know.
            {"task": "tests.add", "args": [1, 2], "options": {"ignore_result": true}, "timeout": 1},
        ]);
        let told = python::send(&python, &url, calls).await;
        let values: Vec<_> = told[..7].iter().map(|told| told["value"].clone()).collect();
        assert_eq!(
            values,
            [json!(5), json!(5), json!(42), json!("a-b"), json!("a"), odd, json!(2)]
        );
        assert!(told[..7].iter().all(|told| told["state"] == "SUCCESS"), "{told:?}");
        failed(&told[7], "FAILURE", "ValueError", "no good");
        assert_eq!(told[7]["module"], "builtins");
        failed(&told[8], "FAILURE", "String", "only a text");
        failed(&told[9], "FAILURE", "Panic", "a bug");
        failed(&told[10], "FAILURE", "String", "try 3");
        failed(&told[11], "FAILURE", "NotRegistered", "tests.nope");
        failed(&told[12], "FAILURE", "TypeError", "missing the argument 'b'");
        failed(&told[13], "FAILURE", "TypeError", "argument 'b'");
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.failed, stats.dead), (8, 4, 3), "{stats}");
        assert_eq!(stats.retried, 2 + 3, "{stats}");
    });
}

#[test]
fn progress_reaches_celery() {
    with_celery(async |python, url| {
        let worker = Running::start(&app(&url).jobs([import::JOB])).await;
        let calls = json!([{"task": "tests.import", "watches": true}]);
        let told = python::send(&python, &url, calls).await;
        let seen = json!([["PROGRESS", {"current": 1, "total": 2}], ["SUCCESS", 2]]);
        assert_eq!((&told[0]["seen"], &told[0]["state"]), (&seen, &json!("SUCCESS")), "{told:?}");
        worker.end().await;
    });
}

#[test]
fn times_are_kept() {
    with_celery(async |python, url| {
        let app = app(&url).jobs([now::JOB]);
        let worker = Running::start(&app).await;
        let calls = json!([
            {"task": "tests.now", "options": {"countdown": 5}},
            {"task": "tests.now", "options": {"countdown": 0}},
            {"task": "tests.now", "options": {"countdown": 4, "expires": 60}},
        ]);
        let told = python::send(&python, &url, calls).await;
        for (told, wait) in told.iter().zip([5.0, 0.0, 4.0]) {
            let took = told["value"].as_f64().expect("a time") - told["sent"].as_f64().unwrap();
            // It may be a busy machine, but the time has come.
            assert!(took >= wait - 0.01 && took < wait + 20.0, "{took} instead of {wait}");
        }
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.given_back), (3, 2), "those to come wait at the broker");
    });
}

#[test]
fn what_has_expired_is_revoked() {
    with_celery(async |python, url| {
        let app = app(&url).jobs([nap::JOB, now::JOB]).concurrency(1).prefetch(10);
        let worker = Running::start(&app).await;
        let calls = json!([
            {"task": "tests.nap", "args": [2500], "options": {"priority": 0}},
            // Taken by the worker, and too late when it comes to it.
            {"task": "tests.now", "options": {"expires": 1}},
            {"task": "tests.now", "options": {"expires": 60}},
            // Celery says that this has expired when it sends it.
            {"task": "tests.now", "options": {"expires": -5}, "timeout": 10},
        ]);
        let told = python::send(&python, &url, calls).await;
        failed(&told[1], "REVOKED", "TaskRevokedError", "expired");
        assert_eq!(told[2]["state"], "SUCCESS", "{told:?}");
        failed(&told[3], "REVOKED", "TaskRevokedError", "expired");
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.revoked), (2, 2), "{stats}");
    });
}
