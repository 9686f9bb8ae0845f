//! Control over workers on the broker in memory, in virtual time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{
    App, Broker, Cancelled, ControlEvent, Handle, JobError, JobId, JobState, MemoryStore, Notice,
    Topic,
};
use pikake_macros::job;
use pikake_traps::{Interrupted, elapsed_since, now, shield, sleep, spawn, timeout_after};
use serde_json::{Value, json};

use crate::followed::sent;
use crate::meddled::{Asked, Meddled, at_once};
use crate::{Running, SECOND, add, in_worlds, nap};

/// A job that does not end when it is interrupted.
#[job(crate = pikake_jobs, name = "tests.stubborn")]
async fn stubborn() -> Result<(), Interrupted> {
    shield(sleep(1_000 * SECOND)).await
}

#[job(crate = pikake_jobs, name = "tests.fail", retries = 1, backoff(first = "1s", cap = "1s"))]
async fn fail() -> Result<(), String> {
    Err("it's broken".to_owned())
}

async fn named(store: &MemoryStore, name: &str) -> (App, Running) {
    let app = App::on(Rc::new(store.open())).named(name).jobs([
        add::JOB,
        nap::JOB,
        stubborn::JOB,
        fail::JOB,
    ]);
    let worker = Running::start(&app, SECOND).await;
    sleep(Duration::from_millis(10)).await.unwrap();
    (app, worker)
}

async fn client(store: &MemoryStore) -> App {
    App::on(Rc::new(store.open())).connect().await.unwrap()
}

#[test]
fn workers_and_jobs_are_listed() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        assert_eq!(app.control().workers().await.unwrap(), []);
        let (one, first) = named(&store, "one@here").await;
        let (_two, second) = named(&store, "two@here").await;
        assert_eq!(app.control().ping().await.unwrap(), ["one@here", "two@here"]);
        one.control().to(["one@here"]).set_concurrency(1).await.unwrap();
        one.control().to(["two@here"]).set_concurrency(2).await.unwrap();
        // The consumers are replaced.
        sleep(SECOND).await.unwrap();
        let begin = now();
        let mut jobs = Vec::new();
        for seconds in 1..=4 {
            jobs.push(nap::with(seconds * 10).on(&app).send().await.unwrap());
        }
        sleep(Duration::from_millis(10)).await.unwrap();
        let workers = app.control().workers().await.unwrap();
        let seen: Vec<_> = workers
            .iter()
            .map(|it| (&*it.name, it.concurrency, it.running, it.processed, it.queues.clone()))
            .collect();
        let queues = vec!["pikake".to_owned()];
        assert_eq!(
            seen,
            [("one@here", Some(1), 1, 0, queues.clone()), ("two@here", Some(2), 2, 0, queues)]
        );
        let running = app.control().running().await.unwrap();
        let reserved = app.control().reserved().await.unwrap();
        assert_eq!((running.len(), reserved.len()), (3, 1));
        assert!(running.iter().all(|job| job.state == JobState::Running && job.since.is_some()));
        assert_eq!(&*reserved[0].name, "tests.nap");
        let mut arguments: Vec<_> =
            running.iter().chain(&reserved).map(|job| &*job.arguments).collect();
        arguments.sort_unstable();
        assert_eq!(arguments, ["10", "20", "30", "40"]);
        let found = app.control().query(&running[0].id).await.unwrap();
        assert_eq!((found.len(), found[0].state), (1, JobState::Running));
        assert_eq!(app.control().query("nobody").await.unwrap(), []);
        assert!(elapsed_since(begin) < SECOND, "all workers are known, and none is waited for");
        let shown = serde_json::to_value(&workers).unwrap();
        assert_eq!(shown[0]["name"], "one@here");
        for job in jobs {
            job.wait().await.unwrap();
        }
        let workers = app.control().workers().await.unwrap();
        assert_eq!(workers.iter().map(|worker| worker.processed).sum::<u64>(), 4);
        first.end().await;
        assert_eq!(app.control().ping().await.unwrap(), ["two@here"]);
        app.control().shutdown().await.unwrap();
        second.task.await.unwrap().unwrap();
    });
}

#[test]
fn a_revoked_job_does_not_begin() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let job = add::with(1, 2).on(&app).countdown(5 * SECOND).send().await.unwrap();
        assert_eq!(app.control().revoke(&job.id().0, false).await.unwrap(), []);
        // The worker starts later.
        let (_one, worker) = named(&store, "one@here").await;
        assert!(
            matches!(job.wait().await.unwrap_err(), JobError::Revoked(why) if why == "cancelled")
        );
        assert_eq!(worker.end().await.stats.all.revoked, 1);
    });
}

#[test]
fn a_terminated_job_is_interrupted() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let begin = now();
        let job = nap::with(1_000).on(&app).send().await.unwrap();
        let hard = stubborn::with().on(&app).send().await.unwrap();
        let other = nap::with(3).on(&app).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        let answers = app.control().revoke(&job.id().0, true).await.unwrap();
        assert_eq!(answers[0].result, Ok(json!({"ok": format!("terminate: {}", job.id())})));
        assert!(matches!(job.wait().await.unwrap_err(), JobError::Revoked(_)));
        assert_eq!(elapsed_since(begin).as_secs(), 1);
        // From another process, so to say.
        assert_eq!(hard.cancel(), Cancelled::Asked);
        assert!(matches!(hard.wait().await.unwrap_err(), JobError::Revoked(_)));
        assert_eq!(elapsed_since(begin).as_secs(), 6, "after its grace");
        assert_eq!(other.wait().await.unwrap(), "slept");
        let answers = app.control().revoke("nobody", true).await.unwrap();
        assert_eq!(answers[0].result, Ok(json!({"ok": "terminate: tasks unknown"})));
        assert_eq!(worker.end().await.stats.all.revoked, 2);
    });
}

/// A job that Celery's canvas has stamped with an owner.
async fn stamped(store: &MemoryStore, app: &App, id: &str, owner: &str) -> Handle<String> {
    let mut message = sent("tests.nap", id, json!([1_000]), Value::Null);
    message.headers.insert("stamped_headers".to_owned(), json!(["owner"]));
    message.headers.insert("stamps".to_owned(), json!({"owner": [owner]}));
    let broker = store.open();
    broker.expect(&mut message).await.unwrap();
    broker.publish("pikake", message, None).await.unwrap();
    Handle::from_id(app, JobId(id.to_owned()))
}

#[test]
fn stamped_jobs_are_revoked() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let revoke = async |arguments: Value| {
            let answers = app.control().tell("revoke_by_stamped_headers", arguments).await.unwrap();
            answers[0].result.clone()
        };
        let ok = |text: &str| Ok(json!({ "ok": text }));
        let runs = stamped(&store, &app, "1", "ann").await;
        let other = stamped(&store, &app, "2", "ben").await;
        sleep(SECOND).await.unwrap();
        let told = revoke(json!({"headers": {"owner": ["it's", "ann"], "no": 1}})).await;
        let shown = "headers {'no': 1, 'owner': ['it\\'s', 'ann']}";
        assert_eq!(told, ok(&format!("{shown} flagged as revoked, but not terminated")));
        // Those that run go on, and later ones do not begin.
        assert_eq!(app.control().running().await.unwrap().len(), 2);
        let later = stamped(&store, &app, "3", "ann").await;
        assert!(matches!(later.wait().await.unwrap_err(), JobError::Revoked(_)));
        let told = revoke(json!({"headers": ["owner=ann", "no"], "terminate": true})).await;
        assert_eq!(told, ok("headers {'owner': 'ann'} revoked"));
        assert!(matches!(runs.wait().await.unwrap_err(), JobError::Revoked(_)));
        let told = revoke(json!({"headers": {"owner": "ann"}, "terminate": true})).await;
        assert_eq!(told, ok("headers {'owner': 'ann'} were not terminated"));
        assert!(revoke(json!({"headers": 7})).await.unwrap_err().starts_with("TypeError"));
        assert_eq!(app.control().running().await.unwrap()[0].id, other.id().0);
        let ids = app.control().tell("revoked", json!({})).await.unwrap();
        assert_eq!(ids[0].result, Ok(json!([])));
        assert_eq!(worker.end().await.stats.all.revoked, 2);
    });
}

#[job(crate = pikake_jobs, name = "tests.early", acks = "early", rate = "10/s", priority = 3)]
async fn early() -> Result<(), Interrupted> {
    sleep(1_000 * SECOND).await
}

/// The forms are those of Celery's workers, with no fields of our own.
#[test]
fn listings_have_celerys_form() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let worker = App::on(Rc::new(store.open())).named("one@here").jobs([early::JOB, nap::JOB]);
        let worker = Running::start(&worker, SECOND).await;
        let job = early::with().on(&app).priority(0).send().await.unwrap();
        let late = nap::with(1_000).on(&app).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        let ask = async |method: &str, arguments: Value| {
            app.control().tell(method, arguments).await.unwrap()[0].result.clone().unwrap()
        };
        let names = ask("registered", json!({})).await;
        assert_eq!(names, json!(["tests.early [rate_limit=10/s]", "tests.nap"]));
        let facts = ["name", "priority", "acks_late", "time_limit", "no_such_fact"];
        let names = ask("registered", json!({ "taskinfoitems": facts })).await;
        assert_eq!(names[0], "tests.early [name=tests.early priority=3 acks_late=False]");
        assert_eq!(names[1], "tests.nap [name=tests.nap priority=0 acks_late=True]");
        let active = ask("query_task", json!({ "ids": [job.id().0, late.id().0] })).await;
        assert_eq!(active[&job.id().0][1]["acknowledged"], true);
        assert_eq!(active[&late.id().0][1]["acknowledged"], false);
        let fields: Vec<_> = active[&job.id().0][1].as_object().unwrap().keys().cloned().collect();
        let expected = [
            "acknowledged",
            "args",
            "delivery_info",
            "hostname",
            "id",
            "kwargs",
            "name",
            "time_start",
            "type",
            "worker_pid",
        ];
        assert_eq!(fields, expected);
        let queue = ask("active_queues", json!({})).await[0].clone();
        assert_eq!(
            (&queue["name"], &queue["exchange"]["name"]),
            (&"pikake".into(), &"pikake".into())
        );
        assert_eq!((&queue["max_priority"], &queue["bindings"]), (&Value::Null, &json!([])));
        let conf = ask("conf", json!({})).await;
        assert_eq!((&conf["accept_content"], &conf["timezone"]), (&json!(["json"]), &"UTC".into()));
        app.control().revoke(&job.id().0, true).await.unwrap();
        app.control().revoke(&late.id().0, true).await.unwrap();
        worker.end().await;
    });
}

#[test]
fn a_paused_queue_is_not_consumed() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, first) = named(&store, "one@here").await;
        let running = nap::with(5).on(&app).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(app.control().pause("pikake").await.unwrap().len(), 1);
        assert_eq!(app.control().paused().await.unwrap(), ["pikake"]);
        let (_two, second) = named(&store, "two@here").await;
        let job = add::with(1, 2).on(&app).send().await.unwrap();
        assert!(timeout_after(60 * SECOND, job.wait()).await.is_err());
        assert_eq!(running.wait().await.unwrap(), "slept", "what runs goes on");
        let workers = app.control().workers().await.unwrap();
        assert!(workers.iter().all(|worker| worker.paused == ["pikake"]), "{workers:?}");
        app.control().resume("pikake").await.unwrap();
        assert_eq!(job.wait().await.unwrap(), 3);
        // Again, and with the worker's end while the queue is paused.
        app.control().pause("pikake").await.unwrap();
        first.end().await;
        second.end().await;
    });
}

#[test]
fn reserved_jobs_of_a_paused_queue_are_requeued() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        app.control().set_concurrency(1).await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..5 {
            jobs.push(nap::with(10).on(&app).send().await.unwrap());
        }
        sleep(SECOND).await.unwrap();
        app.control().pause("pikake").await.unwrap();
        sleep(SECOND).await.unwrap();
        let counts = app.broker().unwrap().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (4, Some(1)));
        app.control().resume("pikake").await.unwrap();
        for job in jobs {
            job.wait().await.unwrap();
        }
        assert_eq!(worker.end().await.stats.all.done, 5);
    });
}

#[test]
fn queues_are_added_and_cancelled() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let answers = app.control().add_queue("other").await.unwrap();
        assert_eq!(answers[0].result, Ok(json!({"ok": "add consumer other"})));
        let job = add::with(1, 2).on(&app).queue("other").send().await.unwrap();
        assert_eq!(job.wait().await.unwrap(), 3);
        app.control().cancel_queue("other").await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(app.control().workers().await.unwrap()[0].queues, ["pikake"]);
        let job = add::with(1, 2).on(&app).queue("other").send().await.unwrap();
        assert!(timeout_after(60 * SECOND, job.wait()).await.is_err());
        worker.end().await;
    });
}

#[test]
fn concurrency_grows_and_shrinks() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let running = async || app.control().running().await.unwrap().len();
        let mut jobs = Vec::new();
        for _ in 0..30 {
            jobs.push(nap::with(10).on(&app).send().await.unwrap());
        }
        sleep(SECOND).await.unwrap();
        assert_eq!(running().await, 30);
        app.control().set_concurrency(3).await.unwrap();
        assert_eq!(running().await, 30, "running jobs go on");
        for _ in 0..9 {
            jobs.push(nap::with(10).on(&app).send().await.unwrap());
        }
        sleep(10 * SECOND).await.unwrap();
        assert_eq!(running().await, 3);
        app.control().tell("pool_grow", json!({"n": 4})).await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(running().await, 7);
        app.control().tell("pool_shrink", json!({"n": 6})).await.unwrap();
        let refused = app.control().tell("pool_shrink", json!({"n": 1})).await.unwrap();
        assert!(refused[0].result.is_err());
        for job in jobs {
            job.wait().await.unwrap();
        }
        assert_eq!(worker.end().await.stats.all.done, 39);
    });
}

#[test]
fn time_limits_are_set() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let control = app.control();
        let set = control.time_limit("tests.nap", None, Some(2 * SECOND)).await.unwrap();
        assert_eq!(set[0].result, Ok(json!({"ok": "time limits set successfully"})));
        let unknown = control.time_limit("tests.none", None, None).await.unwrap();
        assert_eq!(unknown[0].result, Err("unknown task".to_owned()));
        let begin = now();
        let job = nap::with(60).on(&app).send().await.unwrap();
        let error = job.wait().await.unwrap_err().to_string();
        assert!(error.contains("time limit"), "{error}");
        assert_eq!(elapsed_since(begin).as_secs(), 2);
        worker.end().await;
    });
}

/// The kinds of a job's events.
fn kinds<'a>(events: &'a [ControlEvent], job: &str) -> Vec<&'a str> {
    let of_job = events.iter().filter(|event| event.job.as_deref() == Some(job));
    of_job.map(|event| &*event.kind).collect()
}

#[test]
fn events_tell_of_each_job() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let mut stream = app.control().events().await.unwrap();
        let quiet = add::with(1, 2).on(&app).send().await.unwrap();
        quiet.wait().await.unwrap();
        app.control().enable_events(true).await.unwrap();
        let good = add::with(1, 2).on(&app).send().await.unwrap();
        let bad = fail::with().on(&app).send().await.unwrap();
        let long = nap::with(600).on(&app).send().await.unwrap();
        let late =
            add::with(1, 2).on(&app).expires(SECOND).countdown(2 * SECOND).send().await.unwrap();
        good.wait().await.unwrap();
        bad.wait().await.unwrap_err();
        late.wait().await.unwrap_err();
        app.control().revoke(&long.id().0, true).await.unwrap();
        long.wait().await.unwrap_err();
        worker.end().await;
        let mut events = Vec::new();
        while let Ok(event) = timeout_after(SECOND, stream.next()).await {
            events.push(event.unwrap());
        }
        assert_eq!(kinds(&events, &quiet.id().0), [""; 0]);
        let of = |job: &str| kinds(&events, job).join(" ").replace("task-", "");
        assert_eq!(of(&good.id().0), "received started succeeded");
        assert_eq!(of(&bad.id().0), "received started retried received started failed");
        assert_eq!(of(&long.id().0), "received started revoked");
        let of_good: Vec<_> =
            events.iter().filter(|event| event.job.as_ref() == Some(&good.id().0)).collect();
        assert_eq!(of_good[0].fields["args"], "(1,2)");
        assert_eq!(of_good[0].fields["name"], "tests.add");
        assert_eq!(of_good[2].fields["result"], "3");
        let failed = events.iter().find(|event| event.kind == "task-failed").unwrap();
        let exception = failed.fields["exception"].as_str().unwrap();
        assert!(exception.contains(r#"("it's broken")"#), "{exception}");
        let clocks: Vec<_> =
            events.iter().filter_map(|event| event.fields["clock"].as_u64()).collect();
        assert!(clocks.is_sorted(), "{clocks:?}");
        assert_eq!(events.last().unwrap().kind, "worker-offline");
    });
}

#[test]
fn patterns_choose_workers() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, first) = named(&store, "one@here").await;
        let (_two, second) = named(&store, "two@here").await;
        let broker = store.open();
        let bus = broker.bus().unwrap();
        let mut replies = bus.subscribe(Topic::Replies, "me").await.unwrap();
        let ask = |more: Value| {
            let mut body = json!({
                "method": "ping",
                "ticket": "7",
                "reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "me"},
            });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Notice::new(Topic::Commands, "", body.to_string().into_bytes())
        };
        for question in [
            json!({"pattern": "t*@here", "matcher": "glob"}),
            json!({"destination": ["two@here"]}),
            json!({"destination": ["nobody@here"]}),
            json!({"method": "nosuchcommand"}),
            json!({"pattern": "two.*", "matcher": "pcre"}),
        ] {
            bus.notify(ask(question)).await.unwrap();
        }
        for _ in 0..2 {
            let reply = timeout_after(SECOND, replies.next()).await.unwrap().unwrap();
            assert_eq!(reply.headers["ticket"], "7");
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(body, json!({"two@here": {"ok": "pong"}}));
        }
        assert!(timeout_after(SECOND, replies.next()).await.is_err());
        drop(app);
        first.end().await;
        second.end().await;
    });
}

/// What a hostile sender may write: the worker goes on, and answers the next one.
#[test]
fn malformed_commands_cost_nothing() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let broker = store.open();
        for (number, body) in [
            b"".to_vec(),
            vec![0xff; 1_000],
            vec![b'['; 1_000_000],
            b"{\"method\": \"ping\", \"arguments\": []}".to_vec(),
            b"{\"method\": \"ping\", \"destination\": {}}".to_vec(),
            vec![b' '; 100 << 20],
            b"{\"method\": \"revoke\"}".to_vec(),
            b"{\"method\": \"pool_grow\", \"arguments\": {\"n\": 1e300}}".to_vec(),
            b"{\"method\": \"pool_grow\", \"arguments\": {\"n\": 18446744073709551615}}".to_vec(),
            b"{\"method\": \"time_limit\", \"arguments\": {\"task_name\": \"tests.add\", \"soft\": -1}}"
                .to_vec(),
        ]
        .into_iter()
        .enumerate()
        {
            let notice = Notice::new(Topic::Commands, "", body).header("clock", u64::MAX);
            broker.bus().unwrap().notify(notice).await.unwrap();
            assert_eq!(app.control().ping().await.unwrap(), ["one@here"], "{number}");
        }
        let job = add::with(1, 2).on(&app).send().await.unwrap();
        assert_eq!(job.wait().await.unwrap(), 3);
        worker.end().await;
    });
}

/// A worker whose task is dropped leaves no consumer and no subscription.
#[test]
fn a_dropped_worker_is_gone() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let one = App::on(Rc::new(store.open())).named("one@here").jobs([nap::JOB]);
        let worker = spawn(one.worker().run()).cancel_on_drop();
        let _job = nap::with(60).on(&app).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(app.control().ping().await.unwrap(), ["one@here"]);
        drop(worker);
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(app.control().ping().await.unwrap(), [""; 0]);
        let counts = app.broker().unwrap().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.consumers), (1, Some(0), Some(0)));
    });
}

/// The reply to a command waits for its broker, as during an alarm, when the worker ends.
#[test]
fn a_worker_ends_while_its_reply_waits() {
    in_worlds(async || {
        let (store, is_stuck) = (MemoryStore::new(), Rc::new(Cell::new(false)));
        let waits = is_stuck.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
            Asked::Notify if waits.get() => Box::pin(async { Ok(sleep(1_000 * SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let app = App::on(Rc::new(broker)).named("one@here").jobs([add::JOB]);
        let worker = Running::start(&app, SECOND).await;
        sleep(SECOND).await.unwrap();
        is_stuck.set(true);
        let client = client(&store).await;
        let asking = spawn(async move { client.control().ping().await });
        sleep(SECOND / 2).await.unwrap();
        let begin = now();
        timeout_after(60 * SECOND, worker.end()).await.expect("the worker ends");
        assert!(elapsed_since(begin) < 2 * SECOND, "its last event waits for a second");
        assert_eq!(asking.await.unwrap().unwrap(), [""; 0]);
    });
}

/// The pause comes while the worker declares a queue again whose consumer the broker has cancelled.
#[test]
fn a_queue_that_is_declared_again_is_paused() {
    in_worlds(async || {
        let (store, is_cut) = (MemoryStore::new(), Rc::new(Cell::new(false)));
        let cut = is_cut.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
            Asked::Next(is_cancelled) => {
                *is_cancelled = cut.get();
                at_once(Ok(()))
            }
            Asked::Declare if cut.get() => Box::pin(async { Ok(sleep(2 * SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let app = App::on(Rc::new(broker)).named("one@here").jobs([add::JOB]);
        let worker = Running::start(&app, SECOND).await;
        sleep(SECOND).await.unwrap();
        is_cut.set(true);
        assert_eq!(add::with(1, 2).on(&app).send().await.unwrap().wait().await.unwrap(), 3);
        sleep(SECOND).await.unwrap();
        app.control().pause("pikake").await.unwrap();
        is_cut.set(false);
        sleep(30 * SECOND).await.unwrap();
        assert_eq!(store.open().counts("pikake").await.unwrap().consumers, Some(0));
        timeout_after(60 * SECOND, worker.end()).await.expect("the worker ends");
    });
}

/// On a broker that keeps no facts, they are in the file; here each worker has a broker of its own.
#[test]
fn a_state_file_outlives_the_worker() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("state.json");
    pikake_kernel::Kernel::new().unwrap().run(async {
        let start = async || {
            let broker = Rc::new(Meddled::without_facts(Rc::new(MemoryStore::new().open())));
            let app = App::on(broker).named("one@here").state_file(&path).jobs([add::JOB]);
            let worker = Running::start(&app, SECOND).await;
            while app.control().ping().await.unwrap().is_empty() {
                sleep(Duration::from_millis(5)).await.unwrap();
            }
            (app, worker)
        };
        let (app, worker) = start().await;
        app.control().revoke("seven", false).await.unwrap();
        app.control().pause("other").await.unwrap();
        worker.end().await;
        let (app, worker) = start().await;
        assert_eq!(app.control().workers().await.unwrap()[0].paused, ["other"]);
        let job = add::with(1, 2).id("seven").on(&app).send().await.unwrap();
        assert!(matches!(job.wait().await, Err(JobError::Revoked(_))));
        worker.end().await;
    });
}

/// A queue that was resumed while a worker was away is not paused for that worker, whatever its
/// file says.
#[test]
fn a_broker_knows_better_than_a_state_file() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("state.json");
    std::fs::write(&path, r#"{"revoked":[],"paused":["other","third"]}"#).unwrap();
    pikake_kernel::Kernel::new().unwrap().run(async {
        let store = MemoryStore::new();
        let app = client(&store).await;
        app.control().pause("third").await.unwrap();
        let one = App::on(Rc::new(store.open())).named("one@here").state_file(&path);
        let worker = Running::start(&one.jobs([add::JOB]), SECOND).await;
        while app.control().ping().await.unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
        assert_eq!(app.control().workers().await.unwrap()[0].paused, ["third"]);
        worker.end().await;
    });
}

/// A queue that was resumed while a worker was away is not paused when that worker has asked the
/// others.
#[test]
fn a_worker_takes_over_which_queues_are_paused() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        app.control().pause("other").await.unwrap();
        let told = json!({"from_node": "two@here", "paused": ["third"]});
        app.control().tell("hello", told).await.unwrap();
        assert_eq!(app.control().workers().await.unwrap()[0].paused, ["third"]);
        worker.end().await;
    });
}

/// Whoever may publish could fill the memory of all workers.
#[test]
fn names_from_outside_are_bounded() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (_one, worker) = named(&store, "one@here").await;
        let long = "x".repeat(256);
        let control = app.control();
        control.tell("revoke", json!({"task_id": [long, "short"]})).await.unwrap();
        let revoked = control.tell("revoked", json!({})).await.unwrap();
        assert_eq!(revoked[0].result, Ok(json!(["short"])));
        for method in ["pause_queue", "add_consumer"] {
            let answer = control.tell(method, json!({"queue": long})).await.unwrap();
            assert!(answer[0].result.is_err(), "{answer:?}");
        }
        let told: Vec<_> = (0..2_000).map(|number| number.to_string()).collect();
        let hello = json!({"from_node": "stranger", "paused": told, "revoked": [long]});
        control.tell("hello", hello).await.unwrap();
        let answer = control.tell("pause_queue", json!({"queue": "one more"})).await.unwrap();
        assert!(answer[0].result.is_err(), "{answer:?}");
        assert_eq!(control.workers().await.unwrap()[0].paused.len(), 1_000);
        worker.end().await;
    });
}

/// A large body is not read for a listing, and a list has an end.
#[test]
fn listings_are_bounded() {
    pikake_sim::example(async {
        let store = MemoryStore::new();
        let app = client(&store).await;
        let (one, worker) = named(&store, "one@here").await;
        one.control().set_concurrency(1).await.unwrap();
        nap::with(1_000_000).on(&app).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        let broker = store.open();
        let mut large = sent("tests.add", "large", json!(["x".repeat(100_000), 1]), json!({}));
        large.headers.insert("argsrepr".into(), "('xxx', 1)".into());
        broker.publish("pikake", large, None).await.unwrap();
        sleep(SECOND).await.unwrap();
        let reserved = app.control().reserved().await.unwrap();
        assert_eq!(reserved.iter().map(|job| &*job.arguments).collect::<Vec<_>>(), ["('xxx', 1)"]);
        let one = App::on(Rc::new(store.open())).named("two@here").jobs([nap::JOB]);
        let one = one.concurrency(1).prefetch(10_000);
        let second = Running::start(&one, SECOND).await;
        for number in 0..6_000 {
            nap::with(1_000_000 + number).on(&app).send().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        let reserved = app.control().to(["two@here"]).reserved().await.unwrap();
        assert_eq!(reserved.len(), 5_000);
        second.end().await;
        worker.end().await;
    });
}

/// Each cancel is known to the workers, also if the program closes at once; many are one message.
#[test]
fn cancels_before_a_close_are_sent() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let (_one, worker) = named(&store, "one@here").await;
        let sent = Rc::new(Cell::new(0));
        let count = sent.clone();
        let before = move |asked: Asked<'_>| {
            count.set(count.get() + u32::from(matches!(asked, Asked::Notify)));
            at_once(Ok(()))
        };
        let app = App::on(Rc::new(Meddled::new(Rc::new(store.open()), before)));
        let app = app.connect().await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..100 {
            jobs.push(nap::with(1_000).on(&app).send().await.unwrap());
        }
        sleep(SECOND).await.unwrap();
        for job in &jobs {
            assert_eq!(job.cancel(), Cancelled::Asked);
        }
        app.close().await.unwrap();
        assert_eq!(sent.get(), 1);
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.revoked, 100);
    });
}

/// Of each job that an application sends, and of those that its worker sends after another one.
#[test]
fn sent_events_tell_of_jobs_before_a_worker_does() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let asker = client(&store).await;
        let app = App::on(Rc::new(store.open())).named("one@here").jobs([add::JOB]);
        let worker = Running::start(&app.send_sent_events(true), SECOND).await;
        let sender = App::on(Rc::new(store.open())).send_sent_events(true).connect().await.unwrap();
        let mut stream = asker.control().events().await.unwrap();
        add::with(1, 2).on(&asker).send().await.unwrap();
        let late = add::with(1, 2).on(&sender).countdown(1_000 * SECOND).send().await.unwrap();
        let chained = add::with(1, 2).then(add::after(3)).on(&sender).send().await.unwrap();
        assert_eq!(chained.wait().await.unwrap(), 6);
        worker.end().await;
        let mut events = Vec::new();
        while let Ok(event) = timeout_after(SECOND, stream.next()).await {
            events.extend(event.ok().filter(|event| event.kind == "task-sent"));
        }
        let jobs: Vec<_> = events.iter().map(|event| event.job.as_deref().unwrap()).collect();
        assert_eq!((jobs.len(), jobs[0], jobs[2]), (3, &*late.id().0, &*chained.id().0));
        let of = |name: &str| events[0].fields[name].clone();
        assert_eq!(
            (of("name"), of("args"), of("queue")),
            ("tests.add".into(), "(1,2)".into(), "pikake".into())
        );
        assert!(of("eta").is_string());
    });
}
