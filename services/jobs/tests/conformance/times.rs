//! Messages that wait for their time, and those whose time is over; the dead; purging.

use std::time::Duration;

use pikake_jobs::{Counts, JobId};
use pikake_traps::{sleep, wall_time};

use crate::help::*;
use crate::place::Place;

/// How late a delayed message may be on a busy machine.
const LATE: Duration = Duration::from_secs(2);

pub(crate) async fn delivered_from_then_on(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let mut deliveries = consume(&broker, 10).await;
    let first = wall_time() + place.step();
    broker.publish(QUEUE, message("first"), Some(first)).await.unwrap();
    drain(&broker, &mut deliveries, &["first"]).await;
    let due = wall_time() + 10 * place.step();
    broker.publish(QUEUE, message("a"), Some(due)).await.unwrap();
    // While it passes on to be there in time it may be in neither.
    while broker.counts(QUEUE).await.unwrap().delayed != 1 {
        assert!(wall_time() < due, "it was never seen to wait");
    }
    let delivery = take(&mut deliveries).await;
    let now = wall_time();
    assert!(now >= due, "{:?} too early", due.duration_since(now));
    assert!(now < due + place.step() + LATE, "{:?} too late", now.duration_since(due));
    assert_eq!(seen(&delivery), ("a", 0));
    broker.ack(delivery.receipt).await.unwrap();
    counted(&broker, |counts| (counts.ready, counts.delayed) == (0, 0)).await;
}

pub(crate) async fn whose_time_comes_first_is_first(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    declare(&other).await;
    let mut deliveries = consume(&one, 10).await;
    // A broker may have things to make when a message is delayed for the first time.
    other.publish(QUEUE, message("first"), Some(wall_time() + place.step())).await.unwrap();
    drain(&one, &mut deliveries, &["first"]).await;
    let now = wall_time();
    other.publish(QUEUE, message("past"), Some(now - place.step())).await.unwrap();
    publish(&other, &["now"]).await;
    for (job, steps) in [("c", 20), ("a", 10), ("b", 15)] {
        other.publish(QUEUE, message(job), Some(now + steps * place.step())).await.unwrap();
    }
    drain(&one, &mut deliveries, &["past", "now", "a", "b", "c"]).await;
}

pub(crate) async fn one_that_waits_does_not_hold_others_up(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let later = wall_time() + Duration::from_secs(3_600);
    broker.publish(QUEUE, message("later"), Some(later)).await.unwrap();
    let soon = wall_time() + 10 * place.step();
    broker.publish(QUEUE, message("soon"), Some(soon)).await.unwrap();
    publish(&broker, &["now"]).await;
    let mut deliveries = consume(&broker, 1).await;
    drain(&broker, &mut deliveries, &["now", "soon"]).await;
    counted(&broker, |counts| counts.delayed == 1).await;
}

/// One whose outcome nobody wants.
pub(crate) async fn expired_is_not_delivered(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let expiring = |name: &str, length| {
        let mut message = message(name);
        message.headers.insert("ignore_result".to_owned(), true.into());
        message.expires = Some(wall_time() + length);
        message
    };
    let short = expiring("short", place.step());
    let long = expiring("long", Duration::from_secs(3_600));
    broker.publish(QUEUE, short, None).await.unwrap();
    broker.publish(QUEUE, long, None).await.unwrap();
    sleep(3 * place.step()).await.unwrap();
    counted(&broker, |counts| counts.ready == 1).await;
    let mut deliveries = consume(&broker, 10).await;
    drain(&broker, &mut deliveries, &["long"]).await;
    nothing(&mut deliveries).await;
}

pub(crate) async fn buried_and_replayed(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b", "c"]).await;
    let mut deliveries = consume(&broker, 10).await;
    for reason in ["no such job", "wrong arguments", "it kills"] {
        let delivery = take(&mut deliveries).await;
        broker.bury(delivery.receipt, delivery.message, reason.to_owned()).await.unwrap();
    }
    nothing(&mut deliveries).await;
    let is_so =
        |counts: &Counts| (counts.ready, counts.taken.unwrap_or(0), counts.dead) == (0, 0, 3);
    counted(&broker, is_so).await;

    let dead = broker.dead(QUEUE, 2).await.unwrap();
    let told: Vec<_> = dead.iter().map(|dead| (dead.message.job(), &*dead.reason)).collect();
    assert_eq!(told, [(Some("a"), "no such job"), (Some("b"), "wrong arguments")]);
    assert_eq!(dead[0].message, message("a"));
    assert_eq!(broker.dead(QUEUE, 10).await.unwrap().len(), 3);

    let unknown = JobId("unknown".into());
    assert_eq!(broker.replay(QUEUE, Some(&unknown)).await.unwrap(), 0);
    assert_eq!(broker.replay(QUEUE, Some(&JobId("b".into()))).await.unwrap(), 1);
    let delivery = take(&mut deliveries).await;
    assert_eq!(seen(&delivery), ("b", 0));
    broker.ack(delivery.receipt).await.unwrap();
    assert_eq!(broker.replay(QUEUE, None).await.unwrap(), 2);
    drain(&broker, &mut deliveries, &["a", "c"]).await;
    counted(&broker, |counts| counts.dead == 0).await;
}

pub(crate) async fn replayed_as_new(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let mut odd = message("odd");
    for (name, value) in [("expires", "2026-01-01T00:00:00"), ("x.\"y\"", "stays")] {
        odd.headers.insert(name.to_owned(), value.into());
    }
    odd.headers.insert("pikake_kills".to_owned(), 2.into());
    broker.publish(QUEUE, odd.clone(), None).await.unwrap();
    let mut deliveries = consume(&broker, 1).await;
    let mut delivery = take(&mut deliveries).await;
    delivery.message.expires = Some(wall_time() + Duration::from_secs(3_600));
    broker.bury(delivery.receipt, delivery.message, "it kills".to_owned()).await.unwrap();
    counted(&broker, |counts| counts.dead == 1).await;

    assert_eq!(broker.replay(QUEUE, None).await.unwrap(), 1);
    let delivery = take(&mut deliveries).await;
    for gone in ["expires", "pikake_kills"] {
        odd.headers.remove(gone);
    }
    assert_eq!(delivery.message, odd, "nothing else of it has changed");
}

pub(crate) async fn purged(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a"]).await;
    let mut deliveries = consume(&broker, 1).await;
    let a = take(&mut deliveries).await;
    publish(&broker, &["b", "c"]).await;
    let later = wall_time() + Duration::from_secs(3_600);
    broker.publish(QUEUE, message("later"), Some(later)).await.unwrap();
    assert_eq!(broker.purge(QUEUE).await.unwrap(), 3);
    broker.give_back(a.receipt).await.unwrap();
    counted(&broker, |counts| counts.delayed == 0).await;
    drain(&broker, &mut deliveries, &["a"]).await;
    nothing(&mut deliveries).await;
}
