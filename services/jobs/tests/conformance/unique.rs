//! Unique jobs: of those with one key, one is published.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_jobs::{Broker, JobId, Unique, UniqueLock, UniqueSent};
use pikake_traps::{sleep, spawn, timeout_after, wall_time};

use crate::help::*;
use crate::place::Place;

const LONG: Duration = Duration::from_secs(600);

fn lock(key: &str, job: &str, length: Duration) -> UniqueLock {
    UniqueLock::new(key.to_owned(), JobId(job.to_owned()), Unique::new(length), wall_time())
}

/// Whether the job is sent. One that is not knows the first job, if the broker does.
async fn send(broker: &Rc<dyn Broker>, lock: &UniqueLock, first: &str) -> bool {
    let sent = broker.publish_unique(QUEUE, message(&lock.job.0), None, lock).await.unwrap();
    match sent {
        UniqueSent::Sent => true,
        UniqueSent::Held(holder) => {
            assert!(holder.is_none_or(|holder| holder.0 == first), "not that of {first}");
            false
        }
    }
}

pub(crate) async fn one_of_two_has_the_lock(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    assert!(send(&one, &lock("k", "a", LONG), "").await);
    assert!(!send(&other, &lock("k", "b", LONG), "a").await);
    assert!(!send(&one, &lock("k", "a", LONG), "a").await);
    assert!(send(&other, &lock("l", "c", LONG), "").await);
    let mut deliveries = consume(&other, 10).await;
    drain(&other, &mut deliveries, &["a", "c"]).await;
    nothing(&mut deliveries).await;
}

pub(crate) async fn one_of_many_has_the_lock(place: &dyn Place) {
    let mut sending = Vec::new();
    declare(&place.open().await).await;
    for number in 0..10 {
        let broker = place.open().await;
        sending.push(spawn(async move {
            let lock = lock("k", &format!("job {number}"), LONG);
            let sent = broker.publish_unique(QUEUE, message(&lock.job.0), None, &lock).await;
            sent.unwrap() == UniqueSent::Sent
        }));
    }
    let mut sent = 0;
    for one in sending {
        sent += u32::from(one.await.unwrap());
    }
    assert_eq!(sent, 1);
    counted(&place.open().await, |counts| counts.ready == 1).await;
}

pub(crate) async fn a_released_lock_is_free(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let first = lock("k", "a", LONG);
    assert!(send(&one, &first, "").await);
    other.unlock(&first).await.unwrap();
    // Also one that is not there.
    other.unlock(&first).await.unwrap();
    assert!(send(&one, &lock("k", "b", LONG), "").await);
    // Of another time: it is not the first one's any more.
    let mut old = first.clone();
    old.ends = SystemTime::UNIX_EPOCH;
    other.unlock(&old).await.unwrap();
    assert!(!send(&one, &lock("k", "c", LONG), "b").await);
}

pub(crate) async fn a_lock_ends_by_its_time(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let length = Duration::from_secs(1);
    assert!(send(&broker, &lock("k", "a", length), "").await);
    let ended = async {
        while !send(&broker, &lock("k", "b", length), "a").await {
            sleep(QUIET).await.unwrap();
        }
    };
    timeout_after(PATIENCE, ended).await.expect("it ends");
}

pub(crate) async fn long_keys_differ(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let long = "größe ".repeat(1_000);
    assert!(send(&broker, &lock(&format!("{long}1"), "a", LONG), "").await);
    assert!(send(&broker, &lock(&format!("{long}2"), "b", LONG), "").await);
    assert!(!send(&broker, &lock(&format!("{long}1"), "c", LONG), "a").await);
}
