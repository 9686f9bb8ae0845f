//! Brokers of jobs, interrupted at every suspension: no message is lost, and none is made.
#![cfg(feature = "jobs")]

#[path = "scratch/mod.rs"]
mod scratch;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pikake::jobs::broker::PublishFailure;
use pikake::jobs::{
    Broker, BrokerError, JobId, MemoryStore, Message, Outcome, QueueOptions, SqliteBroker,
};
use pikake::testing::Injector;
use pikake::{sleep, spawn};

const QUEUE: &str = "mail";
const MOMENT: Duration = Duration::from_millis(1);

fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message
}

/// Asks again until it was not interrupted.
async fn insist<T>(ask: impl AsyncFn() -> Result<T, BrokerError>) -> T {
    loop {
        match ask().await {
            Ok(done) => return done,
            Err(BrokerError::Interrupted(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// What came, what was confirmed, what may be there, and whether there is more.
type Told = (Vec<String>, BTreeSet<String>, BTreeSet<String>, u64);

/// Publishes, takes, gives back, waits for an outcome.
async fn use_it(broker: Rc<dyn Broker>) -> Told {
    insist(async || broker.declare(QUEUE, &QueueOptions::default()).await).await;
    let mut deliveries = insist(async || broker.consume(QUEUE, 2).await).await;
    let (mut confirmed, mut possible) = (BTreeSet::new(), BTreeSet::new());
    for job in ["a", "b", "c"] {
        match broker.publish(QUEUE, message(job), None).await {
            Ok(()) => {
                confirmed.insert(job.to_owned());
                possible.insert(job.to_owned());
            }
            Err(error) => {
                let interrupted = BrokerError::Interrupted;
                drop(interrupted);
                let cause = &error.cause;
                assert!(matches!(cause, PublishFailure::Broker(BrokerError::Interrupted(_))));
                if error.is_uncertain {
                    possible.insert(job.to_owned());
                }
            }
        }
    }
    let other = broker.clone();
    let late = spawn(async move {
        sleep(MOMENT).await.unwrap();
        other.publish(QUEUE, message("late"), None).await.unwrap();
        other.store(&message("job"), Outcome::success(1.into())).await.unwrap();
    });
    confirmed.insert("late".to_owned());
    possible.insert("late".to_owned());
    let job = JobId("job".to_owned());
    insist(async || broker.expect(&mut message("job")).await).await;
    assert_eq!(insist(async || broker.wait(&job).await).await, Outcome::success(1.into()));
    let mut came = Vec::new();
    while came.last().is_none_or(|job| job != "late") {
        let delivery = match deliveries.next().await {
            Ok(delivery) => delivery.expect("nobody cancels it"),
            Err(BrokerError::Interrupted(_)) => continue,
            Err(other) => panic!("{other}"),
        };
        came.push(delivery.message.job().unwrap_or_default().to_owned());
        match broker.ack(delivery.receipt).await {
            // Interrupted, it is done all the same.
            Ok(()) | Err(BrokerError::Interrupted(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let _ = late.await;
    drop(deliveries);
    let counts = insist(async || broker.counts(QUEUE).await).await;
    insist(async || broker.close().await).await;
    (came, confirmed, possible, counts.ready + counts.taken.unwrap_or(0))
}

fn check((came, confirmed, possible, left): &Told) {
    let different: BTreeSet<String> = came.iter().cloned().collect();
    assert_eq!(different.len(), came.len(), "none comes twice: {came:?}");
    assert!(different.is_superset(confirmed), "{came:?} of {confirmed:?}");
    assert!(different.is_subset(possible), "{came:?} of {possible:?}");
    assert_eq!(*left, 0);
}

#[test]
fn memory() {
    let program = || use_it(Rc::new(MemoryStore::new().open()));
    let report = Injector::new()
        .run(program, |run| check(run.output.as_ref().expect("it waits on traps alone")));
    assert!(report.suspensions >= 1, "{report:?}");
}

#[test]
fn sqlite() {
    let scratch = scratch::Scratch::new();
    let number = std::cell::Cell::new(0);
    let program = || {
        number.set(number.get() + 1);
        let path = scratch.path(&format!("{}.db", number.get()));
        async move {
            let broker = insist(async || SqliteBroker::open(&path).await).await;
            use_it(Rc::new(broker)).await
        }
    };
    let report = Injector::new().patience(Duration::from_millis(100)).run(program, |run| {
        check(run.output.as_ref().expect("it waits on traps alone"));
    });
    assert!(report.suspensions >= 8, "{report:?}");
}
