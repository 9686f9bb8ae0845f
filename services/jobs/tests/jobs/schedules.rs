//! Schedules, and the setup hook.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::SystemTime;

use pikake_jobs::{
    App, AppError, Broker, BrokerError, MemoryStore, Message, Missed, QueueOptions, Schedule,
    Unique, UntilWhen, current_job,
};
use pikake_macros::job;
use pikake_sim::busy_for;
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};

use tracing::Level;

use crate::lines::Lines;
use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Events, Running, SECOND, Stage, add, app, in_worlds, note, noted, stage};

#[job(crate = pikake_jobs)]
async fn beat(name: String) {
    note(&name);
}

fn ticks() -> Schedule {
    Schedule::every(10 * SECOND, beat::with("tick".into())).name("ticks")
}

fn scheduled(app: App, schedules: impl IntoIterator<Item = Schedule>) -> App {
    schedules.into_iter().fold(app.jobs([beat::JOB]).with_schedules(), App::schedule)
}

/// Workers of one store, each with a broker of its own.
fn worker_of(store: &MemoryStore, schedules: impl IntoIterator<Item = Schedule>) -> App {
    scheduled(App::on(Rc::new(store.open())), schedules)
}

#[test]
fn missed_moments_are_sent_once() {
    in_worlds(async || {
        let (app, _) = app();
        let events = noted();
        let app = app.jobs([beat::JOB]).every(10 * SECOND, beat::with("tick".into()));
        let worker = Running::start(&app, SECOND).await;
        sleep(25 * SECOND).await.unwrap();
        // The whole machine stands still over three intervals.
        busy_for(31 * SECOND);
        sleep(20 * SECOND).await.unwrap();
        worker.end().await;
        sleep(30 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["10 tick", "20 tick", "56 tick", "60 tick", "70 tick"]);
    });
}

#[test]
fn one_of_many_workers_sends() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let mut workers = Vec::new();
        for _ in 0..5 {
            workers.push(Running::start(&worker_of(&store, [ticks()]), SECOND).await);
        }
        sleep(25 * SECOND).await.unwrap();
        // The first one leads. The others go on without it.
        workers.remove(0).end().await;
        sleep(20 * SECOND).await.unwrap();
        // A lost one says nothing.
        workers.remove(0).task.abort();
        sleep(20 * SECOND).await.unwrap();
        for worker in workers {
            worker.end().await;
        }
        let expected = ["10 tick", "20 tick", "30 tick", "40 tick", "50 tick", "60 tick"];
        assert_eq!(*events.borrow(), expected);
    });
}

#[test]
fn what_was_missed_while_all_were_down() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let schedules =
            [(Missed::Skip, "skip"), (Missed::RunOnce, "once"), (Missed::RunAll, "all")];
        let schedules = schedules.map(|(missed, name)| {
            Schedule::every(100 * SECOND, beat::with(name.into())).name(name).missed(missed)
        });
        let events = noted();
        let worker = Running::start(&worker_of(&store, schedules.clone()), SECOND).await;
        sleep(150 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(events.take().len(), 3);
        // 200, 300 and 400 pass.
        sleep(325 * SECOND).await.unwrap();
        let worker = Running::start(&worker_of(&store, schedules), SECOND).await;
        sleep(10 * SECOND).await.unwrap();
        let info = worker_of(&store, []).connect().await.unwrap().schedules().list().await.unwrap();
        sleep(50 * SECOND).await.unwrap();
        worker.end().await;
        let mut events = events.take();
        events.sort();
        let expected =
            ["475 all", "475 all", "475 all", "475 once", "500 all", "500 once", "500 skip"];
        assert_eq!(events, expected);
        assert_eq!(info.iter().map(|info| info.missed_count).collect::<Vec<_>>(), [3, 3, 3]);
    });
}

#[test]
fn a_moment_that_is_hardly_late_is_not_missed() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let schedule = [ticks().missed(Missed::Skip)];
        let events = noted();
        let worker = Running::start(&worker_of(&store, schedule.clone()), SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        worker.end().await;
        sleep(8 * SECOND).await.unwrap();
        let worker = Running::start(&worker_of(&store, schedule), SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(*events.borrow(), ["10 tick", "23 tick", "30 tick"]);
    });
}

#[test]
fn schedules_are_changed_at_run_time() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| scheduled(app, [])).await;
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        let schedules = console.schedules();
        assert_eq!(schedules.list().await.unwrap(), []);
        let added = schedules.add(ticks()).await.unwrap();
        assert_eq!((added[0].name.as_str(), added[0].is_added), ("ticks", true));
        assert_eq!(added[0].when, "every 10s");
        sleep(15 * SECOND).await.unwrap();
        assert!(schedules.pause("ticks").await.unwrap()[0].is_paused);
        sleep(20 * SECOND).await.unwrap();
        schedules.run_now("ticks").await.unwrap();
        sleep(10 * SECOND).await.unwrap();
        assert!(!schedules.resume("ticks").await.unwrap()[0].is_paused);
        sleep(10 * SECOND).await.unwrap();
        assert_eq!(schedules.remove("ticks").await.unwrap(), []);
        sleep(60 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(*events.borrow(), ["10 tick", "35 tick", "50 tick"]);
        let error = schedules.pause("ticks").await.unwrap_err();
        assert_eq!(error.to_string(), "there is no schedule `ticks`");
    });
}

/// A message to the leader, from a stranger.
async fn tell_leader(store: &MemoryStore, note: &str) {
    let broker = store.open();
    let queue = "pikake.schedules";
    broker.declare(queue, &QueueOptions::new().single_consumer(true)).await.unwrap();
    let mut message = Message::default();
    message.body = note.into();
    broker.publish(queue, message, None).await.unwrap();
}

#[test]
fn a_stranger_adds_no_schedule_that_cannot_be() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let whens = [
            r#"{"interval": {"secs": 0, "nanos": 0}}"#,
            r#"{"cron": "0 0 30 2 *", "zone": "UTC"}"#,
            r#"{"cron": "* * * * *", "zone": "nowhere"}"#,
        ];
        let long = "n".repeat(201);
        let names = ["zero", "never", "nowhere", &long];
        for (name, when) in
            names.iter().zip(whens.iter().chain([&r#"{"interval": {"secs": 1, "nanos": 0}}"#]))
        {
            let task = r#"{"job": "beat", "args": {"Ok": ["odd"]}, "kwargs": {"Ok": {}}, "queue": null,
                "expires": null, "limits": [null, null], "max_retries": null, "priority": 0,
                "ignore_result": true}"#;
            let put = format!(
                r#"{{"put": {{"name": "{name}", "when": {when}, "missed": "skip", "task": {task}}}}}"#
            );
            tell_leader(&store, &put).await;
        }
        let worker = Running::start(&worker_of(&store, [ticks()]), SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        let listed = console.schedules().list().await.unwrap();
        assert_eq!(listed.iter().map(|info| &*info.name).collect::<Vec<_>>(), ["ticks"]);
        let broker = store.open();
        assert!(broker.dead("pikake.schedules", 10).await.unwrap().is_empty(), "all were read");
        worker.end().await;
        assert_eq!(*events.borrow(), ["10 tick"]);
    });
}

/// The first state comes back when the second one is written.
#[test]
fn two_changes_at_once_write_two_states() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| scheduled(app, [ticks()])).await;
        sleep(SECOND).await.unwrap();
        tell_leader(&store, r#"{"pause": "ticks"}"#).await;
        tell_leader(&store, r#"{"resume": "ticks"}"#).await;
        sleep(SECOND).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        assert!(!console.schedules().list().await.unwrap()[0].is_paused);
        worker.end().await;
        let broker = store.open();
        let mut states = broker.consume("pikake.schedules", 10).await.unwrap();
        let state = states.next().await.unwrap().unwrap();
        let state: serde_json::Value = serde_json::from_slice(&state.message.body).unwrap();
        assert!(state["state"]["version"].as_u64().unwrap() < 10, "{state}");
    });
}

/// More than a leader may hold.
#[test]
fn a_leader_gets_through_hundreds_of_messages_to_its_state() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        for _ in 0..450 {
            tell_leader(&store, "\"hello\"").await;
        }
        let worker = Running::start(&worker_of(&store, [ticks()]), SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        assert_eq!(console.schedules().list().await.unwrap().len(), 1);
        sleep(10 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(*events.borrow(), ["10 tick", "20 tick"]);
        let left = store.open().counts("pikake.schedules").await.unwrap();
        assert_eq!(left.ready, 1, "the state");
    });
}

#[test]
fn changes_without_a_worker_are_kept_for_the_next() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        console.schedules().add(ticks()).await.unwrap();
        console.schedules().run_now("ticks").await.unwrap();
        let other = App::on(Rc::new(store.open())).connect().await.unwrap();
        assert_eq!(other.schedules().list().await.unwrap().len(), 1);
        let worker = Running::start(&worker_of(&store, []), SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        worker.end().await;
        let listed = other.schedules().list().await.unwrap();
        assert!(listed[0].last.is_some());
        assert_eq!(events.borrow().len(), 2, "now, and after an interval");
    });
}

#[test]
fn the_programs_schedules_are_those_of_its_leader() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| scheduled(app, [ticks()])).await;
        sleep(SECOND).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        let refused = console.schedules().remove("ticks").await.unwrap_err();
        assert!(refused.to_string().contains("pause it instead"), "{refused}");
        console.schedules().pause("ticks").await.unwrap();
        worker.end().await;
        // The next version has another interval, and is paused still.
        let slower = Schedule::every(20 * SECOND, beat::with("slow".into())).name("ticks");
        let worker = Running::start(&worker_of(&store, [slower]), SECOND).await;
        sleep(50 * SECOND).await.unwrap();
        let listed = console.schedules().list().await.unwrap();
        assert_eq!((listed[0].when.as_str(), listed[0].is_paused), ("every 20s", true));
        worker.end().await;
        // The one after that has none.
        let worker = Running::start(&worker_of(&store, []), SECOND).await;
        sleep(5 * SECOND).await.unwrap();
        assert_eq!(console.schedules().list().await.unwrap(), []);
        worker.end().await;
        assert!(events.borrow().is_empty());
    });
}

#[test]
fn times_of_a_calendar() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let hourly = Schedule::cron("0 * * * *", "UTC", beat::with("hour".into())).unwrap();
        let worker = Running::start(&worker_of(&store, [hourly]), SECOND).await;
        noted();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        sleep(3_600 * SECOND).await.unwrap();
        let info = console.schedules().list().await.unwrap().remove(0);
        let second = |moment: Option<SystemTime>| {
            moment.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() % 3_600
        };
        assert_eq!((second(info.last), second(info.next)), (0, 0));
        assert_eq!(info.when, "0 * * * * (UTC)");
        worker.end().await;
    });
}

/// The jobs get to the broker, and its confirms do not come back: the moment is sent again, with
/// the same id.
#[test]
fn a_moment_that_is_sent_twice_has_one_id() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let is_cut = Rc::new(Cell::new(false));
        let cut = is_cut.clone();
        let broker = Meddled::new(Rc::new(store.open()), |_| at_once(Ok(())));
        let broker = broker.after(move |asked| match asked {
            Asked::Publish(..) if cut.get() => Err(lost()),
            _ => Ok(()),
        });
        // Its jobs stay in their queue.
        let sends = |app: App| spawn(app.schedule(ticks()).worker().queues(["else"]).run());
        let leader = sends(App::on(Rc::new(broker)));
        sleep(5 * SECOND).await.unwrap();
        is_cut.set(true);
        sleep(5 * SECOND + SECOND / 2).await.unwrap();
        leader.abort();
        let other = sends(App::on(Rc::new(store.open())));
        sleep(15 * SECOND).await.unwrap();
        other.request_cancel("it is over");
        other.await.unwrap().unwrap();
        let broker = store.open();
        let mut jobs = broker.consume("pikake", 100).await.unwrap();
        let mut ids = Vec::new();
        while let Ok(next) = timeout_after(SECOND, jobs.next()).await {
            ids.push(next.unwrap().unwrap().message.job().unwrap().to_owned());
        }
        let moments: BTreeSet<_> = ids.iter().collect();
        assert!(ids[0].starts_with("ticks@") && ids[0] == ids[1], "{ids:?}");
        assert_eq!((ids.len(), moments.len()), (3, 2), "{ids:?}");
    });
}

/// Three schedules, of which the second one's jobs have a queue of their own.
fn app_with_bad_schedule(broker: Meddled) -> App {
    let tens = |name: &str, job| Schedule::every(10 * SECOND, job).name(name);
    let bad = tens("m", beat::with("bad".into()).queue("gone"));
    let app = App::on(Rc::new(broker)).jobs([beat::JOB]);
    let app = app.schedule(tens("a", beat::with("a".into())));
    app.schedule(bad).schedule(tens("z", beat::with("z".into())))
}

/// The queue of one schedule was deleted, or is another one.
#[test]
fn a_schedule_that_is_refused_stops_no_other() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let is_gone = Rc::new(Cell::new(false));
        let gone = is_gone.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
            // The workers' own queues are declared by now.
            Asked::Declare if gone.get() => at_once(Err(BrokerError::Refused("it is gone".into()))),
            _ => at_once(Ok(())),
        });
        let events = noted();
        let app = app_with_bad_schedule(broker);
        let worker = Running::start(&app, SECOND).await;
        sleep(5 * SECOND).await.unwrap();
        is_gone.set(true);
        sleep(20 * SECOND).await.unwrap();
        let console = App::on(Rc::new(store.open())).connect().await.unwrap();
        let refused = console.schedules().run_now("m").await.unwrap_err();
        assert!(refused.to_string().contains("it is gone"), "{refused}");
        is_gone.set(false);
        sleep(10 * SECOND).await.unwrap();
        worker.end().await;
        let mut events = events.take();
        events.sort();
        assert_eq!(events, ["10 a", "10 z", "20 a", "20 z", "30 a", "30 z"]);
        let jobs = store.open().counts("gone").await.unwrap();
        assert_eq!(jobs.ready, 1, "the queue is there again");
    });
}

#[test]
fn a_leader_that_fails_has_written_what_it_has_sent() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let fails = Rc::new(Cell::new(false));
        let once = fails.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
            Asked::Declare if once.take() => {
                at_once(Err(BrokerError::Io(ErrorKind::PermissionDenied.into())))
            }
            _ => at_once(Ok(())),
        });
        let events = noted();
        let worker = Running::start(&app_with_bad_schedule(broker), SECOND).await;
        sleep(5 * SECOND).await.unwrap();
        fails.set(true);
        sleep(20 * SECOND).await.unwrap();
        worker.end().await;
        let mut events = events.take();
        events.sort();
        assert_eq!(events, ["10 a", "11 z", "20 a", "20 z"]);
        assert_eq!(store.open().counts("gone").await.unwrap().ready, 2);
    });
}

#[test]
fn a_schedule_ends_with_its_worker_in_the_middle_of_sending() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let broker = Meddled::new(Rc::new(store.open()), |asked| match asked {
            Asked::Publish(..) => Box::pin(async { Ok(sleep(SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let events = noted();
        let app = App::on(Rc::new(broker)).jobs([beat::JOB]).schedule(ticks());
        // The first message to the leader takes a second, too.
        let worker = Running::start(&app, SECOND).await;
        sleep(11 * SECOND + SECOND / 2).await.unwrap();
        worker.end().await;
        assert!(events.borrow().is_empty(), "the job has come when the worker took none any more");
        let worker = Running::start(&app, SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(events.borrow().len(), 2, "it was sent once: {events:?}");
    });
}

#[test]
fn setup_is_called_once_connected() {
    in_worlds(async || {
        let (app, _) = app();
        let events = Events::default();
        let seen = events.clone();
        // The shape of a larger application: qos, queues, consumers, tasks beside them.
        let app = app.jobs([add::JOB]).setup(move |app: App| {
            let events = seen.clone();
            async move {
                app.clone().prefetch(10);
                app.declare("reports", &QueueOptions::default()).await?;
                app.consume("reports");
                let (seen, since) = (events.clone(), now());
                app.spawn(async move {
                    while sleep(10 * SECOND).await.is_ok() {
                        let seconds = elapsed_since(since).as_secs();
                        seen.borrow_mut().push(format!("info at {seconds}"));
                    }
                    seen.borrow_mut().push("info ends".into());
                });
                add::with(1, 2).queue("reports").send().await.map_err(|_| BrokerError::Closed)?;
                events.borrow_mut().push("set up".into());
                Ok::<_, BrokerError>(())
            }
        });
        let app = app.connect().await.unwrap();
        let app = app.connect().await.unwrap();
        let worker = Running::start(&app, SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 1);
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["set up", "info at 10", "info ends"]);
    });
}

#[test]
fn a_setup_that_fails_is_tried_again_by_the_next_connect() {
    in_worlds(async || {
        let (app, _) = app();
        let tries = Rc::new(RefCell::new(0));
        let count = tries.clone();
        let app = app.setup(move |_| {
            *count.borrow_mut() += 1;
            let first = *count.borrow() == 1;
            async move { if first { Err("not yet") } else { Ok(()) } }
        });
        let error = app.clone().connect().await.unwrap_err();
        assert!(matches!(&error, AppError::Setup(_)), "{error}");
        app.connect().await.unwrap();
        assert_eq!(*tries.borrow(), 2);
    });
}

#[test]
fn a_connect_that_is_dropped_is_made_again_from_the_start() {
    in_worlds(async || {
        let (app, _) = app();
        let done = Rc::new(RefCell::new(0));
        let count = done.clone();
        let app = app.setup(move |_| {
            let count = count.clone();
            async move {
                sleep(SECOND).await?;
                *count.borrow_mut() += 1;
                Ok::<_, pikake_traps::Interrupted>(())
            }
        });
        let connecting = pikake_traps::spawn(app.clone().connect());
        sleep(SECOND / 2).await.unwrap();
        connecting.abort();
        sleep(SECOND).await.unwrap();
        assert_eq!(*done.borrow(), 0);
        app.connect().await.unwrap();
        assert_eq!(*done.borrow(), 1, "it is set up");
    });
}

#[test]
fn one_that_is_closed_while_it_is_set_up_is_not_connected() {
    in_worlds(async || {
        let (app, _) = app();
        let events = noted();
        let app = app.setup(|app: App| {
            async move {
                sleep(2 * SECOND).await?;
                let beside = app.clone();
                app.spawn(async move {
                    let ended = sleep(60 * SECOND).await;
                    // It keeps the application.
                    drop(beside);
                    note(if ended.is_err() { "told" } else { "forgotten" });
                });
                sleep(SECOND).await
            }
        });
        let connecting = spawn(app.clone().connect());
        sleep(SECOND).await.unwrap();
        app.close().await.unwrap();
        let error = connecting.await.unwrap().unwrap_err();
        assert!(matches!(&error, AppError::Broker(BrokerError::Closed)), "{error}");
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["3 told"]);
    });
}

#[test]
fn what_is_started_after_the_end_is_ended_as_well() {
    in_worlds(async || {
        let (app, _) = app();
        let app = app.connect().await.unwrap();
        app.close().await.unwrap();
        let events = noted();
        let beside = app.clone();
        app.spawn(async move {
            let ended = sleep(60 * SECOND).await;
            drop(beside);
            note(if ended.is_err() { "told" } else { "forgotten" });
        });
        sleep(SECOND).await.unwrap();
        app.close().await.unwrap();
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["1 told"]);
    });
}

#[job(crate = pikake_jobs)]
async fn shows_headers() {
    note(&current_job().header("tenant").cloned().unwrap_or_default().to_string());
}

#[test]
fn headers_and_times_of_the_call_are_kept() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let call = shows_headers::with().header("tenant", "blue").countdown(3 * SECOND);
        let app = App::on(Rc::new(store.open())).jobs([shows_headers::JOB]);
        let app = app.schedule(Schedule::every(10 * SECOND, call));
        let worker = Running::start(&app, SECOND).await;
        sleep(25 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(*events.borrow(), ["13 \"blue\"", "23 \"blue\""]);
    });
}

/// A leader that panics leads again, and the worker goes on.
#[test]
fn leader_that_panics_is_restarted() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let count = Cell::new(0);
        let before = move |asked: Asked<'_>| {
            if let Asked::Publish(_) = asked {
                count.set(count.get() + 1);
                assert!(count.get() != 3, "a bug");
            }
            at_once(Ok(()))
        };
        let app = App::on(Rc::new(Meddled::new(Rc::new(store.open()), before)));
        let worker = Running::start(&app.jobs([beat::JOB]).schedule(ticks()), SECOND).await;
        sleep(35 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(*events.borrow(), ["11 tick", "20 tick", "30 tick"]);
    });
}

#[test]
fn removed_schedules_of_another_program_are_logged() {
    let (lines, _guard) = Lines::collect(&["pikake_jobs::schedule"], Level::WARN);
    in_worlds(async || {
        let store = MemoryStore::new();
        noted();
        let mail = Running::start(&worker_of(&store, [ticks().name("mail")]), SECOND).await;
        sleep(SECOND).await.unwrap();
        mail.end().await;
        lines.take();
        let shop = Running::start(&worker_of(&store, [ticks().name("shop")]), SECOND).await;
        sleep(SECOND).await.unwrap();
        shop.end().await;
        let lines = lines.take();
        assert!(lines.len() == 1 && lines[0].contains("schedule=mail"), "{lines:?}");
    });
}

/// Without a worker, a question writes the state the first time only.
#[test]
fn questions_write_no_state() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let published = Rc::new(Cell::new(0));
        let declared = Rc::new(Cell::new(0));
        let (count, declares) = (published.clone(), declared.clone());
        let before = move |asked: Asked<'_>| {
            count.set(count.get() + u32::from(matches!(asked, Asked::Publish(_))));
            declares.set(declares.get() + u32::from(matches!(asked, Asked::Declare)));
            at_once(Ok(()))
        };
        let app = App::on(Rc::new(Meddled::new(Rc::new(store.open()), before)));
        let app = app.connect().await.unwrap();
        app.schedules().add(ticks()).await.unwrap();
        sleep(SECOND).await.unwrap();
        published.set(0);
        declared.set(0);
        for _ in 0..3 {
            assert_eq!(app.schedules().list().await.unwrap().len(), 1);
            sleep(SECOND).await.unwrap();
        }
        assert_eq!((published.get(), declared.get()), (3, 0));
    });
}

/// Runs for 25 seconds, and is the only one until it has ended.
#[job(crate = pikake_jobs, name = "tests.slow_beat", unique_for = "10m", unique_by = "name")]
async fn slow_beat(name: String) {
    beat(format!("{name} begins")).await;
    sleep(25 * SECOND).await.unwrap();
    beat(format!("{name} ends")).await;
}

#[test]
fn a_slow_unique_job_is_not_piled_up() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let events = noted();
        let app = || {
            let schedule = Schedule::every(10 * SECOND, slow_beat::with("slow".into()));
            worker_of(&store, [schedule]).jobs([slow_beat::JOB])
        };
        let first = Running::start(&app(), 60 * SECOND).await;
        let other = app();
        let second = Running::start(&other, SECOND).await;
        sleep(15 * SECOND).await.unwrap();
        let error = other.schedules().run_now("tests.slow_beat").await.unwrap_err();
        assert!(error.to_string().contains("is the only one meanwhile"), "{error}");
        // The next leader knows of the lock.
        first.end().await;
        let listed = other.schedules().list().await.unwrap();
        assert_eq!(listed[0].missed_count, 0, "{listed:?}");
        sleep(25 * SECOND).await.unwrap();
        second.shutdown.cold();
        second.task.await.unwrap().unwrap();
        let all = ["10 slow begins", "35 slow ends", "40 slow begins"];
        assert_eq!(*events.borrow(), all);
    });
}

/// A leader is lost before it has noted that it has sent a unique job: the next one finds that
/// job's own lock.
#[test]
fn the_lock_of_a_moments_own_job_is_no_obstacle() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let is_cut = Rc::new(Cell::new(false));
        let cut = is_cut.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
            // The state; jobs are published under their lock.
            Asked::Publish(..) if cut.get() => at_once(Err(lost())),
            _ => at_once(Ok(())),
        });
        let once = || {
            let unique = Unique::new(15 * SECOND).until(UntilWhen::Elapsed);
            let call = beat::with("tick".into()).unique("k", unique);
            Schedule::every(10 * SECOND, call).name("ticks")
        };
        // Its jobs stay in their queue.
        let sends = |app: App| spawn(app.schedule(once()).worker().queues(["else"]).run());
        let leader = sends(App::on(Rc::new(broker)));
        sleep(5 * SECOND).await.unwrap();
        is_cut.set(true);
        sleep(5 * SECOND + SECOND / 2).await.unwrap();
        leader.abort();
        let other = sends(App::on(Rc::new(store.open())));
        let asks = App::on(Rc::new(store.open())).connect().await.unwrap();
        sleep(3 * SECOND).await.unwrap();
        let listed = asks.schedules().list().await.unwrap();
        assert!(listed[0].last.is_some(), "{listed:?}");
        // The moment after 20 s finds the lock, and that after 30 s does not.
        sleep(20 * SECOND).await.unwrap();
        other.request_cancel("it is over");
        other.await.unwrap().unwrap();
        assert_eq!(store.open().counts("pikake").await.unwrap().ready, 2);
    });
}
