//! Results in Redis, which Celery reads and writes, too.

use pikake_jobs::{App, Call, Handle, JobError, JobId, OutcomeState};
use serde_json::{Value, json};

use super::from_celery::{self, add, fail};
use super::{QUEUE, Running, app, python, with_celery};
use crate::redis::ask;

#[test]
fn outcomes_of_celerys_workers_are_read() {
    with_celery(async |python, url| {
        let Some(redis) = xtask::fresh_redis_url() else { return };
        let app = app(&url).results(&*redis).unwrap().connect().await.unwrap();
        let mut worker = python::Worker::start_with_redis(&python, &url, &redis, QUEUE);
        let send = async |call: Call<Value>| call.send().await.unwrap();
        let sum = send(Call::named("tests.add", (2, 3))).await;
        let flaky = send(Call::named("tests.flaky", (2,))).await;
        let bad = send(Call::named("tests.fail", ("no good",))).await;
        let nope = send(Call::named("tests.nope", ())).await;
        let ignored = send(Call::named("tests.add", (1, 1)).ignore_result()).await;
        assert_eq!(sum.wait().await.unwrap(), 5);
        assert_eq!(flaky.wait().await.unwrap(), 2, "it was tried three times");
        assert_eq!(flaky.status().await.unwrap(), Some(OutcomeState::Success));
        for (handle, kind, text) in
            [(bad, "ValueError", "no good"), (nope, "NotRegistered", "tests.nope")]
        {
            let failed = handle.wait().await;
            let Err(JobError::Failed(failure)) = failed else { panic!("{failed:?}") };
            assert_eq!((&*failure.kind, &*failure.message), (kind, text));
        }
        assert!(matches!(ignored.wait().await, Err(JobError::Ignored)));
        // Another program, which has not sent the task.
        let other = App::new(&*url).unwrap().results(&*redis).unwrap().attach().await.unwrap();
        let by_id = Handle::<i64>::from_id(&other, JobId(sum.id().0.clone()));
        assert_eq!(by_id.wait().await.unwrap(), 5);
        assert!(!worker.has_ended());
        app.close().await.unwrap();
    });
}

#[test]
fn celery_reads_outcomes_of_jobs_here() {
    with_celery(async |python, url| {
        let Some(redis) = xtask::fresh_redis_url() else { return };
        let app = app(&url).results(&*redis).unwrap().jobs((add, fail, from_celery::flaky));
        let worker = Running::start(&app).await;
        let calls = json!([
            {"task": "tests.add", "args": [2, 3], "options": {"task_id": "sum"}},
            {"task": "tests.fail", "args": ["größer"]},
            {"task": "tests.flaky", "args": [2]},
            {"task": "tests.nope"},
            {"chain": [{"task": "tests.add", "args": [1, 2]}, {"task": "tests.add", "args": [10]}]},
            {"group": [{"task": "tests.add", "args": [1, 2]}, {"task": "tests.add", "args": [3, 4]}]},
            {"task": "tests.add", "args": [1, 2], "options": {"ignore_result": true, "task_id": "ignored"}, "timeout": 1},
            {"task": "tests.add", "args": [1, 2], "options": {"expires": -5}, "timeout": 20},
        ]);
        let told = python::send_with_redis(&python, &url, &redis, calls).await;
        assert_eq!((&told[0]["value"], &told[2]["value"]), (&json!(5), &json!(2)), "{told:?}");
        let kinds =
            [1, 3, 7].map(|at: usize| (&told[at]["state"], &told[at]["kind"], &told[at]["text"]));
        let expected = [
            ("FAILURE", "ValueError", "größer"),
            ("FAILURE", "NotRegistered", "tests.nope"),
            ("REVOKED", "TaskRevokedError", "expired"),
        ];
        for (told, (state, kind, text)) in kinds.into_iter().zip(expected) {
            assert_eq!(told, (&json!(state), &json!(kind), &json!(text)));
        }
        assert_eq!(
            (&told[4]["value"], &told[5]["value"]),
            (&json!(13), &json!([3, 7])),
            "{told:?}"
        );
        let lifetime: u32 = ask(&redis, "TTL celery-task-meta-sum")[1..].parse().unwrap();
        assert!((86_000..=86_400).contains(&lifetime), "{lifetime}");
        assert_eq!(ask(&redis, "EXISTS celery-task-meta-ignored"), ":0");
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.failed, stats.dead, stats.revoked), (7, 1, 1, 1), "{stats}");
    });
}
