//! The leader of the schedules, around its jobs, and each call of [`App::schedules`]. On a broker
//! in memory of which each call takes a moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, MemoryStore, Missed, Schedule, ScheduleError, current_job};
use pikake_macros::job;
use pikake_traps::sleep;

use super::{BOTH, Interruption, STEP};
use crate::meddled::Meddled;
use crate::{Running, SECOND};

thread_local!(static IDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

/// Notes its id.
#[job(crate = pikake_jobs)]
async fn beat() {
    IDS.with_borrow_mut(|ids| ids.push(current_job().id().to_owned()));
}

fn beats() -> Schedule {
    Schedule::every(SECOND, beat::with()).name("beats").missed(Missed::RunAll)
}

/// An application whose broker takes a moment for each call.
fn app(store: &MemoryStore) -> App {
    let slow =
        Meddled::new(Rc::new(store.open()), |_| Box::pin(async { Ok(sleep(2 * STEP).await?) }));
    App::on(Rc::new(slow)).jobs([beat::JOB]).with_schedules()
}

/// The seconds of the noted ids, each once, in order.
fn noted_moments() -> Vec<u64> {
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

/// A worker is interrupted at each of 150 moments, and another one goes on. No moment is missing.
fn leader_is_interrupted(from: Duration) {
    for kind in BOTH {
        let moments = (0..150).map(|steps| from + steps * STEP);
        super::at_moments(kind, moments, async |interruption| {
            let store = MemoryStore::new();
            let first = app(&store).schedule(beats());
            // Interrupted before it was connected, the worker says so.
            drop(interruption.call(first.worker().grace(SECOND).run()).await);
            let second = app(&store).schedule(beats());
            let worker = Running::start(&second, SECOND).await;
            sleep(4 * SECOND).await.unwrap();
            drop(worker.end().await);
            let moments = noted_moments();
            assert!(moments.len() >= 3, "{moments:?}");
            assert!(moments.windows(2).all(|pair| pair[1] == pair[0] + 1), "{moments:?}");
        });
    }
}

#[test]
fn leader_that_begins() {
    leader_is_interrupted(Duration::ZERO);
}

#[test]
fn leader_that_collects_messages_and_writes_its_state() {
    leader_is_interrupted(Duration::from_millis(200));
}

#[test]
fn leader_that_sends_a_job() {
    leader_is_interrupted(2 * SECOND + Duration::from_millis(200) - 10 * STEP);
}

/// Interrupts a case beside a leader. It makes a call that is interrupted, makes it again, and
/// checks what came of it.
fn at_every_moment(case: impl AsyncFn(&App, &Interruption)) {
    for kind in BOTH {
        let moments = super::at_every_moment(kind, STEP, async |interruption| {
            let store = MemoryStore::new();
            let worker = Running::start(&app(&store), SECOND).await;
            let client = app(&store).connect().await.unwrap();
            // The worker leads.
            client.schedules().add(beats()).await.unwrap();
            case(&client, interruption).await;
            drop(client.schedules().remove("beats").await);
            assert!(client.schedules().list().await.unwrap().is_empty());
            drop(worker.end().await);
            IDS.take();
        });
        assert!(moments > 5, "it hardly waits");
    }
}

#[test]
fn list() {
    at_every_moment(async |app, interruption| {
        drop(interruption.call(app.schedules().list()).await);
        assert_eq!(app.schedules().list().await.unwrap().len(), 1);
    });
}

#[test]
fn add() {
    at_every_moment(async |app, interruption| {
        let other = || beats().name("other");
        drop(interruption.call(app.schedules().add(other())).await);
        assert_eq!(app.schedules().add(other()).await.unwrap().len(), 2);
        assert_eq!(app.schedules().remove("other").await.unwrap().len(), 1);
    });
}

#[test]
fn pause_and_resume() {
    for is_pause in [true, false] {
        at_every_moment(async |app, interruption| {
            drop(interruption.call_if(is_pause, app.schedules().pause("beats")).await);
            assert!(app.schedules().pause("beats").await.unwrap()[0].is_paused);
            IDS.take();
            sleep(3 * SECOND).await.unwrap();
            assert!(noted_moments().is_empty());
            drop(interruption.call_if(!is_pause, app.schedules().resume("beats")).await);
            assert!(!app.schedules().resume("beats").await.unwrap()[0].is_paused);
            sleep(3 * SECOND).await.unwrap();
            assert_eq!(noted_moments().len(), 3);
        });
    }
}

#[test]
fn run_now() {
    at_every_moment(async |app, interruption| {
        app.schedules().pause("beats").await.unwrap();
        IDS.take();
        let told = interruption.call(app.schedules().run_now("beats")).await;
        sleep(SECOND).await.unwrap();
        let sent = IDS.take().len();
        // An interrupted call may have sent the job.
        assert!(sent == 1 || sent == 0 && told.is_err(), "{sent}");
        app.schedules().run_now("beats").await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(IDS.take().len(), 1);
    });
}

#[test]
fn remove() {
    at_every_moment(async |app, interruption| {
        let told = interruption.call(app.schedules().remove("beats")).await;
        match app.schedules().remove("beats").await {
            Ok(left) => assert!(left.is_empty() && told.is_err()),
            Err(ScheduleError::Refused(_)) => {}
            Err(other) => panic!("{other}"),
        }
    });
}
