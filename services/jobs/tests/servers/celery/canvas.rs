//! Workflows that Celery sends, of jobs that run here and tasks that run there, and the reverse:
//! each ends with its value at the waiter.

use pikake_jobs::{App, Call, JobError, Next, chain, group};
use serde_json::{Value, json};

use super::from_celery::{add, fail};
use super::{QUEUE, Running, python, with_celery};

/// The queue of the jobs that run here. The other one is Celery's.
pub(crate) const HERE: &str = "here";

pub(crate) fn here(url: &str) -> App {
    App::new(url).unwrap().default_queue(HERE).route("*.there", QUEUE)
}

pub(crate) fn signature(queue: &str, task: &str, args: Value) -> Value {
    json!({"task": task, "args": args, "options": {"queue": queue}})
}

#[test]
fn workflows_of_celery_are_followed() {
    with_celery(async |python, url| {
        let worker = Running::start(&here(&url).jobs([add::JOB, fail::JOB])).await;
        let mut there = python::Worker::start(&python, &url, QUEUE);
        let plus = |queue: &str, args| signature(queue, "tests.add", args);
        let immutable = json!({"task": "tests.add", "args": [5, 6], "options": {"queue": HERE},
                               "immutable": true});
        let calls = json!([
            {"chain": [plus(QUEUE, json!([1, 2])), plus(HERE, json!([10])), plus(QUEUE, json!([100])),
                       plus(HERE, json!([1000]))]},
            {"chain": [plus(HERE, json!([1, 2])), plus(HERE, json!([10])), plus(QUEUE, json!([100]))]},
            {"chain": [plus(HERE, json!([1, 2])), immutable, plus(QUEUE, json!([100]))]},
            {"chain": [plus(HERE, json!([1, 2])), {"group": [plus(QUEUE, json!([10])), plus(HERE, json!([20]))]}]},
            {"chain": [plus(HERE, json!([1, 2])), {"task": "tests.fail", "args": ["3"], "options": {"queue": HERE},
                       "immutable": true}, plus(QUEUE, json!([100]))]},
            {"chain": [signature(QUEUE, "tests.fail", json!(["there"])), plus(HERE, json!([1]))]},
            // Both callbacks, and the value of the first one.
            {"task": "tests.add", "args": [1, 2], "options": {"queue": HERE},
             "link": [plus(QUEUE, json!([10])), plus(HERE, json!([20]))], "waits_for_link": true},
            // The errback of the old style gets the id.
            {"task": "tests.fail", "args": ["no"], "options": {"queue": HERE, "task_id": "failed"},
             "link_error": [signature(QUEUE, "tests.sum_named", json!(["own"]))], "waits_for_link": true},
        ]);
        let told = python::send(&python, &url, calls).await;
        let values: Vec<_> = told.iter().map(|told| told["value"].clone()).collect();
        assert_eq!(values[..4], [json!(1113), json!(113), json!(111), json!([13, 23])], "{told:?}");
        for (failed, text) in [(&told[4], "3"), (&told[5], "there")] {
            let failed = [&failed["state"], &failed["text"]];
            assert_eq!(failed, [&json!("FAILURE"), &json!(text)], "{told:?}");
        }
        assert_eq!(values[6], json!([13, 23]));
        assert_eq!(values[7][0]["args"], json!(["failed", "own"]), "{told:?}");
        assert!(!there.has_ended());
        worker.end().await;
    });
}

/// Sent from here: chains of jobs that run here and tasks that run there, a group, and a chord of
/// jobs here whose body runs there.
#[test]
fn workflows_run_at_celery() {
    with_celery(async |python, url| {
        let app = here(&url).jobs([add::JOB, fail::JOB]).route("tests.sum_named", QUEUE);
        let worker = Running::start(&app).await;
        let mut there = python::Worker::start(&python, &url, QUEUE);
        let first = |a: i64, b: i64| Call::<i64>::named("tests.add", (a, b)).queue(QUEUE);
        let next =
            |more: i64| Next::<i64, i64>::named("tests.add", (more,)).set(|call| call.queue(QUEUE));
        let mixed = chain!(first(1, 2), add::after(10), next(100), add::after(1000));
        assert_eq!(mixed.send().await.unwrap().wait().await.unwrap(), 1113);
        let ends_there = chain!(add::with(1, 2), add::after(10), next(100));
        assert_eq!(ends_there.send().await.unwrap().wait().await.unwrap(), 113);
        let after_fail = Next::<(), i64>::named("tests.add", (1,)).set(|call| call.queue(QUEUE));
        let failing = chain!(first(1, 2), fail::with("no".into()), after_fail);
        let failing = failing.send().await.unwrap();
        let failed = failing.wait().await;
        assert!(
            matches!(&failed, Err(JobError::Failed(error)) if error.message == "no"),
            "{failed:?}"
        );
        let two = group((add::with(1, 2), first(3, 4).then(add::after(1)))).send().await.unwrap();
        assert_eq!((two.0.wait().await.unwrap(), two.1.wait().await.unwrap()), (3, 8));
        let named = Next::<Vec<i64>, Value>::named("tests.sum_named", ("own",));
        let members = (0..10).map(|number| add::with(number, 1)).collect::<Vec<_>>();
        let chord = group(members).then(named).send().await.unwrap();
        let values: Vec<_> = (1..=10).collect();
        assert_eq!(chord.wait().await.unwrap()["args"], json!([values, "own"]));
        assert!(!there.has_ended());
        worker.end().await;
    });
}
