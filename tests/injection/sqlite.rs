//! The broker of jobs whose thread answers, interrupted at every suspension: no message is lost,
//! and none is made. The tests of `pikake-jobs` interrupt the other brokers, in virtual time.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pikake::jobs::broker::PublishFailure;
use pikake::jobs::{Broker, BrokerError, JobId, Message, Outcome, QueueOptions, SqliteBroker};
use pikake::testing::Injector;
use pikake::traps::shield;
use pikake::{sleep, spawn};

use crate::support::scratch::Scratch;

const QUEUE: &str = "mail";
const MOMENT: Duration = Duration::from_millis(1);
/// How long the thread may take.
const PATIENCE: Duration = Duration::from_millis(100);

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
async fn use_it(broker: Rc<SqliteBroker>) -> Told {
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

/// Settles a delivery, however often that takes: interrupted, it may have been done.
async fn settle(ask: impl AsyncFn() -> Result<(), BrokerError>) {
    loop {
        match ask().await {
            Ok(()) | Err(BrokerError::Stale) => return,
            Err(BrokerError::Interrupted(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Gives back, buries, looks at the dead, has them replayed, and purges: ready and dead in between,
/// and at the end.
async fn tidy_up(broker: Rc<SqliteBroker>) -> [(u64, u64); 3] {
    let counts = async || {
        let counts = insist(async || broker.counts(QUEUE).await).await;
        (counts.ready + counts.taken.unwrap_or(0), counts.dead)
    };
    shield(async {
        broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
        for job in ["a", "b", "c"] {
            broker.publish(QUEUE, message(job), None).await.unwrap();
        }
    })
    .await;
    let mut deliveries = shield(broker.consume(QUEUE, 2)).await.unwrap();
    let first = shield(deliveries.next()).await.unwrap().expect("nobody cancels it");
    let second = shield(deliveries.next()).await.unwrap().expect("nobody cancels it");
    settle(async || broker.give_back(first.receipt).await).await;
    let (receipt, buried) = (second.receipt, &second.message);
    settle(async || broker.bury(receipt, buried.clone(), "why".to_owned()).await).await;
    let _told = deliveries.cancel().await;
    drop(deliveries);
    let after_burial = counts().await;
    let dead = insist(async || broker.dead(QUEUE, 10).await).await;
    assert_eq!(dead.len(), 1);
    insist(async || broker.replay(QUEUE, None).await).await;
    let after_replay = counts().await;
    insist(async || broker.purge(QUEUE).await).await;
    let at_last = counts().await;
    insist(async || broker.close().await).await;
    [after_burial, after_replay, at_last]
}

fn check_messages((came, confirmed, possible, left): &Told) {
    let different: BTreeSet<String> = came.iter().cloned().collect();
    assert_eq!(different.len(), came.len(), "none comes twice: {came:?}");
    assert!(different.is_superset(confirmed), "{came:?} of {confirmed:?}");
    assert!(different.is_subset(possible), "{came:?} of {possible:?}");
    assert_eq!(*left, 0);
}

/// Interrupts a program that has a database of its own each time.
fn on_database<T>(program: impl AsyncFn(Rc<SqliteBroker>) -> T, check: impl Fn(&T)) {
    let scratch = Scratch::new();
    let number = Cell::new(0);
    let program = || async {
        number.set(number.get() + 1);
        let path = scratch.path(&format!("{}.db", number.get()));
        let broker = insist(async || SqliteBroker::open(&path).await).await;
        program(Rc::new(broker)).await
    };
    let report = Injector::new().cleanup_limit(None).patience(PATIENCE).run(program, |run| {
        check(run.output.as_ref().expect("it waits on traps alone"));
    });
    assert!(report.suspensions >= 8, "{report:?}");
}

#[test]
fn messages() {
    on_database(use_it, check_messages);
}

#[test]
fn tidied_up() {
    on_database(tidy_up, |told| assert_eq!(*told, [(2, 1), (3, 0), (0, 0)]));
}
