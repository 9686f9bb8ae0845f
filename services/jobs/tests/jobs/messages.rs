//! Messages: what is sent is what Celery sends, and whatever comes is read or refused, never a
//! panic.

use std::time::{Duration, SystemTime};

use pikake_jobs::{
    Broker, Handle, JobId, Message, Outcome, OutcomeState, Poison, QueueOptions, Request,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{SECOND, Stage, add, app, in_worlds, stage};

#[test]
fn what_is_sent_is_protocol_two() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.queue("pikake", QueueOptions::new().max_priority(9));
        let _app = app.connect().await.unwrap();
        let call = add::with(2, 3).id("one").priority(4).soft_limit(SECOND).hard_limit(2 * SECOND);
        call.expires(90 * SECOND).send().await.unwrap();
        let mut deliveries = store.open().consume("pikake", 1).await.unwrap();
        let message = deliveries.next().await.unwrap().unwrap().message;
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.content_encoding.as_deref(), Some("utf-8"));
        assert_eq!((message.correlation_id.as_deref(), message.priority), (Some("one"), 4));
        let body: Value = serde_json::from_slice(&message.body).unwrap();
        let embed = json!({"callbacks": null, "errbacks": null, "chain": null, "chord": null});
        assert_eq!(body, json!([[2, 3], {}, embed]));
        let mut headers = message.headers.clone();
        assert!(headers.remove("origin").unwrap().is_string());
        assert!(headers.remove("expires").unwrap().as_str().unwrap().ends_with("+00:00"));
        let expected = json!({
            "lang": "rs", "task": "tests.add", "id": "one", "root_id": "one", "retries": 0,
            "argsrepr": "(2,3)", "kwargsrepr": "{}", "timelimit": [2.0, 1.0],
        });
        assert_eq!(Value::from(headers), expected);
        let request = Request::read(&message).unwrap();
        assert_eq!((request.job, request.id, request.args), ("tests.add", "one", "[2,3]"));
        assert_eq!((request.soft_limit, request.hard_limit), (Some(SECOND), Some(2 * SECOND)));
    });
}

fn from_celery(headers: Value) -> Message {
    let mut message = Message::default();
    message.content_type = Some("application/json".into());
    message.headers = headers.as_object().unwrap().clone();
    message.body = br#"[[1], {"y": 2}, {"callbacks": null, "errbacks": null}]"#.to_vec();
    message
}

#[test]
fn what_celery_sends_is_read() {
    let message = from_celery(json!({
        "lang": "py", "task": "cap.add", "id": "30f4", "shadow": null,
        "eta": "2026-11-20T23:38:52.628371+00:00", "expires": "2026-11-20T23:39:52.628371",
        "group": "2b68", "group_index": 0, "retries": 2, "timelimit": [30, 20], "root_id": "30f4",
        "parent_id": null, "argsrepr": "(1,)", "kwargsrepr": "{'y': 2}", "origin": "gen22867@vm",
        "ignore_result": true, "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {},
    }));
    let request = Request::read(&message).unwrap();
    assert_eq!((request.args, request.kwargs), ("[1]", r#"{"y": 2}"#));
    let eta = SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_217_932_628_371);
    assert_eq!((request.eta, request.expires), (Some(eta), Some(eta + 60 * SECOND)));
    assert_eq!((request.retries, request.group), (2, Some("2b68")));
    assert_eq!((request.hard_limit, request.soft_limit), (Some(30 * SECOND), Some(20 * SECOND)));
    assert!(request.ignore_result);
}

#[test]
fn the_least_that_celery_accepts_is_read() {
    for body in ["[[1,2],{},{}]", "[[1,2],{},null]"] {
        let mut message = from_celery(json!({"task": "t", "id": "i"}));
        message.body = body.into();
        assert_eq!(Request::read(&message).unwrap().args, "[1,2]");
    }
    let mut message = from_celery(json!({"task": "t", "id": "i"}));
    message.content_type = None;
    assert_eq!(Request::read(&message).unwrap_err(), Poison::NoContentType);
}

#[test]
fn a_message_of_protocol_one_runs() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } = stage(|app| app.jobs([add::JOB])).await;
        let body = json!({
            "task": "tests.add", "id": "old", "args": [2], "kwargs": {"b": 3}, "retries": 0,
            "eta": null, "expires": null, "utc": true, "timelimit": [null, null], "chord": null,
            "taskset": null, "errbacks": null,
            "callbacks": [{
                "task": "tests.add", "args": [1], "kwargs": {}, "options": {"task_id": "next"},
                "subtask_type": null, "immutable": false,
            }],
        });
        let mut message = Message::default();
        message.content_type = Some("application/json".into());
        message.body = body.to_string().into_bytes();
        let broker = store.open();
        broker.publish("pikake", message, None).await.unwrap();
        let next = Handle::<i64>::from_id(&app, JobId("next".to_owned()));
        assert_eq!(next.wait().await.unwrap(), 6);
        worker.end().await;
    });
}

/// Headers that are sometimes what they should be.
fn headers() -> impl Strategy<Value = Map<String, Value>> {
    let name = prop_oneof![
        4 => proptest::sample::select(vec![
            "task", "id", "eta", "expires", "retries", "timelimit", "ignore_result", "compression",
            "root_id", "parent_id", "group", "pikake_kills",
        ]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    let value = prop_oneof![
        any::<String>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!("2026-11-20T23:38:52Z")),
        (any::<f64>(), any::<f64>()).prop_map(|(a, b)| json!([a, b])),
    ];
    proptest::collection::btree_map(name, value, 0..12).prop_map(|all| all.into_iter().collect())
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".*", inner, 0..4)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[test]
fn bodies_of_another_form_are_not_json_or_no_request() {
    let poison = |body: &[u8]| {
        let mut message = from_celery(json!({"task": "t", "id": "i"}));
        message.body = body.to_vec();
        match Request::read(&message).unwrap_err() {
            Poison::NotJson(_) => "not JSON",
            Poison::Body => "another form",
            other => panic!("{other}"),
        }
    };
    let cases: [(&[u8], _); 10] = [
        (b"", "not JSON"),
        (b"3", "another form"),
        (b"{}", "another form"),
        (b"[[], {}]", "another form"),
        (b"[[], {}, {}, {}]", "another form"),
        (b"[[], {}, {}, {}", "not JSON"),
        (b"[[], {}, {}, nul]", "not JSON"),
        (b"[[], {}, {}] 3", "not JSON"),
        (b"[[\"\xff\"], {}, {}]", "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ];
    for (body, expected) in cases {
        assert_eq!(poison(body), expected, "{}", body.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_message_is_read_or_refused(
        headers in headers(),
        body in proptest::collection::vec(any::<u8>(), 0..64),
        content_type in proptest::option::of(proptest::sample::select(vec!["application/json", "x"])),
        coding in proptest::option::of(any::<String>()),
    ) {
        let mut message = Message::default();
        (message.headers, message.body) = (headers, body);
        message.content_type = content_type.map(Into::into);
        message.content_encoding = coding;
        if let Err(poison) = Request::read(&message) {
            prop_assert!(!poison.to_string().is_empty());
        }
    }

    #[test]
    fn any_bytes_in_the_body_are_read_or_refused(body in ".{0,64}") {
        let mut message = from_celery(json!({"task": "t", "id": "i"}));
        message.body = body.clone().into_bytes();
        match Request::read(&message) {
            Ok(_) => prop_assert!(serde_json::from_str::<(Vec<Value>, Map<String, Value>, Value)>(&body).is_ok()),
            Err(Poison::NotJson(_)) => prop_assert!(serde_json::from_str::<Value>(&body).is_err()),
            Err(poison) => prop_assert_eq!(poison, Poison::Body),
        }
    }

    #[test]
    fn arguments_come_through_as_they_are(
        args in proptest::collection::vec(json_value(), 0..4),
        kwargs in proptest::collection::btree_map(".*", json_value(), 0..4),
        embed in proptest::option::of(Just(json!({"chain": []}))),
    ) {
        let mut message = from_celery(json!({"task": "t", "id": "i"}));
        message.body = serde_json::to_vec(&(&args, &kwargs, &embed)).unwrap();
        let request = Request::read(&message).unwrap();
        prop_assert_eq!(serde_json::from_str::<Vec<Value>>(request.args).unwrap(), args);
        let read: std::collections::BTreeMap<String, Value> =
            serde_json::from_str(request.kwargs).unwrap();
        prop_assert_eq!(read, kwargs);
        prop_assert_eq!(serde_json::from_str::<Option<Value>>(request.embed).unwrap(), embed);
    }

    #[test]
    fn outcomes_come_through_as_they_are(value in json_value(), traceback in any::<Option<String>>()) {
        let outcome = Outcome::new(OutcomeState::Success, value).with_traceback(traceback);
        let meta = outcome.to_meta("id", SystemTime::UNIX_EPOCH);
        prop_assert_eq!(Outcome::from_meta(&meta).unwrap(), (JobId("id".into()), outcome));
    }

    #[test]
    fn any_bytes_are_an_outcome_or_refused(meta in proptest::collection::vec(any::<u8>(), 0..64)) {
        drop(Outcome::from_meta(&meta));
    }
}
