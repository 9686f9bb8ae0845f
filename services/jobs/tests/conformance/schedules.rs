//! Queues with one consumer at a time, and the schedules that rely on them.

use std::collections::BTreeSet;
use std::time::Duration;

use pikake_jobs::{App, Call, Missed, QueueOptions, Schedule};
use pikake_traps::{sleep, spawn};

use crate::help::{PATIENCE, QUEUE, QUIET, consume, nothing, publish, seen, take, take_soon};
use crate::place::Place;

/// The second consumer gets what the first one had, and all that comes afterwards.
pub(crate) async fn one_consumer_at_a_time(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let options = QueueOptions::new().single_consumer(true);
    for broker in [&one, &other] {
        broker.declare(QUEUE, &options).await.unwrap();
    }
    let mut first = consume(&one, 10).await;
    publish(&one, &["a", "b"]).await;
    let held = take(&mut first).await;
    assert_eq!(seen(&held), ("a", 0));
    let mut second = consume(&other, 10).await;
    let mut third = consume(&one, 10).await;
    publish(&other, &["c"]).await;
    nothing(&mut second).await;
    nothing(&mut third).await;
    assert_eq!(take(&mut first).await.message.job(), Some("b"));
    assert_eq!(take(&mut first).await.message.job(), Some("c"));
    one.ack(held.receipt).await.unwrap();
    drop((first, third));
    let mut came = BTreeSet::new();
    for _ in 0..2 {
        let delivery = take(&mut second).await;
        came.insert(delivery.message.job().unwrap().to_owned());
        other.ack(delivery.receipt).await.unwrap();
    }
    assert_eq!(came.iter().collect::<Vec<_>>(), ["b", "c"]);
}

/// Of two workers one sends, and the other goes on when the first is lost: no moment is left out.
pub(crate) async fn the_next_worker_leads_when_one_is_lost(place: &dyn Place) {
    const INTERVAL: Duration = Duration::from_millis(250);
    let console = App::on(place.open().await).connect().await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let schedule = Schedule::every(INTERVAL, Call::<()>::named("beat", ()));
        let app = App::on(place.open().await).schedule(schedule.missed(Missed::RunAll));
        // The jobs stay in their queue.
        workers.push(spawn(app.worker().queues([QUEUE]).run()));
        sleep(QUIET * 4).await.unwrap();
    }
    workers.remove(0).abort();
    sleep(INTERVAL * 8).await.unwrap();
    let listed = console.schedules().pause("beat").await.unwrap();
    assert!(listed[0].is_paused && listed[0].last.is_some(), "{listed:?}");
    let worker = workers.remove(0);
    worker.request_cancel("it is over");
    worker.await.unwrap().unwrap();
    let listed = console.schedules().list().await.unwrap();
    assert!(listed[0].is_paused, "the pause outlives the workers");

    let broker = place.open().await;
    let mut jobs = broker.consume("pikake", 100).await.unwrap();
    let mut moments = Vec::new();
    let mut within = PATIENCE;
    while let Some(delivery) = take_soon(&mut jobs, within).await {
        let id = delivery.message.job().unwrap();
        moments.push(id.strip_prefix("beat@").unwrap().parse::<jiff::Timestamp>().unwrap());
        within = QUIET;
    }
    let sent = moments.len();
    moments.sort();
    moments.dedup();
    // A worker that is lost between the job and its note has its successor send it again.
    assert!(moments.len() > 8 && sent <= moments.len() + 1, "{sent}: {moments:?}");
    for two in moments.windows(2) {
        let length = two[1].duration_since(two[0]).unsigned_abs();
        assert_eq!(length, INTERVAL, "{moments:?}");
    }
}
