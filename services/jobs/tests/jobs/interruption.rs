//! An interruption at every moment at which a sender or a worker can be interrupted; and a broker
//! that is lost again and again.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, Broker, BrokerError, Call, JobError, MemoryStore, SendError};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_traps::{Interrupted, random, sleep, timed};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, add};

/// A step takes so long in a simulation, so this meets each suspension.
const STEP: Duration = Duration::from_micros(1);

#[job(crate = pikake_jobs, retries = 1, backoff(first = "5ms", cap = "5ms"))]
async fn busy(fails: bool) -> Result<u64, String> {
    sleep(3 * STEP).await.map_err(|why| why.to_string())?;
    let is_first = pikake_jobs::current_job().retries() == 0;
    if fails && is_first { Err("once".into()) } else { Ok(7) }
}

/// The same in a thread, for which it may have to wait.
#[job(crate = pikake_jobs, soft_limit = "1s", retries = 1, backoff(first = "5ms", cap = "5ms"))]
fn threaded(fails: bool) -> Result<u64, String> {
    let is_first = pikake_jobs::current_job().retries() == 0;
    if fails && is_first { Err("once".into()) } else { Ok(7) }
}

#[track_caller]
fn in_world<F: Future>(what: &str, program: F) -> F::Output {
    let ran = Sim::new(1).run_here("test", program);
    let ran = ran.unwrap_or_else(|failure| panic!("{what}: {failure}"));
    ran.outcome.unwrap_or_else(|error| panic!("{what}: {error}"))
}

#[test]
fn a_sender_at_every_moment() {
    let mut interrupted = 0;
    for steps in 0..60 {
        in_world(&format!("after {steps} steps"), async {
            let store = MemoryStore::new();
            let app = App::on(Rc::new(store.open())).jobs(add);
            let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
            let worker = Running::start(&app, SECOND).await;
            let sending = async {
                let handle = add.with(1, 2).on(&sender).send().await?;
                match handle.wait().await {
                    Ok(value) => assert_eq!(value, 3),
                    // It is told, the handle is whole, and the wait may be made again.
                    Err(JobError::Interrupted(why)) => {
                        assert!(why.is_timeout());
                        interrupted += 1;
                        assert_eq!(handle.wait().await.unwrap(), 3);
                    }
                    Err(error) => panic!("{error}"),
                }
                Ok::<_, SendError>(())
            };
            let timed = timed(STEP * steps, sending).await;
            assert!(
                timed.output.unwrap().is_ok(),
                "the broker in memory takes a message without waiting"
            );
            assert_eq!(add.delay(20, 3).await.unwrap().wait().await.unwrap(), 23);
            let stats = worker.end().await.stats.all;
            assert_eq!((stats.done, stats.running), (2, 0));
        });
    }
    assert!(interrupted > 0, "its only suspension was never met");
}

#[test]
fn who_waits_for_a_job_that_expires_at_every_moment() {
    let mut interrupted = 0;
    for steps in 0..20 {
        in_world(&format!("after {steps} steps"), async {
            let app = App::on(Rc::new(MemoryStore::new().open())).connect().await.unwrap();
            let handle = add.with(1, 2).expires(10 * STEP).on(&app).send().await.unwrap();
            let is_told = |error: &JobError| matches!(error, JobError::Revoked(_));
            match timed(STEP * steps, handle.wait()).await.output.unwrap().unwrap_err() {
                JobError::Interrupted(why) => {
                    assert!(why.is_timeout());
                    interrupted += 1;
                }
                error => assert!(is_told(&error), "{error}"),
            }
            let error = handle.wait().await.unwrap_err();
            assert!(is_told(&error), "{error}");
        });
    }
    assert!((5..20).contains(&interrupted), "{interrupted} were interrupted");
}

#[test]
fn a_worker_at_every_moment() {
    worker_at_every_moment(STEP, 0..200, |number| busy.with(number == 1));
}

#[test]
fn a_worker_with_threads_at_every_moment() {
    worker_at_every_moment(10 * STEP, 0..400, |number| threaded.with(number == 1));
}

fn worker_at_every_moment(step: Duration, moments: Range<u32>, call: fn(usize) -> Call<u64>) {
    let mut cut_short = 0;
    for steps in moments {
        in_world(&format!("after {steps} steps"), async {
            let store = MemoryStore::new();
            let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
            let mut handles = Vec::new();
            for number in 0..4 {
                handles.push(call(number).on(&sender).send().await.unwrap());
            }
            let app = App::on(Rc::new(store.open())).jobs((busy, threaded)).concurrency(2);
            let first = app.worker().grace(2 * STEP);
            let timed = timed(step * steps, async {
                let told = first.run().await;
                // Interrupted before it was connected, it says so; after that it ends in good
                // order.
                match told {
                    Ok(report) => report.stats.all.done,
                    Err(error) => {
                        assert!(error.to_string().contains("deadline"), "{error}");
                        0
                    }
                }
            });
            let timed = timed.await;
            let first_done = timed.output.unwrap();
            cut_short += usize::from(first_done < 4);
            let other = App::on(Rc::new(store.open())).jobs((busy, threaded));
            let worker = Running::start(&other, SECOND).await;
            for handle in &handles {
                assert_eq!(handle.wait().await.unwrap(), 7);
            }
            let stats = worker.end().await.stats.all;
            assert_eq!(stats.done + first_done, 4, "each ended once");
            let counts = store.open().counts("pikake").await.unwrap();
            assert_eq!((counts.ready, counts.taken, counts.delayed), (0, Some(0), 0));
        });
    }
    assert!(cut_short > 20, "{cut_short} were cut short");
}

fn breaks() -> bool {
    random::range(0..6) == 0
}

fn perhaps_lost() -> Result<(), BrokerError> {
    if breaks() { Err(lost()) } else { Ok(()) }
}

/// A broker whose connection breaks at every other call, before or after what was asked is done.
fn lossy(inner: Rc<dyn Broker>) -> Meddled {
    let of_acks = inner.clone();
    let before = move |asked: Asked<'_>| match asked {
        Asked::Ack(receipt) if breaks() => {
            let inner = of_acks.clone();
            Box::pin(async move {
                // The message is somebody else's with the new connection.
                inner.give_back(receipt).await?;
                Err(if breaks() { lost() } else { BrokerError::Stale })
            })
        }
        // What had come is returned by the next call, so it breaks before.
        Asked::Next(is_cancelled) => match (breaks(), breaks()) {
            (true, false) => at_once(Err(lost())),
            (breaks, also) => {
                // The broker cancels the consumer.
                *is_cancelled = breaks && also;
                at_once(Ok(()))
            }
        },
        Asked::Publish(..) | Asked::Consume | Asked::Store(_) | Asked::Outcome | Asked::Wait => {
            at_once(perhaps_lost())
        }
        _ => at_once(Ok(())),
    };
    Meddled::new(inner, before).after(|asked| match asked {
        Asked::Publish(..) | Asked::Store(_) | Asked::Outcome | Asked::Wait => perhaps_lost(),
        _ => Ok(()),
    })
}

#[test]
fn nothing_is_lost_with_a_broker_that_is_lost_again_and_again() {
    for seed in 0..20 {
        let ran = Sim::new(seed).run_here("test", async {
            let store = MemoryStore::new();
            let app =
                App::on(Rc::new(lossy(Rc::new(store.open())))).jobs((add, busy)).concurrency(5);
            let worker = Running::start(&app, SECOND).await;
            let mut handles = Vec::new();
            for number in 0..100_i64 {
                loop {
                    match add.with(number, 1).id(number.to_string()).send().await {
                        Ok(handle) => break handles.push(handle),
                        Err(SendError::Publish(_)) => sleep(SECOND / 100).await?,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            for _ in 0..20 {
                drop(busy.delay(true).await);
            }
            for (number, handle) in handles.iter().enumerate() {
                assert_eq!(handle.wait().await.unwrap(), number as i64 + 1);
            }
            sleep(60 * SECOND).await?;
            let counts = store.open().counts("pikake").await.unwrap();
            assert_eq!(
                (counts.ready, counts.taken, counts.delayed, counts.dead),
                (0, Some(0), 0, 0)
            );
            let stats = worker.end().await.stats.all;
            assert!(stats.done >= 100 && stats.running == 0, "{stats}");
            Ok::<_, Interrupted>(())
        });
        let ran = ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        ran.outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}")).unwrap();
    }
}
