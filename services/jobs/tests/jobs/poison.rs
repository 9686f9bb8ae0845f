//! Messages that can never be run: they go to the dead with the reason, and the worker lives.

use std::rc::Rc;

use pikake_jobs::{App, Broker, Call, JobError, JobId, Message, OutcomeState};
use pikake_traps::sleep;
use serde_json::{Value, json};

use crate::{Running, SECOND, Stage, add, app, in_worlds, stage};

fn message(headers: Value, content_type: Option<&str>, body: &str) -> Message {
    let mut message = Message::default();
    message.headers = headers.as_object().unwrap().clone();
    message.content_type = content_type.map(Into::into);
    message.body = body.as_bytes().to_vec();
    message
}

#[test]
fn each_kind_is_buried_with_its_reason() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([add::JOB])).await;
        let broker = store.open();
        const JSON: Option<&str> = Some("application/json");
        let job = json!({"task": "tests.add", "id": "a"});
        let good = "[[1,2],{},{}]";
        let cases = [
            (message(json!({}), JSON, good), "no header `task`"),
            (message(json!({"task": "tests.add"}), JSON, good), "no header `id`"),
            (message(job.clone(), None, good), "no content_type"),
            (message(job.clone(), Some("application/x-python-serialize"), good), "content_type"),
            (message(job.clone(), JSON, "[[1,2"), "not JSON"),
            (message(job.clone(), JSON, "\u{0}"), "not JSON"),
            (message(job.clone(), JSON, "[[1,2],{}]"), "not [args, kwargs, embed]"),
            (message(job.clone(), JSON, "{\"task\":1}"), "not [args, kwargs, embed]"),
            (message(json!({"task": "tests.add", "id": "a", "eta": "soon"}), JSON, good), "`eta`"),
            (
                message(json!({"task": "tests.add", "id": "a", "retries": -1}), JSON, good),
                "`retries`",
            ),
            (message(json!({"task": "tests.nope", "id": "a"}), JSON, good), "no job `tests.nope`"),
            (message(job.clone(), JSON, "[[1],{},{}]"), "missing the argument 'b'"),
            (message(job.clone(), JSON, "[[1,2,3],{},{}]"), "takes 2 arguments but 3"),
        ];
        let (messages, reasons): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        for message in messages.clone() {
            broker.publish("pikake", message, None).await.unwrap();
        }
        assert_eq!(add::delay(1, 2).await.unwrap().wait().await.unwrap(), 3);
        while broker.counts("pikake").await.unwrap().dead < reasons.len() as u64 {
            pikake_traps::sleep(SECOND).await.unwrap();
        }
        let mut dead = broker.dead("pikake", 100).await.unwrap();
        for (message, reason) in messages.iter().zip(&reasons) {
            let at = dead.iter().position(|dead| dead.message == *message).expect(reason);
            let found = dead.remove(at);
            assert!(found.reason.contains(reason), "{reason}: {}", found.reason);
        }
        let outcome = broker.outcome(&JobId("a".into())).await.unwrap().unwrap();
        assert_eq!(outcome.state, OutcomeState::Failure);
        let stats = worker.end().await.stats;
        assert_eq!((stats.all.dead, stats.all.done), (reasons.len() as u64, 1));
    });
}

#[test]
fn whoever_waits_is_told() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([add::JOB])).await;
        let kind_of = async |call: Call<i64>| match call.send().await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => (failure.kind, failure.message),
            other => panic!("not a failure: {other:?}"),
        };
        let (kind, message) = kind_of(Call::named("tests.nope", (1,))).await;
        assert_eq!((&*kind, &*message), ("NotRegistered", "tests.nope"));
        let (kind, message) = kind_of(Call::named("tests.add", (1, "x"))).await;
        assert_eq!(kind, "TypeError");
        assert!(message.contains("argument 'b': invalid type: string"), "{message}");
        worker.end().await;
    });
}

#[test]
fn a_message_that_never_ends_is_buried_at_last() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([add::JOB]).max_deliveries(3);
        let broker = store.open();
        let app = app.connect().await.unwrap();
        let handle = add::delay(1, 2).await.unwrap();
        for _ in 0..3 {
            let lost = store.open();
            let mut deliveries = lost.consume("pikake", 1).await.unwrap();
            deliveries.next().await.unwrap().unwrap();
        }
        let worker = Running::start(&app, SECOND).await;
        assert!(matches!(handle.wait().await, Err(JobError::Failed(_))));
        let dead = broker.dead("pikake", 1).await.unwrap();
        assert!(dead[0].reason.contains("delivered 3 times"), "{}", dead[0].reason);
        worker.end().await;
    });
}

#[test]
fn one_that_is_replayed_does_not_expire() {
    in_worlds(async || {
        let (app, store) = app();
        let worker = Running::start(&app, SECOND).await;
        let call = Call::<i64>::named("tests.add", (2, 3)).expires(10 * SECOND);
        let job = call.on(&app).send().await.unwrap();
        assert!(job.wait().await.is_err());
        worker.end().await;
        sleep(20 * SECOND).await.unwrap();
        // Now there is such a job.
        let other = App::on(Rc::new(store.open())).jobs([add::JOB]);
        let worker = Running::start(&other, SECOND).await;
        assert_eq!(store.open().replay("pikake", None).await.unwrap(), 1);
        sleep(SECOND).await.unwrap();
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.revoked), (1, 0));
    });
}
