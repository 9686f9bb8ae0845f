//! The leader of the schedules, interrupted at every moment around its jobs; and each call of
//! [`App::schedules`]. On a broker in memory of which each call takes a moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{
    App, BrokerError, MemoryStore, Missed, Schedule, ScheduleError, ScheduleInfo, current_job,
};
use pikake_macros::job;
use pikake_traps::{sleep, timed};

use super::world::within;
use crate::meddled::Meddled;
use crate::{Running, SECOND};

/// A step takes so long in a simulation, so this meets each suspension.
const STEP: Duration = Duration::from_micros(1);

thread_local!(static IDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

/// Notes its id.
#[job(crate = pikake_jobs)]
async fn beat() {
    IDS.with_borrow_mut(|ids| ids.push(current_job().id().to_owned()));
}

fn beats() -> Schedule {
    Schedule::every(SECOND, beat.with()).name("beats").missed(Missed::RunAll)
}

/// An application whose broker takes a moment for each call.
fn app(store: &MemoryStore) -> App {
    let slow =
        Meddled::new(Rc::new(store.open()), |_| Box::pin(async { Ok(sleep(2 * STEP).await?) }));
    App::on(Rc::new(slow)).jobs(beat).with_schedules()
}

/// The seconds of the noted ids, each once, in order.
fn moments() -> Vec<u64> {
    let ids = IDS.take();
    let seconds = |id: &String| {
        let moment: jiff::Timestamp = id.strip_prefix("beats@").unwrap().parse().unwrap();
        moment.as_second() as u64
    };
    let mut moments: Vec<_> = ids.iter().map(seconds).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// A worker that is interrupted after so long, and one that goes on. No moment is missing.
fn leader_is_interrupted_after(length: Duration) {
    pikake_sim::example(async {
        let store = MemoryStore::new();
        let first = app(&store).schedule(beats());
        let ran = timed(length, first.worker().grace(SECOND).run()).await;
        // Interrupted before it was connected, the worker says so.
        if let Err(error) = ran.output.unwrap() {
            assert!(error.to_string().contains("deadline"), "{error}");
        }
        let second = app(&store).schedule(beats());
        let worker = Running::start(&second, SECOND).await;
        sleep(4 * SECOND).await.unwrap();
        drop(worker.end().await);
        let moments = moments();
        assert!(moments.len() >= 3, "{length:?}: {moments:?}");
        let is_next = |pair: &[u64]| pair[1] == pair[0] + 1;
        assert!(moments.windows(2).all(is_next), "{length:?}: {moments:?}");
    });
}

#[test]
fn leader_that_begins() {
    (0..150).for_each(|steps| leader_is_interrupted_after(steps * STEP));
}

#[test]
fn leader_that_collects_messages_and_writes_its_state() {
    let collected = Duration::from_millis(200);
    (0..150).for_each(|steps| leader_is_interrupted_after(collected + steps * STEP));
}

#[test]
fn leader_that_sends_a_job() {
    let due = 2 * SECOND + Duration::from_millis(200);
    (0..150).for_each(|steps| leader_is_interrupted_after(due - 10 * STEP + steps * STEP));
}

fn is_interrupted(told: &Result<Vec<ScheduleInfo>, ScheduleError>) -> bool {
    match told {
        Ok(_) => false,
        Err(ScheduleError::Broker(BrokerError::Interrupted(_))) => true,
        Err(other) => panic!("{other}"),
    }
}

/// Makes a call again and again, interrupted one step later each time, until it no longer is,
/// beside a leader. A case makes the call, makes it again, checks what came of it, and tells
/// whether it was interrupted.
fn at_every_step(case: impl AsyncFn(&App, Duration) -> bool) {
    let mut steps = 0;
    loop {
        let is_interrupted = pikake_sim::example(async {
            let store = MemoryStore::new();
            let worker = Running::start(&app(&store), SECOND).await;
            let client = app(&store).connect().await.unwrap();
            // The worker leads.
            client.schedules().add(beats()).await.unwrap();
            let is_interrupted = case(&client, steps * STEP).await;
            drop(client.schedules().remove("beats").await);
            assert!(client.schedules().list().await.unwrap().is_empty());
            drop(worker.end().await);
            IDS.take();
            is_interrupted
        });
        if !is_interrupted {
            break;
        }
        steps += 1;
        assert!(steps < 10_000, "it does not come to its end");
    }
    println!("interrupted at {steps} moments");
    assert!(steps > 5, "it hardly waits");
}

#[test]
fn list() {
    at_every_step(async |app, length| {
        let told = within(length, app.schedules().list()).await;
        assert_eq!(app.schedules().list().await.unwrap().len(), 1);
        is_interrupted(&told)
    });
}

#[test]
fn add() {
    at_every_step(async |app, length| {
        let other = || beats().name("other");
        let told = within(length, app.schedules().add(other())).await;
        assert_eq!(app.schedules().add(other()).await.unwrap().len(), 2);
        assert_eq!(app.schedules().remove("other").await.unwrap().len(), 1);
        is_interrupted(&told)
    });
}

#[test]
fn pause_and_resume() {
    for is_pause in [true, false] {
        at_every_step(async |app, length| {
            let limit = |is_limited| if is_limited { length } else { 60 * SECOND };
            let paused = within(limit(is_pause), app.schedules().pause("beats")).await;
            assert!(app.schedules().pause("beats").await.unwrap()[0].is_paused);
            IDS.take();
            sleep(3 * SECOND).await.unwrap();
            assert!(moments().is_empty());
            let resumed = within(limit(!is_pause), app.schedules().resume("beats")).await;
            assert!(!app.schedules().resume("beats").await.unwrap()[0].is_paused);
            sleep(3 * SECOND).await.unwrap();
            assert_eq!(moments().len(), 3);
            is_interrupted(&paused) || is_interrupted(&resumed)
        });
    }
}

#[test]
fn run_now() {
    at_every_step(async |app, length| {
        app.schedules().pause("beats").await.unwrap();
        IDS.take();
        let told = within(length, app.schedules().run_now("beats")).await;
        sleep(SECOND).await.unwrap();
        let sent = IDS.take().len();
        // An interrupted call may have sent the job.
        assert!(sent == 1 || sent == 0 && told.is_err(), "{sent}");
        app.schedules().run_now("beats").await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(IDS.take().len(), 1);
        is_interrupted(&told)
    });
}

#[test]
fn remove() {
    at_every_step(async |app, length| {
        let told = within(length, app.schedules().remove("beats")).await;
        match app.schedules().remove("beats").await {
            Ok(left) => assert!(left.is_empty() && told.is_err()),
            Err(ScheduleError::Refused(_)) => {}
            Err(other) => panic!("{other}"),
        }
        is_interrupted(&told)
    });
}
