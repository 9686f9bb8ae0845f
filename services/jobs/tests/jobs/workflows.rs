//! Typed workflows: chains, groups and chords, on the broker in memory and on RabbitMQ's with a
//! server for tests.

use std::cell::RefCell;
use std::rc::Rc;

use pikake_amqp_testing as fake;
use pikake_jobs::{
    AmqpBroker, App, Broker, Call, JobError, JobId, Next, SendError, chain, current_job, group, map,
};
use pikake_macros::job;
use pikake_net::TcpListener;
use pikake_traps::{sleep, spawn};
use serde_json::{Value, json};
use tracing::Level;

use super::followed::sent;
use super::lines::Lines;
use super::meddled::{Asked, Meddled, at_once, lost};
use super::{Running, SECOND, add, app, in_worlds};

#[job(crate = pikake_jobs, name = "tests.double")]
async fn double(number: i64) -> i64 {
    number * 2
}

#[job(crate = pikake_jobs, name = "tests.sum")]
async fn sum(numbers: Vec<i64>) -> i64 {
    note("sum");
    numbers.into_iter().sum()
}

#[job(crate = pikake_jobs, name = "tests.pair")]
async fn pair(both: (i64, String)) -> String {
    format!("{} {}", both.0, both.1)
}

#[job(crate = pikake_jobs, name = "tests.text")]
async fn text() -> String {
    "text".into()
}

#[job(crate = pikake_jobs, name = "tests.refuse")]
async fn refuse(number: i64) -> Result<i64, String> {
    Err(format!("not {number}"))
}

#[job(crate = pikake_jobs, name = "tests.report")]
async fn report(id: String) {
    note(&format!("failed {id}"));
}

#[job(crate = pikake_jobs, name = "tests.show")]
async fn show(number: i64) {
    note(&format!("got {number}"));
}

/// The headers of a trace, and another one.
#[job(crate = pikake_jobs, name = "tests.headers")]
async fn headers(_before: Value) -> Value {
    let job = current_job();
    let of = |name| job.header(name).cloned().unwrap_or_default();
    json!([of("traceparent"), of("baggage"), of("tenant")])
}

#[job(crate = pikake_jobs, name = "tests.sends")]
async fn sends(with: Option<String>) -> Value {
    let mut call = headers::with(Value::Null);
    if let Some(parent) = with {
        call = call.header("traceparent", parent);
    }
    call.send().await.unwrap().wait().await.unwrap()
}

thread_local! {
    static NOTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(what: &str) {
    NOTED.with_borrow_mut(|noted| noted.push(what.to_owned()));
}

fn with_jobs(app: App) -> App {
    NOTED.take();
    app.jobs([add::JOB, double::JOB, sum::JOB, pair::JOB, text::JOB]).jobs([
        refuse::JOB,
        report::JOB,
        show::JOB,
        headers::JOB,
        sends::JOB,
    ])
}

fn failure<T: std::fmt::Debug>(ended: Result<T, JobError>) -> String {
    match ended {
        Err(JobError::Failed(failure)) => failure.to_string(),
        other => panic!("it was to fail: {other:?}"),
    }
}

/// Each in a world of its own: with the broker in memory, and with RabbitMQ's.
fn on_each_broker(program: impl AsyncFn(&App)) {
    in_worlds(|| async {
        let app = with_jobs(app().0);
        let worker = Running::start(&app, SECOND).await;
        program(&app).await;
        worker.end().await;
    });
    in_worlds(|| async {
        let server = fake::Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let broker = AmqpBroker::open("amqp://127.0.0.1").await.unwrap();
        let app = with_jobs(App::on(Rc::new(broker)));
        let worker = Running::start(&app, SECOND).await;
        program(&app).await;
        sleep(SECOND).await.unwrap();
        let names = server.queues();
        assert!(!names.iter().any(|name| name.starts_with("pikake.chord")), "{names:?}");
        worker.end().await;
    });
}

#[test]
fn chain_ends_with_the_last_value() {
    on_each_broker(async |app| {
        let chained = add::with(1, 2).then(double::after()).then(add::after(10)).on(app);
        assert_eq!(chained.clone().send().await.unwrap().wait().await.unwrap(), 16);
        let with_macro = chain!(add::with(1, 2), double::after(), add::after(10), text::with());
        assert_eq!(with_macro.on(app).send().await.unwrap().wait().await.unwrap(), "text");
        let named = Call::<i64>::named("tests.add", (1, 2)).id("first");
        let named =
            named.then(Next::<i64, i64>::named("tests.add", (4,)).set(|call| call.id("last")));
        let handle = named.on(app).send().await.unwrap();
        assert_eq!((handle.id(), handle.wait().await.unwrap()), (&JobId("last".into()), 7));
        // One job, and no chain.
        let alone = add::with(1, 2).on_success(show::after()).on(app).send().await.unwrap();
        assert_eq!(alone.wait().await.unwrap(), 3);
        let ignored = add::with(1, 2).then(double::after().set(Call::ignore_result)).on(app);
        assert!(matches!(ignored.send().await.unwrap().wait().await, Err(JobError::Ignored)));
        sleep(SECOND).await.unwrap();
        assert_eq!(NOTED.take(), ["got 3"]);
    });
}

#[test]
fn failure_ends_a_chain() {
    on_each_broker(async |app| {
        let chained =
            add::with(1, 2).then(refuse::after()).then(double::after()).on_failure(report::after());
        let chained = chained.on_success(show::after()).on(app).send().await.unwrap();
        assert!(failure(chained.wait().await).ends_with("not 3"));
        sleep(SECOND).await.unwrap();
        let noted = NOTED.take();
        assert!(matches!(&*noted, [one] if one.starts_with("failed ")), "{noted:?}");
    });
}

#[test]
fn group_has_a_handle_for_each_member() {
    on_each_broker(async |app| {
        let squares = map(double::with, [1, 2, 3]).send().await.unwrap();
        let mut values = Vec::new();
        for handle in &squares {
            values.push(handle.wait().await.unwrap());
        }
        assert_eq!(values, [2, 4, 6]);
        let members = (add::with(1, 2).then(double::after()), text::with().on(app));
        let (number, word) = group(members).send().await.unwrap();
        assert_eq!((number.wait().await.unwrap(), word.wait().await.unwrap()), (6, "text".into()));
    });
}

#[test]
fn chord_gets_the_values_of_all_members() {
    on_each_broker(async |app| {
        let total = map(double::with, 1..=20)
            .then(sum::after())
            .then(add::after(1))
            .on(app)
            .send()
            .await
            .unwrap();
        assert_eq!(total.wait().await.unwrap(), 421);
        let both = group((add::with(1, 2).then(double::after()), text::with()))
            .then(pair::after())
            .on(app);
        assert_eq!(both.send().await.unwrap().wait().await.unwrap(), "6 text");
        // A chord in a chord.
        let inner = || map(double::with, 1..=3).then(sum::after());
        let nested = group(vec![inner(), inner().then(double::after())]).then(sum::after()).on(app);
        assert_eq!(nested.send().await.unwrap().wait().await.unwrap(), 12 + 24);
        assert_eq!(NOTED.take(), ["sum"; 4]);
        // Without members, and with one.
        let none = map(double::with, []).then(sum::after()).on(app).send().await.unwrap();
        assert_eq!(none.wait().await.unwrap(), 0);
        let one = map(double::with, [4]).then(sum::after()).on(app).send().await;
        assert_eq!(one.unwrap().wait().await.unwrap(), 8);
    });
}

#[test]
fn failed_member_fails_the_chord() {
    on_each_broker(async |app| {
        let members = vec![
            add::with(1, 2).then(double::after()),
            add::with(3, 4).then(refuse::after()).then(double::after()),
        ];
        let total = group(members)
            .then(sum::after())
            .then(double::after())
            .on_failure(report::after())
            .on(app);
        let total = total.send().await.unwrap();
        let failed = failure(total.wait().await);
        assert!(
            failed.starts_with("ChordError: Dependency ") && failed.ends_with("not 7"),
            "{failed}"
        );
        sleep(SECOND).await.unwrap();
        let noted = NOTED.take();
        assert!(matches!(&*noted, [one] if one.starts_with("failed ")), "{noted:?}");
    });
}

#[test]
fn traces_travel_on() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    on_each_broker(async |app| {
        let call =
            || headers::with(Value::Null).header("traceparent", PARENT).header("baggage", "a=b");
        let sent = call().header("tenant", "blue").on(app);
        let all = sent.clone().send().await.unwrap().wait().await.unwrap();
        assert_eq!(all, json!([PARENT, "a=b", "blue"]));
        // To the jobs that follow, and to a chord; other headers do not.
        let chained = sent.then(headers::after()).send().await.unwrap();
        assert_eq!(chained.wait().await.unwrap(), json!([PARENT, "a=b", null]));
        let body = Next::<Vec<Value>, Value>::named("tests.headers", ());
        let body = group(vec![call(), call()]).then(body).on(app).send().await.unwrap();
        assert_eq!(body.wait().await.unwrap(), json!([PARENT, "a=b", null]));
        // To jobs that a job sends, unless these have their own.
        let child = sends::with(None).header("traceparent", PARENT).on(app).send().await.unwrap();
        assert_eq!(child.wait().await.unwrap(), json!([PARENT, null, null]));
        let own = sends::with(Some("own".into())).header("traceparent", PARENT).on(app);
        assert_eq!(own.send().await.unwrap().wait().await.unwrap(), json!(["own", null, null]));
        // Nothing that is none.
        let odd = sends::with(None).header("traceparent", "ä").header("baggage", 7).on(app);
        assert_eq!(odd.send().await.unwrap().wait().await.unwrap(), json!([null, null, null]));
    });
}

#[test]
fn arguments_that_are_no_json_are_refused() {
    in_worlds(|| async {
        let app = with_jobs(app().0).connect().await.unwrap();
        let odd = Call::<i64>::named("tests.add", 7).then(double::after()).on(&app).send().await;
        assert!(matches!(odd, Err(SendError::Arguments(_))), "{odd:?}");
        drop(app);
    });
}

/// Each call of the broker fails once, before or after it is done: the workflow ends with its
/// value, and each of its jobs is sent again with the same id at most.
#[test]
fn workflow_outlives_a_broker_that_is_lost() {
    for is_after in [false, true] {
        for failing in 0..20 {
            pikake_sim::example(async {
                let (_, store) = app();
                let calls = Rc::new(std::cell::Cell::new(0));
                let fails = move || calls.replace(calls.get() + 1) == failing;
                let fails = Rc::new(fails);
                let (before, after) = (fails.clone(), fails);
                let counts = |asked: &Asked<'_>| {
                    matches!(
                        asked,
                        Asked::Publish(_) | Asked::Store(_) | Asked::Ack(_) | Asked::Join
                    )
                };
                let broker = Meddled::new(Rc::new(store.open()), move |asked| {
                    let is_lost = !is_after && counts(&asked) && before();
                    at_once(if is_lost { Err(lost()) } else { Ok(()) })
                });
                let broker =
                    broker.after(move |asked| match is_after && counts(&asked) && after() {
                        true => Err(lost()),
                        false => Ok(()),
                    });
                let app = with_jobs(App::on(Rc::new(broker)));
                let worker = Running::start(&app, SECOND).await;
                let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
                let total =
                    map(double::with, 1..=3).then(sum::after()).then(add::after(1)).on(&sender);
                let total = total.send().await.unwrap();
                assert_eq!(total.wait().await.unwrap(), 13, "{failing}");
                sleep(SECOND * 30).await.unwrap();
                drop(sender);
                worker.end().await;
            });
        }
    }
}

/// A queue to answer to that is not there: its sender reads results from Redis, say. The log says
/// so once.
#[test]
fn outcome_without_a_queue_is_a_warning() {
    let (lines, _guard) = Lines::collect(&["pikake_jobs"], Level::WARN);
    pikake_sim::example(async {
        let server = fake::Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let broker = Rc::new(AmqpBroker::open("amqp://127.0.0.1").await.unwrap());
        let app = with_jobs(App::on(broker.clone()));
        let worker = Running::start(&app, SECOND).await;
        for _ in 0..3 {
            let mut message = sent("tests.add", "a", json!([1, 2]), json!({}));
            message.reply_to = Some("nobody".to_owned());
            broker.publish("pikake", message, None).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 3);
    });
    let lines = lines.take();
    assert!(matches!(&*lines, [one] if one.contains("such as Redis: to=nobody")), "{lines:?}");
}
