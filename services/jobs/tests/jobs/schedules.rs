//! Jobs at intervals, and the setup hook.

use std::cell::RefCell;
use std::rc::Rc;

use pikake_jobs::{App, AppError, BrokerError, MemoryStore, QueueOptions};
use pikake_macros::job;
use pikake_sim::busy_for;
use pikake_time::Ticks;
use pikake_traps::{elapsed_since, now, sleep, spawn};

use crate::meddled::{Asked, Meddled, at_once};
use crate::{Events, Running, SECOND, add, app, begin, in_worlds, note};

thread_local!(static BEATS: RefCell<Option<(Events, Ticks)>> = const { RefCell::new(None) });

#[job(crate = pikake_jobs)]
async fn beat(name: String) {
    BEATS.with_borrow(|beats| {
        let (events, begin) = beats.as_ref().unwrap();
        note(events, *begin, &name);
    });
}

#[test]
fn every_interval_and_never_made_up_for() {
    in_worlds(async || {
        let (app, _) = app();
        let app = app.jobs(beat).every(10 * SECOND, beat.with("tick".into()));
        let (events, begin) = begin();
        BEATS.set(Some((events.clone(), begin)));
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
fn a_schedule_ends_with_its_worker_in_the_middle_of_sending() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let broker = Meddled::new(Rc::new(store.open()), |asked| match asked {
            Asked::Publish(..) => Box::pin(async { Ok(sleep(SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let app = App::on(Rc::new(broker)).jobs(beat).every(10 * SECOND, beat.with("tick".into()));
        let worker = Running::start(&app, SECOND).await;
        sleep(10 * SECOND + SECOND / 2).await.unwrap();
        worker.end().await;
        let worker = Running::start(&app, SECOND).await;
        let (events, begin) = begin();
        BEATS.set(Some((events.clone(), begin)));
        sleep(65 * SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(
            *events.borrow(),
            ["11 tick", "21 tick", "31 tick", "41 tick", "51 tick", "61 tick"]
        );
    });
}

#[test]
fn setup_is_called_once_connected() {
    in_worlds(async || {
        let (events, _) = begin();
        let (app, _) = app();
        let seen = events.clone();
        // The shape of a larger application: qos, queues, consumers, tasks beside them.
        let app = app.jobs(add).setup(move |app: App| {
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
                add.with(1, 2).queue("reports").send().await.map_err(|_| BrokerError::Closed)?;
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
        let (events, begin) = begin();
        let seen = events.clone();
        let app = app.setup(move |app: App| {
            let seen = seen.clone();
            async move {
                sleep(2 * SECOND).await?;
                let beside = app.clone();
                app.spawn(async move {
                    let ended = sleep(60 * SECOND).await;
                    // It keeps the application.
                    drop(beside);
                    note(&seen, begin, if ended.is_err() { "told" } else { "forgotten" });
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
        let (events, begin) = begin();
        let (seen, beside) = (events.clone(), app.clone());
        app.spawn(async move {
            let ended = sleep(60 * SECOND).await;
            drop(beside);
            note(&seen, begin, if ended.is_err() { "told" } else { "forgotten" });
        });
        sleep(SECOND).await.unwrap();
        app.close().await.unwrap();
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["1 told"]);
    });
}
