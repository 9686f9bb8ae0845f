//! Between a job's end and the next message of it: what is cancelled, refused or lost in just that moment.

use std::cell::Cell;
use std::rc::Rc;

use pikake_jobs::{App, Broker, BrokerError, JobError, MemoryStore, OutcomeState};
use pikake_macros::job;
use pikake_traps::{sleep, timeout_after};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, add, in_worlds};

thread_local!(static RUNS: Cell<u32> = const { Cell::new(0) });

#[job(crate = pikake_jobs, retries = 1, backoff(first = "10s", cap = "10s"))]
async fn fails() -> Result<u32, String> {
    RUNS.set(RUNS.get() + 1);
    Err("it is never good".into())
}

fn on(store: &MemoryStore, broker: impl FnOnce(Rc<dyn Broker>) -> Meddled) -> App {
    RUNS.set(0);
    App::on(Rc::new(broker(Rc::new(store.open())))).jobs((fails, add))
}

fn refused() -> BrokerError {
    BrokerError::Refused("not for so long".into())
}

#[test]
fn who_is_cancelled_before_it_is_sent_again_is_not_run_again() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = on(&store, |inner| {
            Meddled::new(inner, |asked| match asked {
                Asked::Store(outcome) if outcome.state == OutcomeState::Retry => {
                    Box::pin(async { Ok(sleep(SECOND).await?) })
                }
                _ => at_once(Ok(())),
            })
        });
        let worker = Running::start(&app, SECOND).await;
        let job = fails.delay().await.unwrap();
        sleep(SECOND / 2).await.unwrap();
        job.cancel();
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is told");
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
        sleep(60 * SECOND).await.unwrap();
        let stats = worker.end().await.stats.all;
        assert_eq!((RUNS.get(), stats.retried, stats.revoked), (1, 0, 1));
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.delayed), (0, Some(0), 0));
    });
}

#[test]
fn who_is_cancelled_while_it_is_sent_again_is_not_run_again() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = on(&store, |inner| {
            Meddled::new(inner, |asked| match asked {
                Asked::Publish(_, Some(_)) => Box::pin(async { Ok(sleep(SECOND).await?) }),
                _ => at_once(Ok(())),
            })
        });
        let worker = Running::start(&app, SECOND).await;
        let job = fails.delay().await.unwrap();
        sleep(SECOND / 2).await.unwrap();
        job.cancel();
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is told");
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
        let stats = worker.end().await.stats.all;
        assert_eq!((RUNS.get(), stats.retried, stats.revoked), (1, 1, 1));
    });
}
