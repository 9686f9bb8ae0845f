//! Followers that the broker does not take, and outcomes that it does not store: each waiter gets a
//! failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pikake_jobs::{App, Broker, BrokerError, JobId, MemoryStore, Message, Outcome};
use pikake_macros::job;
use pikake_traps::{sleep, timeout_after};
use serde_json::{Value, json};

use super::followed::{sent, signature};
use super::meddled::{Asked, Meddled, at_once};
use super::{Running, SECOND, add, in_worlds};

#[job(crate = pikake_jobs, name = "tests.refuses")]
async fn refuses(text: String) -> Result<i64, String> {
    Err(text)
}

#[job(crate = pikake_jobs, name = "tests.echo")]
async fn echo(value: Value) -> Value {
    ECHOED.with_borrow_mut(|echoed| echoed.push(value.to_string()));
    value
}

thread_local! {
    static ECHOED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn no() -> Result<(), BrokerError> {
    Err(BrokerError::Refused("no".into()))
}

/// A worker whose broker refuses what it is told to.
async fn worker(
    store: &MemoryStore,
    is_refused: impl Fn(&Asked<'_>) -> bool + 'static,
) -> (App, Running) {
    ECHOED.take();
    let before = move |asked: Asked<'_>| at_once(if is_refused(&asked) { no() } else { Ok(()) });
    let app = App::on(Rc::new(Meddled::new(Rc::new(store.open()), before)));
    let app = app.jobs([add::JOB, refuses::JOB, echo::JOB]);
    let worker = Running::start(&app, SECOND).await;
    (app, worker)
}

/// Sends messages, and waits for the outcomes of jobs.
async fn outcomes(
    store: &MemoryStore,
    messages: impl IntoIterator<Item = Message>,
    jobs: &[&str],
) -> Vec<Outcome> {
    let broker = store.open();
    for id in jobs {
        let mut expected = Message::default();
        expected.correlation_id = Some((*id).to_owned());
        broker.expect(&mut expected).await.unwrap();
    }
    for message in messages {
        broker.publish("pikake", message, None).await.unwrap();
    }
    let mut outcomes = Vec::new();
    for id in jobs {
        let job = JobId((*id).to_owned());
        let outcome = timeout_after(60 * SECOND, broker.wait(&job)).await;
        outcomes.push(outcome.unwrap_or_else(|_| panic!("{id} gets no outcome")).unwrap());
    }
    outcomes
}

/// The type and text of a failure.
fn why(outcome: &Outcome) -> String {
    let text = outcome.result["exc_message"][0].as_str().unwrap_or_default();
    format!("{} {text}", outcome.result["exc_type"].as_str().unwrap_or_default())
}

/// A member of the chord `g`, which is to have so many.
fn member(mut message: Message, index: u64, body: &Value) -> Message {
    let [args, _, mut embed]: [Value; 3] = serde_json::from_slice(&message.body).unwrap();
    embed["chord"] = body.clone();
    message.body = json!([args, {}, embed]).to_string().into_bytes();
    message.headers.insert("group".into(), "g".into());
    message.headers.insert("group_index".into(), index.into());
    message
}

fn body(size: u32) -> Value {
    signature("tests.echo", json!([]), json!({"task_id": "body", "pikake_chord_size": size}))
}

/// A member of this chord, as an option of a signature.
fn membership(size: u32) -> Value {
    json!({"chord": body(size), "group_id": "g", "group_index": 0})
}

#[test]
fn refused_chord_body_fails_with_all_after_it() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let (_app, worker) = worker(&store, |asked| matches!(asked, Asked::Publish(_))).await;
        let mut body = body(1);
        body["options"]["chain"] =
            json!([signature("tests.echo", json!([]), json!({"task_id": "after"}))]);
        let first = member(sent("tests.add", "a", json!([1, 2]), json!({})), 0, &body);
        let ended = outcomes(&store, [first], &["a", "body", "after"]).await;
        assert_eq!(ended[0], Outcome::success(3.into()));
        for outcome in &ended[1..] {
            assert_eq!(
                why(outcome),
                "OperationalError it could not be sent: the broker refuses: no"
            );
        }
        worker.end().await;
    });
}

#[test]
fn refused_callback_fails_those_after_it() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let count = Cell::new(0);
        let is_second = move |asked: &Asked<'_>| {
            matches!(asked, Asked::Publish(_)) && count.replace(count.get() + 1) == 1
        };
        let (app, worker) = worker(&store, is_second).await;
        let callback = |id| signature("tests.echo", json!([]), json!({"task_id": id}));
        let callbacks = json!([callback("x"), callback("y"), callback("z")]);
        let first = sent("tests.add", "a", json!([1, 2]), json!({"callbacks": callbacks}));
        let ended = outcomes(&store, [first], &["x", "a", "y", "z"]).await;
        assert_eq!(ended[0], Outcome::success(3.into()));
        for outcome in &ended[1..] {
            let why = why(outcome);
            assert!(why.starts_with("OperationalError") && why.ends_with("refuses: no"), "{why}");
        }
        assert_eq!(app.stats().all.dead, 1);
        worker.end().await;
    });
}

/// The first outcome is refused, and the failure in its place is stored.
#[test]
fn outcome_that_cannot_be_stored_reaches_followers() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let count = Cell::new(0);
        let is_first = move |asked: &Asked<'_>| {
            matches!(asked, Asked::Store(_)) && count.replace(count.get() + 1) == 0
        };
        let (_app, worker) = worker(&store, is_first).await;
        let after = |id| json!([signature("tests.echo", json!([]), json!({"task_id": id}))]);
        let embed = json!({"chain": after("b"), "errbacks": after("errback")});
        let failing = sent("tests.refuses", "a", json!(["text"]), embed);
        let ended = outcomes(&store, [failing], &["a", "b", "errback"]).await;
        for outcome in &ended[..2] {
            assert!(why(outcome).starts_with("EncodeError its outcome"), "{outcome:?}");
        }
        assert_eq!(ended[2], Outcome::success("a".into()));
        worker.end().await;
    });
    // Those that follow a value have it, also if the job's own waiter cannot.
    in_worlds(async || {
        let store = MemoryStore::new();
        let count = Cell::new(0);
        let is_first = move |asked: &Asked<'_>| {
            matches!(asked, Asked::Store(_)) && count.replace(count.get() + 1) == 0
        };
        let (_app, worker) = worker(&store, is_first).await;
        let first = member(sent("tests.add", "a", json!([1, 2]), json!({})), 0, &body(1));
        let ended = outcomes(&store, [first], &["a", "body"]).await;
        assert!(why(&ended[0]).starts_with("EncodeError its outcome"), "{:?}", ended[0]);
        assert_eq!(ended[1], Outcome::success(json!([3])));
        worker.end().await;
    });
}

/// Steps that do not run any more join the chord around them as often as they would have.
#[test]
fn skipped_groups_and_chords_join_their_chord() {
    in_worlds(async || {
        let step = |id: &str| signature("tests.add", json!([1]), json!({"task_id": id}));
        let canvas = |kind: &str, kwargs, options| {
            json!({"task": format!("celery.{kind}"), "args": [], "kwargs": kwargs,
                   "options": options, "subtask_type": kind, "immutable": false})
        };
        let inner = canvas("chord", json!({"header": [step("x")], "body": step("y")}), json!({}));
        // Without ids, as another client may write them.
        let nameless = signature("tests.add", json!([1]), json!({}));
        let cases = [
            (3, canvas("group", json!({"tasks": [step("x"), nameless]}), membership(3))),
            (2, canvas("chord", json!({"header": [step("x")], "body": step("y")}), membership(2))),
            (3, canvas("group", json!({"tasks": [inner, step("z")]}), membership(3))),
            (2, canvas("chain", json!({"tasks": [step("x"), step("y")]}), membership(2))),
        ];
        for (size, last) in cases {
            let store = MemoryStore::new();
            let (_app, worker) = worker(&store, |_| false).await;
            let failing = sent("tests.refuses", "a", json!(["text"]), json!({"chain": [last]}));
            let other = sent("tests.add", "d", json!([1, 2]), json!({}));
            let messages = [failing, member(other, 1, &body(size))];
            let ended = outcomes(&store, messages, &["a", "x", "body"]).await;
            assert_eq!(why(&ended[1]), "String text", "{last}");
            assert!(why(&ended[2]).starts_with("ChordError"), "{:?}", ended[2]);
            worker.end().await;
        }
    });
}

/// A small message that asks for large ones: each of many members has the whole body, chain or list
/// of errbacks.
#[test]
fn workflows_that_multiply_are_refused() {
    pikake_sim::example(async {
        let canvas = |kind: &str, kwargs, options| {
            json!({"task": format!("celery.{kind}"), "args": [], "kwargs": kwargs,
                   "options": options, "subtask_type": kind, "immutable": false})
        };
        let large = || signature("tests.echo", json!(["x".repeat(4 << 20)]), json!({}));
        let tiny = || vec![signature("tests.add", json!([]), json!({})); 1_000];
        let empty = || vec![canvas("group", json!({"tasks": []}), json!({})); 1_000];
        let cases = [
            canvas("chord", json!({"header": tiny(), "body": large()}), json!({})),
            canvas("group", json!({"tasks": tiny()}), json!({"chord": large()})),
            canvas("group", json!({"tasks": empty()}), json!({"chord": large()})),
            canvas("chain", json!({"tasks": tiny()}), json!({"link_error": [large()]})),
        ];
        for case in cases {
            let store = MemoryStore::new();
            let (_app, worker) = worker(&store, |_| false).await;
            let message = sent("tests.add", "a", json!([1, 2]), json!({"callbacks": [case]}));
            let ended = outcomes(&store, [message], &["a"]).await;
            assert!(why(&ended[0]).starts_with("InvalidTaskError its workflow"), "{:?}", ended[0]);
            worker.end().await;
        }
        // The value is known only after the run.
        let store = MemoryStore::new();
        let (_app, worker) = worker(&store, |_| false).await;
        let embed = json!({"callbacks": [canvas("group", json!({"tasks": tiny()}), json!({}))]});
        let message = sent("tests.echo", "a", json!(["x".repeat(4 << 20)]), embed);
        let ended = outcomes(&store, [message], &["a"]).await;
        assert!(why(&ended[0]).starts_with("OperationalError"), "{:?}", ended[0].state);
        worker.end().await;
    });
}

/// The job has its value, and the broker is slow: it is not aborted in the middle of what follows.
#[test]
fn terminated_job_that_has_returned_is_settled() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let before = |asked: Asked<'_>| -> pikake_jobs::broker::LocalFuture<'static, _> {
            match asked {
                Asked::Store(_) => Box::pin(async {
                    pikake_traps::shield(sleep(30 * SECOND)).await?;
                    Ok(())
                }),
                _ => at_once(Ok(())),
            }
        };
        let app = App::on(Rc::new(Meddled::new(Rc::new(store.open()), before))).jobs([add::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let asker = App::on(Rc::new(store.open())).connect().await.unwrap();
        let job = add::with(1, 2).on(&asker).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        asker.control().revoke(&job.id().0, true).await.unwrap();
        assert_eq!(job.wait().await.unwrap(), 3);
        worker.end().await;
        assert_eq!(app.stats().all.done, 1);
    });
}
