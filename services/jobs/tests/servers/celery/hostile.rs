//! What ends a whole Celery worker, and what else should not be in a queue: it goes to the dead
//! with the reason, and the worker goes on.

use std::time::Duration;

use pikake_amqp::{Array, Channel, Properties, Table, Value, persistent, short};
use pikake_jobs::App;
use pikake_traps::sleep;

use super::from_celery::add;
use super::{QUEUE, Running, app, python, with_celery};

/// Beyond any frame, and any job's arguments.
const HUGE: usize = 32 << 20;

/// Fits into a frame with `task`, and with little else.
const FULL: usize = (128 << 10) - 130;

fn properties(headers: &[(&str, Value)]) -> Properties {
    let mut table = Table::default();
    for (name, value) in headers {
        table.insert(short(name).unwrap(), value.clone());
    }
    persistent().with_headers(table)
}

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

fn json(properties: Properties) -> Properties {
    let properties = properties.with_content_type(short("application/json").unwrap());
    properties.with_content_encoding(short("utf-8").unwrap())
}

async fn put(channel: &Channel, properties: Properties, body: &[u8]) {
    channel.publish("", QUEUE, properties, body.to_vec(), true).await.unwrap();
}

async fn dead(app: &App) -> u64 {
    app.broker().unwrap().counts(QUEUE).await.unwrap().dead
}

#[test]
fn a_worker_outlives_whatever_is_in_its_queue() {
    with_celery(async |python, url| {
        let app = app(&url).jobs([add::JOB]);
        let worker = Running::start(&app).await;
        let channel = app.amqp().unwrap().connection().channel().await.unwrap();
        let id = ("id", text("an id"));
        let task = ("task", text("tests.add"));
        let good = b"[[1, 2], {}, {}]".as_slice();
        let job = || json(properties(&[task.clone(), id.clone()]));
        let mut huge = b"[[\"".to_vec();
        huge.resize(HUGE, b'x');
        huge.extend_from_slice(b"\"], {}, {}]");
        let nested = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        // As many headers as a frame takes, so that there is no room for a reason.
        let full = ("full", text(&"x".repeat(FULL)));
        let cases = [
            (json(properties(&[task.clone(), full])), good, ""),
            (json(properties(std::slice::from_ref(&task))), good, "no header `id`"),
            (json(properties(std::slice::from_ref(&id))), good, "no header `task`"),
            (persistent(), good, "no header `task`"),
            (Properties::default(), b"", "no header `task`"),
            (properties(&[task.clone(), id.clone()]), good, "no content_type"),
            (
                job().with_content_type(short("application/x-python-serialize").unwrap()),
                good,
                "content_type",
            ),
            (job().with_content_encoding(short("latin-1").unwrap()), good, "content_encoding"),
            (job(), b"[[1, 2], {}, {", "not JSON"),
            (job(), b"\xff\xfe\x00", "not JSON"),
            (job(), b"", "not JSON"),
            (job(), b"[[1, 2], {}]", "not [args, kwargs, embed]"),
            (job(), b"{}", "not [args, kwargs, embed]"),
            (job(), b"[{}, [], {}]", "not [args, kwargs, embed]"),
            (job(), &nested, "the body is not"),
            (job(), b"[[1], {}, {}]", "missing the argument 'b'"),
            (job(), b"[[1, 2], {\"c\": 3}, {}]", "'c'"),
            (job(), b"[[1, {}], {}, {}]", "argument 'b'"),
            (job(), &huge, "argument"),
            (
                json(properties(&[("task", text("tests.nope")), id.clone()])),
                good,
                "no job `tests.nope`",
            ),
            (
                json(properties(&[("task", Value::LongInt(3)), id.clone()])),
                good,
                "no header `task`",
            ),
            (json(properties(&[task.clone(), id.clone(), ("eta", text("soon"))])), good, "`eta`"),
            (
                json(properties(&[task.clone(), id.clone(), ("retries", Value::LongInt(-1))])),
                good,
                "`retries`",
            ),
            (
                json(properties(&[
                    task.clone(),
                    id.clone(),
                    ("timelimit", Value::FieldArray(Array::default())),
                ])),
                good,
                "`timelimit`",
            ),
            // An answer can go nowhere, which is no reason for the message not to be buried.
            (
                job().with_reply_to(short("nobody.is.here").unwrap()),
                b"[[1], {}, {}]",
                "missing the argument",
            ),
        ];
        for (properties, body, _) in &cases {
            put(&channel, properties.clone(), body).await;
        }
        // Behind them, one with a property that is not UTF-8, which is rejected, and one as Celery
        // sends it.
        let calls = serde_json::json!([
            {"task": "tests.add", "args": [2, 4], "options": {"app_id": "\u{ff}"}, "timeout": 5},
            {"task": "tests.add", "args": [2, 3]},
        ]);
        let told = python::send(&python, &url, calls).await;
        assert_eq!(told[0]["kind"], "TimeoutError", "{told:?}");
        assert_eq!(told[1]["value"], 5);
        while dead(&app).await < cases.len() as u64 {
            sleep(Duration::from_millis(20)).await.unwrap();
        }
        let broker = app.broker().unwrap();
        let mut found = broker.dead(QUEUE, 100).await.unwrap();
        for (_, body, reason) in &cases {
            let is_it = |dead: &pikake_jobs::DeadJob| {
                dead.message.body == *body && dead.reason.contains(reason)
            };
            let at = found.iter().position(is_it).unwrap_or_else(|| panic!("{reason}"));
            found.remove(at);
        }
        assert!(found.is_empty(), "{found:?}");
        let counts = broker.counts(QUEUE).await.unwrap();
        assert_eq!((counts.ready, counts.delayed), (0, 0));
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.dead), (1, cases.len() as u64), "{stats}");
    });
}
