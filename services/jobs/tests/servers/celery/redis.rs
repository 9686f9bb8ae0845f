//! Results in Redis, which Celery reads and writes, too.

use pikake_jobs::{App, Call, Handle, JobError, JobId, Next, OutcomeState, group};
use serde_json::{Value, json};

use super::canvas::{HERE, here, signature};
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
        let app = app(&url).results(&*redis).unwrap().jobs([
            add::JOB,
            fail::JOB,
            from_celery::flaky::JOB,
        ]);
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

/// Chords of Celery, whose members and bodies run here and there.
#[test]
fn chords_of_celery_are_counted() {
    with_celery(async |python, url| {
        let Some(redis) = xtask::fresh_redis_url() else { return };
        let app = here(&url).results(&*redis).unwrap().jobs([add::JOB, fail::JOB, nested_sum::JOB]);
        let worker = Running::start(&app).await;
        let mut there = python::Worker::start_with_redis(&python, &url, &redis, QUEUE);
        let plus = |queue: &str, a: i64, b: i64| signature(queue, "tests.add", json!([a, b]));
        let sum_here = signature(HERE, "tests.nested_sum", json!([]));
        let sum_there = signature(QUEUE, "tests.sum_named", json!(["own"]));
        let fails = |queue: &str| signature(queue, "tests.fail", json!(["no"]));
        let calls = json!([
            {"chord": [plus(HERE, 1, 2), plus(QUEUE, 3, 4), plus(HERE, 5, 6), plus(QUEUE, 7, 8)],
             "body": sum_here},
            {"chord": [plus(QUEUE, 1, 2), plus(HERE, 3, 4), plus(QUEUE, 5, 6)], "body": sum_there},
            {"chord": [plus(HERE, 1, 2), plus(HERE, 3, 4)], "body": sum_there},
            {"chord": [plus(QUEUE, 1, 2), plus(QUEUE, 3, 4)], "body": sum_here},
            {"chord": [{"chain": [plus(HERE, 1, 2), signature(QUEUE, "tests.add", json!([10]))]},
                       {"chain": [plus(QUEUE, 3, 4), signature(HERE, "tests.add", json!([10]))]}],
             "body": sum_here},
            {"chord": [plus(HERE, 1, 2), fails(HERE), plus(QUEUE, 1, 2)], "body": sum_here},
            {"chord": [plus(HERE, 1, 2), fails(QUEUE)], "body": sum_there},
            {"chord": [{"chain": [fails(HERE), signature(QUEUE, "tests.add", json!([10]))]},
                       plus(HERE, 1, 2)], "body": sum_here},
        ]);
        let told = python::send_with_redis(&python, &url, &redis, calls).await;
        let values: Vec<_> = told.iter().map(|told| told["value"].clone()).collect();
        let named = |numbers: Value| json!({"args": [numbers, "own"], "kwargs": {}});
        let expected =
            [json!(36), named(json!([3, 7, 11])), named(json!([3, 7])), json!(10), json!(30)];
        assert_eq!(values[..5], expected, "{told:?}");
        for failed in &told[5..] {
            let kind = (&failed["state"], &failed["kind"]);
            assert_eq!(kind, (&json!("FAILURE"), &json!("ChordError")), "{told:?}");
            assert!(failed["text"].as_str().unwrap().contains("no"), "{failed}");
        }
        assert!(!there.has_ended());
        worker.end().await;
    });
}

/// The sum of numbers, and of those in lists among them.
#[pikake_macros::job(crate = pikake_jobs, name = "tests.nested_sum")]
async fn nested_sum(values: Vec<Value>) -> i64 {
    fn sum(value: &Value) -> i64 {
        match value {
            // A list counts tenfold, so that its shape shows.
            Value::Array(values) => 10 * values.iter().map(sum).sum::<i64>(),
            value => value.as_i64().unwrap_or_default(),
        }
    }
    values.iter().map(sum).sum()
}

/// The values of a group that ends a chain among the members are a list.
#[test]
fn groups_in_chords_of_celery_keep_their_shape() {
    with_celery(async |python, url| {
        let Some(redis) = xtask::fresh_redis_url() else { return };
        let worker =
            Running::start(&here(&url).results(&*redis).unwrap().jobs([add::JOB, nested_sum::JOB]))
                .await;
        let plus = |a: i64, b: i64| signature(HERE, "tests.add", json!([a, b]));
        let more = |a: i64| signature(HERE, "tests.add", json!([a]));
        let calls = json!([
            {"chord": [{"chain": [plus(1, 2), {"group": [more(10), more(20)]}]}, plus(5, 6)],
             "body": signature(HERE, "tests.nested_sum", json!([]))},
            // Celery itself unrolls a group that is a member.
            {"chord": [{"group": [plus(1, 2), plus(3, 4)]}, plus(5, 6)],
             "body": signature(HERE, "tests.nested_sum", json!([]))},
        ]);
        let told = python::send_with_redis(&python, &url, &redis, calls).await;
        assert_eq!(told[0]["value"], json!(10 * (13 + 23) + 11), "{told:?}");
        assert_eq!(told[1]["value"], json!(3 + 7 + 11), "{told:?}");
        worker.end().await;
    });
}

/// Chords of ours, whose members run at Celery.
#[test]
fn members_of_chords_run_at_celery() {
    with_celery(async |python, url| {
        let Some(redis) = xtask::fresh_redis_url() else { return };
        let app = here(&url).results(&*redis).unwrap().jobs([add::JOB, fail::JOB, nested_sum::JOB]);
        let app = app.route("tests.sum_named", QUEUE);
        let worker = Running::start(&app).await;
        let mut there = python::Worker::start_with_redis(&python, &url, &redis, QUEUE);
        let member =
            |name: &str, queue: &str, args: Value| Call::<Value>::named(name, args).queue(queue);
        let plus = |queue: &str, a: i64| member("tests.add", queue, json!([a, 1]));
        let named = Next::<Vec<Value>, Value>::named("tests.sum_named", ("own",));
        let all = |queues: [&str; 3]| group(queues.map(|queue| plus(queue, 1)).to_vec());
        let at_celery = all([QUEUE; 3]).then(nested_sum::after()).send().await.unwrap();
        assert_eq!(at_celery.wait().await.unwrap(), 6);
        let mixed = all([QUEUE, HERE, QUEUE]).then(nested_sum::after()).send().await.unwrap();
        assert_eq!(mixed.wait().await.unwrap(), 6);
        let body_there = all([QUEUE, HERE, QUEUE]).then(named.clone()).send().await.unwrap();
        assert_eq!(body_there.wait().await.unwrap()["args"], json!([[2, 2, 2], "own"]));
        let all_there = all([QUEUE; 3]).then(named).send().await.unwrap();
        assert_eq!(all_there.wait().await.unwrap()["args"], json!([[2, 2, 2], "own"]));
        let failing = vec![plus(HERE, 1), member("tests.fail", QUEUE, json!(["no"]))];
        let failed = group(failing).then(nested_sum::after()).send().await.unwrap().wait().await;
        let Err(JobError::Failed(failure)) = &failed else { panic!("{failed:?}") };
        assert_eq!(failure.kind, "ChordError", "{failed:?}");
        assert!(!there.has_ended());
        worker.end().await;
    });
}
