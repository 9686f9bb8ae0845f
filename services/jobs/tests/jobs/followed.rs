//! The `embed` of messages: the jobs that follow are sent, and the waiters of those that cannot run
//! get a failure.

use std::cell::RefCell;
use std::rc::Rc;

use pikake_jobs::{
    App, Broker, JobId, MemoryBroker, MemoryStore, Message, Next, Outcome, OutcomeState,
    QueueOptions, current_job, group,
};
use pikake_macros::job;
use serde_json::{Value, json};

use super::{Running, SECOND, Stage, add, app, in_worlds, stage};

#[job(crate = pikake_jobs, name = "tests.fails")]
async fn fails(text: String) -> Result<i64, String> {
    Err(text)
}

#[job(crate = pikake_jobs, name = "tests.note")]
async fn note(value: Value) -> Value {
    NOTED.with_borrow_mut(|noted| noted.push(format!("{} {value}", current_job().id())));
    value
}

/// Takes what Celery's errbacks of the new style take.
#[job(crate = pikake_jobs, name = "tests.note_error")]
async fn note_error(request: Value, error: Value, traceback: Option<String>) {
    let text = format!("{} {} {traceback:?}", request["id"], error["exc_message"][0]);
    NOTED.with_borrow_mut(|noted| noted.push(text));
}

thread_local! {
    static NOTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A signature as Celery writes it.
pub(crate) fn signature(task: &str, args: Value, options: Value) -> Value {
    json!({
        "task": task, "args": args, "kwargs": {}, "options": options, "subtask_type": null,
        "immutable": false,
    })
}

/// A message of a job as Celery sends it.
pub(crate) fn sent(task: &str, id: &str, args: Value, embed: Value) -> Message {
    let mut message = Message::default();
    message.content_type = Some("application/json".to_owned());
    message.correlation_id = Some(id.to_owned());
    for (name, value) in [("task", task), ("id", id), ("root_id", "root")] {
        message.headers.insert(name.to_owned(), value.into());
    }
    message.body = json!([args, {}, embed]).to_string().into_bytes();
    message
}

/// Runs a message, and returns the outcomes of these jobs. The first begins with the queue.
async fn outcomes(message: Message, jobs: &[&str]) -> (App, Vec<Outcome>) {
    NOTED.take();
    let Stage { app, store, worker, .. } = stage(|app| {
        app.jobs([add::JOB, fails::JOB, note::JOB, note_error::JOB]).route("elsewhere.*", "other")
    })
    .await;
    let broker = store.open();
    for id in jobs {
        let mut expected = Message::default();
        expected.correlation_id = Some((*id).to_owned());
        broker.expect(&mut expected).await.unwrap();
    }
    broker.publish("pikake", message, None).await.unwrap();
    let mut outcomes = Vec::new();
    for id in jobs {
        outcomes.push(broker.wait(&JobId((*id).to_owned())).await.unwrap());
    }
    pikake_traps::sleep(SECOND).await.unwrap();
    worker.end().await;
    (app, outcomes)
}

fn message_of(outcome: &Outcome) -> &str {
    outcome.result["exc_message"][0].as_str().unwrap()
}

#[test]
fn chain_goes_on_to_its_last_job() {
    in_worlds(async || {
        let chain = json!([
            signature("tests.add", json!([100]), json!({"task_id": "c"})),
            {"task": "tests.note", "args": ["own"], "kwargs": {}, "options": {"task_id": "b2"},
             "subtask_type": null, "immutable": true},
            signature("tests.add", json!([10]), json!({"task_id": "b", "countdown": 60})),
        ]);
        let message = sent("tests.add", "a", json!([1, 2]), json!({"chain": chain}));
        // An immutable signature gets no value.
        let (_, ended) = outcomes(message, &["a", "b", "b2", "c"]).await;
        assert_eq!(ended[..3], [3.into(), 13.into(), json!("own")].map(Outcome::success));
        assert_eq!(message_of(&ended[3]).split(':').next(), Some("tests.add() argument 'a'"));
    });
}

#[test]
fn callbacks_get_the_value() {
    in_worlds(async || {
        let callbacks = json!([
            signature("tests.note", json!([]), json!({"task_id": "first"})),
            {"task": "celery.chain", "args": [], "options": {}, "immutable": false,
             "subtask_type": "chain", "kwargs": {"tasks": [
                signature("tests.add", json!([10]), json!({})),
                {"task": "celery.group", "args": [], "options": {}, "immutable": false,
                 "subtask_type": "group", "kwargs": {"tasks": [
                    signature("tests.add", json!([100]), json!({"task_id": "x"})),
                    signature("tests.add", json!([200]), json!({"task_id": "y"})),
                 ]}},
             ]}},
        ]);
        let message = sent("tests.add", "a", json!([1, 2]), json!({"callbacks": callbacks}));
        let (_, ended) = outcomes(message, &["first", "x", "y"]).await;
        assert_eq!(ended, [3, 113, 213].map(|value| Outcome::success(value.into())));
    });
}

#[test]
fn failure_reaches_the_end_of_the_chain() {
    in_worlds(async || {
        let chain = json!([
            signature("tests.add", json!([100]), json!({"task_id": "c"})),
            signature("tests.add", json!([10]), json!({"task_id": "b"})),
        ]);
        let errbacks = json!([
            signature("tests.note", json!([]), json!({"task_id": "errback"})),
            signature("tests.note_error", json!([]), json!({})),
        ]);
        let embed = json!({"chain": chain, "errbacks": errbacks});
        let (_, ended) =
            outcomes(sent("tests.fails", "a", json!(["no"]), embed), &["a", "b", "c"]).await;
        assert!(ended.iter().all(|outcome| outcome.state == OutcomeState::Failure));
        assert!(ended.iter().all(|outcome| message_of(outcome) == "no"));
        let mut noted = NOTED.take();
        noted.sort();
        assert_eq!(noted, ["\"a\" \"no\" None", "errback \"a\""]);
    });
}

/// Wrong arguments, an unknown job, a cancelled one: whoever waits for the last one gets it.
#[test]
fn every_end_reaches_the_end_of_the_chain() {
    in_worlds(async || {
        let embed = json!({"chain": [signature("tests.add", json!([1]), json!({"task_id": "b"}))]});
        let (_, ended) =
            outcomes(sent("tests.add", "a", json!(["x", 1]), embed.clone()), &["b"]).await;
        assert_eq!(ended[0].result["exc_type"], "TypeError");
        let (_, ended) = outcomes(sent("tests.nope", "a", json!([]), embed.clone()), &["b"]).await;
        assert_eq!(ended[0].result["exc_type"], "NotRegistered");
        let mut expired = sent("tests.add", "a", json!([1, 2]), embed);
        expired.headers.insert("expires".to_owned(), "2001-01-01T00:00:00".into());
        let (_, ended) = outcomes(expired, &["b"]).await;
        assert_eq!(ended[0].state, OutcomeState::Revoked);
    });
}

/// The job is not run, and goes to the dead; both waiters get the reason.
#[test]
fn what_cannot_be_followed_is_refused() {
    in_worlds(async || {
        let cases = [
            json!({"chain": [signature("tests.add", json!([]), json!({"task_id": "b"})), 7]}),
            json!({"chain": [signature("x", json!([]), json!({"task_id": "b", "exchange": "e"}))]}),
            json!({"chain": [signature("x", json!([]), json!({"task_id": "b", "countdown": "soon"}))]}),
            json!({"callbacks": [{"task": "x", "subtask_type": "ring"}],
                   "chain": [signature("x", json!([]), json!({"task_id": "b"}))]}),
        ];
        for embed in cases {
            let (app, ended) =
                outcomes(sent("tests.note", "a", json!([1]), embed.clone()), &["a", "b"]).await;
            for outcome in &ended {
                assert_eq!(outcome.result["exc_type"], "InvalidTaskError", "{embed}");
                let why = message_of(outcome);
                assert!(why.starts_with("its workflow cannot be followed: "), "{why}");
            }
            assert_eq!(NOTED.take(), [""; 0]);
            assert_eq!(app.stats().all.dead, 1);
        }
    });
}

#[test]
fn deep_signatures_are_refused() {
    pikake_sim::example(async {
        for name in ["chain", "group"] {
            let open = format!(r#"{{"task":"x","subtask_type":"{name}","kwargs":{{"tasks":["#);
            let nested = [open.repeat(2_000), "]}}".repeat(2_000)].concat();
            let mut message = sent("tests.note", "a", json!([1]), json!({}));
            message.body = format!(r#"[[1], {{}}, {{"callbacks": [{nested}]}}]"#).into_bytes();
            let (_, ended) = outcomes(message, &["a"]).await;
            assert!(message_of(&ended[0]).contains("nested"), "{:?}", ended[0]);
        }
    });
}

/// Every option of a signature that has a meaning here is in the message.
#[test]
fn options_of_signatures_are_kept() {
    in_worlds(async || {
        let options = json!({
            "task_id": "b", "queue": "special", "priority": 3, "expires": 60.5,
            "eta": {"__type__": "datetime", "__value__": "2001-01-01T00:00:00+00:00"},
            "time_limit": 30, "soft_time_limit": 20, "reply_to": "somebody", "group_id": "g",
            "group_index": 4, "headers": {"x": [1]}, "shadow": "shown", "ignore_result": true,
            "link": signature("l", json!([]), json!({})), "link_error": [], "stamped_headers": ["s"],
            "s": "stamp",
        });
        let embed = json!({"chain": [
            signature("after", json!([]), json!({})),
            {"task": "elsewhere.x", "args": [5], "kwargs": {"k": 1},
             "options": options, "subtask_type": null, "immutable": false},
        ]});
        let Stage { store, worker, .. } =
            stage(|app| app.jobs([add::JOB]).route("elsewhere.*", "other")).await;
        let broker = store.open();
        broker.declare("special", &QueueOptions::default()).await.unwrap();
        let mut deliveries = broker.consume("special", 1).await.unwrap();
        broker.publish("pikake", sent("tests.add", "a", json!([1, 2]), embed), None).await.unwrap();
        let next = deliveries.next().await.unwrap().unwrap().message;
        let header = |name: &str| next.headers.get(name).cloned().unwrap_or_default();
        for (name, value) in [
            ("task", json!("elsewhere.x")),
            ("id", json!("b")),
            ("root_id", json!("root")),
            ("parent_id", json!("a")),
            ("group", json!("g")),
            ("group_index", json!(4)),
            ("x", json!([1])),
            ("shadow", json!("shown")),
            ("ignore_result", json!(true)),
            ("timelimit", json!([30.0, 20.0])),
            ("eta", json!("2001-01-01T00:00:00.000000+00:00")),
            ("stamps", json!({"s": "stamp"})),
        ] {
            assert_eq!(header(name), value, "{name}");
        }
        assert_eq!((next.priority, next.reply_to.as_deref()), (3, Some("somebody")));
        assert!(header("expires").is_string() && next.expires.is_none());
        let body: Value = serde_json::from_slice(&next.body).unwrap();
        assert_eq!((&body[0][0], &body[1]), (&json!(3), &json!({"k": 1})));
        assert_eq!(body[2]["callbacks"][0]["task"], "l");
        assert_eq!(body[2]["errbacks"], Value::Null);
        assert_eq!(body[2]["chain"][0]["task"], "after");
        worker.end().await;
    });
}

/// By a route, or to the default queue.
#[test]
fn jobs_go_to_the_queue_of_their_route() {
    in_worlds(async || {
        let embed = json!({"chain": [signature("elsewhere.x", json!([]), json!({}))]});
        let Stage { store, worker, .. } =
            stage(|app| app.jobs([add::JOB]).route("else*re.*", "other")).await;
        let broker = store.open();
        broker.publish("pikake", sent("tests.add", "a", json!([1, 2]), embed), None).await.unwrap();
        pikake_traps::sleep(SECOND).await.unwrap();
        let mut deliveries = broker.consume("other", 1).await.unwrap();
        let next = deliveries.next().await.unwrap().unwrap().message;
        assert_eq!(next.headers["task"], "elsewhere.x");
        worker.end().await;
    });
}

/// The broker is lost between the followers, or the worker before it acknowledges: nothing is lost,
/// and each job that is sent twice has one id.
#[test]
fn a_second_run_sends_the_same_jobs() {
    in_worlds(async || {
        let embed = || {
            json!({"callbacks": [
                signature("elsewhere.x", json!([]), json!({})),
                signature("elsewhere.y", json!([]), json!({})),
            ]})
        };
        let (app, store): (App, MemoryStore) = app();
        let app = app.jobs([add::JOB]).route("*", "other");
        let worker = Running::start(&app, SECOND).await;
        let broker: Rc<MemoryBroker> = Rc::new(store.open());
        for _ in 0..2 {
            let message = sent("tests.add", "a", json!([1, 2]), embed());
            broker.publish("pikake", message, None).await.unwrap();
        }
        pikake_traps::sleep(SECOND).await.unwrap();
        let mut deliveries = broker.consume("other", 10).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..4 {
            let next = deliveries.next().await.unwrap().unwrap().message;
            ids.push(format!("{} {}", next.headers["task"], next.job().unwrap()));
        }
        ids.sort();
        assert_eq!((&ids[0], &ids[2]), (&ids[1], &ids[3]));
        assert_ne!(ids[0].rsplit_once(' ').unwrap().1, ids[2].rsplit_once(' ').unwrap().1);
        worker.end().await;
    });
}

/// Errbacks of both styles get the id of the job after the group.
#[test]
fn errbacks_of_a_chord_get_its_error() {
    in_worlds(async || {
        NOTED.take();
        let Stage { worker, .. } =
            stage(|app| app.jobs([add::JOB, fails::JOB, note::JOB, note_error::JOB])).await;
        let body = Next::<Vec<i64>, i64>::named("tests.add", (1,)).set(|call| call.id("body"));
        let errback = |name| Next::<String, Value>::named(name, [(); 0]);
        let chord = group(vec![fails::with("no".into()).id("member")]).then(body);
        let chord = chord.on_failure(errback("tests.note").set(|call| call.id("errback")));
        let handle = chord.on_failure(errback("tests.note_error")).send().await.unwrap();
        assert!(handle.wait().await.is_err());
        pikake_traps::sleep(SECOND).await.unwrap();
        let mut noted = NOTED.take();
        noted.sort();
        let why = "Dependency member raised String: no";
        assert_eq!(noted, [&*format!("\"body\" \"{why}\" None"), "errback \"body\""]);
        worker.end().await;
    });
}

/// A signature of Celery's canvas.
fn canvas(kind: &str, kwargs: Value, options: Value) -> Value {
    json!({
        "task": format!("celery.{kind}"), "args": [], "kwargs": kwargs, "options": options,
        "subtask_type": kind, "immutable": true,
    })
}

/// What the errbacks have noted, after a workflow has followed a job.
async fn noted_after(workflow: Value, jobs: &[&str]) -> (Vec<String>, Vec<Outcome>) {
    let message = sent("tests.add", "a", json!([1, 2]), json!({ "callbacks": [workflow] }));
    let (_, ended) = outcomes(message, jobs).await;
    let mut noted = NOTED.take();
    noted.sort();
    (noted, ended)
}

#[test]
fn jobs_of_a_group_fail_with_the_error_before_it() {
    in_worlds(async || {
        let note = |id: &str| signature("tests.note", json!([]), json!({ "task_id": id }));
        let mut member = signature("tests.fails", json!(["no"]), json!({"task_id": "member"}));
        member["immutable"] = true.into();
        let own = json!({"task_id": "one", "link_error": [note("own"), note("both")]});
        let chord = canvas("chord", json!({"header": [], "body": note("two")}), json!({}));
        let jobs = [signature("tests.note", json!([]), own), chord];
        let body = canvas("group", json!({ "tasks": jobs }), json!({"link_error": [note("both")]}));
        let chord = canvas("chord", json!({"header": [member], "body": body}), json!({}));
        let (noted, ended) = noted_after(chord, &["member", "one", "two"]).await;
        assert_eq!(noted, [r#"both "one""#, r#"both "two""#, r#"own "one""#]);
        for outcome in ended {
            assert_eq!((outcome.state, message_of(&outcome)), (OutcomeState::Failure, "no"));
        }
    });
}

#[test]
fn errbacks_of_a_group_replace_those_of_its_jobs() {
    in_worlds(async || {
        let note = |id: &str| signature("tests.note", json!([]), json!({ "task_id": id }));
        let options = json!({"task_id": "fails", "link_error": [note("own")]});
        let mut job = signature("tests.fails", json!(["no"]), options);
        job["immutable"] = true.into();
        let options = json!({"link_error": note("group")});
        let (noted, _) =
            noted_after(canvas("group", json!({ "tasks": [job] }), options), &[]).await;
        assert_eq!(noted, [r#"group "fails""#]);
    });
}

/// A built-in task of Celery's that is sent by none of its canvas: the failure says what does.
#[test]
fn celerys_chunks_are_refused_with_a_reason() {
    in_worlds(async || {
        let message = sent("celery.chunks", "a", json!([]), json!({}));
        let (_, ended) = outcomes(message, &["a"]).await;
        assert_eq!(ended[0].result["exc_type"], "NotRegistered");
        let why = message_of(&ended[0]);
        assert!(why.starts_with("celery.chunks") && why.contains("group"), "{why}");
    });
}
