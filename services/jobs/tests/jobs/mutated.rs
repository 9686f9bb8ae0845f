//! Random changes of valid commands to workers, of messages to the leader of schedules, and of
//! replies and events that clients read: nobody ends, and nothing stands still. `PIKAKE_FUZZ` says
//! how many in each world.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, Broker, MemoryStore, Message, Notice, QueueOptions, Schedule, Topic};
use pikake_traps::{random, sleep, spawn, timeout_after};
use serde_json::{Value, json};

use crate::{Running, SECOND, add, in_worlds, nap};

fn count() -> usize {
    let count = std::env::var("PIKAKE_FUZZ").ok().and_then(|count| count.parse().ok());
    count.unwrap_or(60)
}

fn pick(count: usize) -> usize {
    random::u64() as usize % count
}

/// Values of wrong types and sizes, among those that some place takes.
fn odd() -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("odd"),
        json!("9999-12-31T23:59:59.999999999Z"),
        json!("-009999-01-02T01:59:59Z"),
        json!("x".repeat(3_000)),
        json!([]),
        json!([null, 1, {"id": 7}]),
        json!({}),
        json!({"Ok": [1, 2]}),
        json!({"secs": u64::MAX, "nanos": 999_999_999}),
    ];
    values[pick(values.len())].clone()
}

/// Replaces some of the parts of a value.
fn change(value: &mut Value) {
    if pick(12) == 0 {
        *value = odd();
        return;
    }
    match value {
        Value::Array(parts) => parts.iter_mut().for_each(change),
        Value::Object(parts) => {
            parts.values_mut().for_each(change);
            if pick(8) == 0 {
                parts.insert("odd".to_owned(), odd());
            }
        }
        _ => {}
    }
}

/// A changed value as bytes, of which some are changed, too.
fn changed(mut value: Value) -> Vec<u8> {
    change(&mut value);
    let mut body = value.to_string().into_bytes();
    if pick(3) == 0 {
        for _ in 0..pick(4) {
            let at = pick(body.len());
            body[at] = pick(256) as u8;
        }
    }
    body
}

/// A command, as Celery's programs and this library send it.
fn command() -> Value {
    let commands = [
        ("ping", json!({})),
        ("stats", json!({})),
        ("active", json!({"safe": true})),
        ("reserved", json!({})),
        ("scheduled", json!({})),
        ("revoked", json!({})),
        ("registered", json!({"taskinfoitems": ["rate_limit"]})),
        ("active_queues", json!({})),
        ("conf", json!({"with_defaults": false})),
        ("report", json!({})),
        ("clock", json!({})),
        ("heartbeat", json!({})),
        ("election", json!({"id": "7", "topic": "odd", "action": "ping"})),
        ("query_task", json!({"ids": ["seven", "eight"]})),
        (
            "hello",
            json!({"from_node": "odd@here", "revoked": {"8": 1.9e9}, "clock": 7, "paused": ["other"]}),
        ),
        ("revoke", json!({"task_id": ["seven"], "terminate": true, "signal": "SIGTERM"})),
        ("terminate", json!({"task_id": "seven", "signal": "SIGKILL"})),
        ("rate_limit", json!({"task_name": "tests.nap", "rate_limit": "10/m"})),
        ("time_limit", json!({"task_name": "tests.nap", "soft": 1.5, "hard": 3})),
        ("add_consumer", json!({"queue": "other", "exchange": "other", "routing_key": "other"})),
        ("cancel_consumer", json!({"queue": "pikake"})),
        ("add_consumer", json!({"queue": "pikake"})),
        ("pause_queue", json!({"queue": "pikake"})),
        ("resume_queue", json!({"queue": "pikake"})),
        ("pool_grow", json!({"n": 1})),
        ("pool_shrink", json!({"n": 1})),
        ("pool_resize", json!({"n": 3})),
        ("pool_restart", json!({"modules": ["odd"], "reload": true})),
        ("autoscale", json!({"max": 9, "min": 1})),
        ("enable_events", json!({})),
        ("disable_events", json!({})),
    ];
    let (method, arguments) = commands[pick(commands.len())].clone();
    json!({
        "method": method, "arguments": arguments, "destination": null, "pattern": "*@here", "matcher": "glob",
        "ticket": "9", "reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "me"},
    })
}

#[test]
fn mutated_commands_cost_nothing() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let one = App::on(Rc::new(store.open())).named("one@here").jobs([add::JOB, nap::JOB]);
        let worker = Running::start(&one, SECOND).await;
        let app = App::on(Rc::new(store.open())).connect().await.unwrap();
        let stranger = store.open();
        let bus = stranger.bus().unwrap();
        let mut replies = bus.subscribe(Topic::Replies, "me").await.unwrap();
        let answered = Rc::new(Cell::new(0));
        let told = answered.clone();
        let _counting = spawn(async move {
            while replies.next().await.is_ok() {
                told.set(told.get() + 1);
            }
        })
        .cancel_on_drop();
        for number in 0..count() {
            if number % 20 == 0 {
                nap::with(3).id("seven").on(&app).send().await.unwrap();
                sleep(SECOND).await.unwrap();
            }
            let notice = Notice::new(Topic::Commands, "", changed(command()));
            let clock = if pick(5) == 0 { odd() } else { json!(7) };
            let expires = if pick(5) == 0 { odd() } else { json!(0) };
            bus.notify(notice.header("clock", clock).header("expires", expires)).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert!(answered.get() > count() / 4, "{} are answered", answered.get());
        // The naps are not those that this is about.
        stranger.purge("pikake").await.unwrap();
        let control = app.control();
        control.set_concurrency(4).await.unwrap();
        for name in ["tests.add", "tests.nap"] {
            control.time_limit(name, None, None).await.unwrap();
            control.rate_limit(name, "0").await.unwrap();
        }
        control.add_queue("pikake").await.unwrap();
        control.resume("pikake").await.unwrap();
        assert_eq!(control.ping().await.unwrap(), ["one@here"]);
        let job = add::with(1, 2).on(&app).send().await.unwrap();
        assert_eq!(timeout_after(3_600 * SECOND, job.wait()).await.unwrap().unwrap(), 3);
        worker.end().await;
    });
}

fn task() -> Value {
    json!({
        "job": "tests.add", "args": {"Ok": [1, 2]}, "kwargs": {"Ok": {}}, "queue": null, "expires": null,
        "limits": [null, null], "max_retries": null, "priority": 0, "ignore_result": true,
    })
}

fn note() -> Value {
    let when = [
        json!({"interval": {"secs": 5, "nanos": 0}}),
        json!({"cron": "*/5 * * * *", "zone": "Europe/Berlin"}),
    ];
    let when = when[pick(2)].clone();
    let entry = json!({
        "when": when, "missed": "run_all", "task": task(), "is_added": true, "is_paused": false,
        "since": "2030-01-01T00:00:00Z", "last": "2030-01-01T00:00:00Z", "sent": null, "missed_count": 0,
    });
    let notes = [
        json!({"put": {"name": "odd", "when": when, "missed": "skip", "task": task()}}),
        json!({"state": {"version": 3, "entries": {"odd": entry}}}),
        json!({"run_now": "odd"}),
        json!({"pause": "odd"}),
        json!({"resume": "odd"}),
        json!({"remove": "odd"}),
        json!("list"),
        json!("hello"),
    ];
    notes[pick(notes.len())].clone()
}

/// It is always due.
#[test]
fn a_tiny_interval_leaves_others_their_turn() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = App::on(Rc::new(store.open())).jobs([add::JOB]);
        let tiny = Schedule::every(Duration::from_nanos(1), add::with(1, 2));
        let worker = Running::start(&app.schedule(tiny), SECOND).await;
        sleep(SECOND / 50).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        assert_eq!(console.schedules().list().await.unwrap().len(), 1);
        worker.end().await;
    });
}

#[test]
fn mutated_messages_stop_no_schedule() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = App::on(Rc::new(store.open())).jobs([add::JOB]);
        let worker = Running::start(&app.with_schedules(), SECOND).await;
        let stranger = store.open();
        let queue = "pikake.schedules";
        stranger.declare(queue, &QueueOptions::new().single_consumer(true)).await.unwrap();
        for number in 0..count() {
            let mut message = Message::default();
            message.body = changed(note());
            stranger.publish(queue, message, None).await.unwrap();
            if number % 20 == 0 {
                sleep(SECOND).await.unwrap();
            }
        }
        sleep(60 * SECOND).await.unwrap();
        // The strangers' jobs are not those that this is about.
        stranger.purge("pikake").await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        let own = Schedule::every(SECOND, add::with(1, 2)).name("own");
        let listed = timeout_after(60 * SECOND, console.schedules().add(own)).await;
        let listed = listed.expect("the leader answers").unwrap();
        assert!(listed.iter().any(|info| info.name == "own"), "{listed:?}");
        sleep(10 * SECOND).await.unwrap();
        let listed = console.schedules().list().await.unwrap();
        let own = listed.iter().find(|info| info.name == "own").unwrap();
        assert!(own.last.is_some(), "{own:?}");
        worker.end().await;
    });
}

/// What a worker answers to each command, in Celery's form.
fn reply(method: &str) -> Value {
    let job = json!({
        "id": "7", "name": "tests.add", "args": "(1, 2)", "kwargs": {}, "type": "tests.add", "hostname": "odd@here",
        "time_start": 1.0, "acknowledged": true, "delivery_info": {"routing_key": "pikake"}, "worker_pid": 3,
    });
    match method {
        "stats" => json!({
            "total": {"tests.add": 3}, "pid": 3, "clock": "7", "uptime": 9, "pool": {"max-concurrency": 4},
            "paused": ["one"],
        }),
        "active" | "reserved" => json!([job]),
        "scheduled" => json!([{"eta": "2030-01-01T00:00:00", "priority": 3, "request": job}]),
        "active_queues" => json!([{"name": "pikake", "exchange": {}}]),
        "query_task" => json!({"7": ["active", job]}),
        _ => json!({"ok": "pong"}),
    }
}

fn event() -> Value {
    let kinds =
        ["worker-heartbeat", "worker-online", "worker-offline", "task-received", "task-failed"];
    json!({
        "type": kinds[pick(kinds.len())], "hostname": "odd@here", "freq": 2.0, "active": 1, "processed": 3, "clock": 9,
        "timestamp": 1.9e9, "utcoffset": 0, "pid": 3, "uuid": "7", "name": "tests.add", "runtime": 0.3,
    })
}

#[test]
fn mutated_replies_and_events_end_no_client() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let worker = App::on(Rc::new(store.open())).named("one@here").jobs([add::JOB]);
        let worker = Running::start(&worker, SECOND).await;
        // It listens to commands by now.
        sleep(SECOND).await.unwrap();
        let answered = Rc::new(Cell::new(0));
        let stranger = store.open();
        let told = answered.clone();
        let _answering = spawn(async move {
            let bus = stranger.bus().unwrap();
            let mut commands = bus.subscribe(Topic::Commands, "odd@here").await.unwrap();
            while let Ok(notice) = commands.next().await {
                let command: Value = serde_json::from_slice(&notice.body).unwrap();
                let Some(key) = command["reply_to"]["routing_key"].as_str() else { continue };
                let body = changed(json!({"odd@here": reply(command["method"].as_str().unwrap())}));
                let ticket = match pick(5) {
                    0 => odd(),
                    _ => command["ticket"].clone(),
                };
                let reply = Notice::new(Topic::Replies, key, body).header("ticket", ticket);
                bus.notify(reply.header("clock", odd())).await.unwrap();
                let event = match pick(4) {
                    0 => json!([event(), event()]),
                    _ => event(),
                };
                let event = Notice::new(Topic::Events, "worker.heartbeat", changed(event));
                bus.notify(event.header("clock", odd())).await.unwrap();
                told.set(told.get() + 1);
            }
        })
        .cancel_on_drop();
        let app = App::on(Rc::new(store.open())).connect().await.unwrap();
        let control = app.control().wait(SECOND / 2);
        let mut events = control.events().await.unwrap();
        let _reading = spawn(async move { while events.next().await.is_ok() {} }).cancel_on_drop();
        while answered.get() < count() {
            assert!(control.workers().await.unwrap().iter().any(|one| one.name == "one@here"));
            control.running().await.unwrap();
            control.reserved().await.unwrap();
            control.scheduled().await.unwrap();
            control.query("7").await.unwrap();
            control.paused().await.unwrap();
            control.revoke("other", true).await.unwrap();
        }
        assert!(control.ping().await.unwrap().contains(&"one@here".to_owned()));
        worker.end().await;
    });
}
