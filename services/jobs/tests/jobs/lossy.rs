//! A broker whose connection is lost again and again, before or after it has done what was asked.

use std::rc::Rc;

use pikake_jobs::{App, Broker, BrokerError, MemoryStore, SendError};
use pikake_macros::job;
use pikake_traps::{random, sleep};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, add, in_worlds};

#[job(crate = pikake_jobs, retries = 1, backoff(first = "5ms", cap = "5ms"))]
async fn fails_once() -> Result<(), String> {
    sleep(SECOND / 1_000).await.map_err(|why| why.to_string())?;
    if pikake_jobs::current_job().retries() == 0 { Err("once".into()) } else { Ok(()) }
}

fn breaks() -> bool {
    random::range(0..6) == 0
}

fn perhaps_lost() -> Result<(), BrokerError> {
    if breaks() { Err(lost()) } else { Ok(()) }
}

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
fn no_job_is_lost_with_its_broker() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = App::on(Rc::new(lossy(Rc::new(store.open())))).jobs([add::JOB, fails_once::JOB]);
        let worker = Running::start(&app.concurrency(5), SECOND).await;
        let mut handles = Vec::new();
        for number in 0..100_i64 {
            loop {
                match add::with(number, 1).id(number.to_string()).send().await {
                    Ok(handle) => break handles.push(handle),
                    Err(SendError::Publish(_)) => sleep(SECOND / 100).await.unwrap(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for _ in 0..20 {
            drop(fails_once::delay().await);
        }
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(handle.wait().await.unwrap(), number as i64 + 1);
        }
        sleep(60 * SECOND).await.unwrap();
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.delayed, counts.dead), (0, Some(0), 0, 0));
        let stats = worker.end().await.stats.all;
        assert!(stats.done >= 100 && stats.running == 0, "{stats}");
    });
}
