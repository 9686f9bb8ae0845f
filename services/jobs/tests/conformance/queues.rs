//! Queues: what is put in comes out, once, in order, until it is acknowledged.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_jobs::{Broker, BrokerError, Message, QueueOptions};
use pikake_traps::{sleep, spawn, timeout_after, wall_time};

use crate::help::*;
use crate::place::Place;

pub(crate) async fn declared_twice(place: &dyn Place) {
    let broker = place.open().await;
    let mut options = QueueOptions::default();
    broker.declare("plain", &options).await.unwrap();
    broker.declare("plain", &options).await.unwrap();
    options.max_priority = 5;
    let refused = broker.declare("plain", &options).await;
    assert!(matches!(refused, Err(BrokerError::Refused(_))), "{refused:?}");
    // It goes on after a refusal.
    declare(&broker).await;
    publish(&broker, &["a"]).await;
    counted(&broker, |counts| counts.ready == 1).await;
    // Where it can be told at all.
    if let Some(mut queues) = broker.queues().await.unwrap() {
        queues.sort_unstable();
        assert_eq!(queues, [QUEUE, "plain"]);
    }
}

pub(crate) async fn declared_as_found(place: &dyn Place) {
    let broker = place.open().await;
    let mut options = QueueOptions::default();
    options.max_priority = 5;
    broker.declare("other", &options).await.unwrap();
    let mut as_found = QueueOptions::default();
    (as_found.replicated, as_found.as_found) = (IS_REPLICATED.get(), true);
    for queue in ["other", QUEUE, QUEUE] {
        broker.declare(queue, &as_found).await.unwrap();
    }
    declare(&broker).await;
    for queue in ["other", QUEUE] {
        broker.publish(queue, message("at once"), None).await.unwrap();
        let later = wall_time() + Duration::from_millis(100);
        broker.publish(queue, message("later"), Some(later)).await.unwrap();
        let mut deliveries = broker.consume(queue, 1).await.unwrap();
        drain(&broker, &mut deliveries, &["at once", "later"]).await;
    }
    // It has stayed what it was.
    broker.declare("other", &options).await.unwrap();
}

pub(crate) async fn queue_that_is_not_there(place: &dyn Place) {
    let broker = place.open().await;
    let refused = broker.publish("nowhere", message("a"), None).await.unwrap_err();
    assert_eq!((*refused.message, refused.is_uncertain), (message("a"), false));
    assert!(matches!(broker.consume("nowhere", 1).await, Err(BrokerError::Refused(_))));
    assert!(matches!(broker.counts("nowhere").await, Err(BrokerError::Refused(_))));
    // The counts of the others are there.
    declare(&broker).await;
    let counts = broker.counts_of(&["nowhere".to_owned(), QUEUE.to_owned()]).await.unwrap();
    let one = broker.counts(QUEUE).await.unwrap();
    assert!(matches!(&*counts, [Err(BrokerError::Refused(_)), Ok(of)] if *of == one), "{counts:?}");
}

pub(crate) async fn delivered_as_it_was(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let mut sent = message("a");
    sent.content_type = Some("application/json".into());
    sent.content_encoding = Some("utf-8".into());
    sent.reply_to = Some("answers".into());
    let time = wall_time() + Duration::from_secs(3_600);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    sent.expires = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()));
    let list = serde_json::json!([1, -2, 2_147_483_648_i64, null, true, "größe", [], {"x": 1.5}]);
    sent.headers.insert("list".into(), list);
    sent.body = (0..=255).collect();
    broker.publish(QUEUE, sent.clone(), None).await.unwrap();
    let mut deliveries = consume(&broker, 1).await;
    let mut delivery = take(&mut deliveries).await;
    assert_eq!((delivery.queue.as_str(), delivery.attempt), (QUEUE, 0));
    // An expiry may be carried as a length.
    let expires = delivery.message.expires.unwrap();
    let off = expires.duration_since(time).unwrap_or_else(|error| error.duration());
    assert!(off < Duration::from_secs(5), "{off:?}");
    delivery.message.expires = sent.expires;
    assert_eq!(delivery.message, sent);
    broker.ack(delivery.receipt).await.unwrap();
    nothing(&mut deliveries).await;
    counted(&broker, |counts| (counts.ready, counts.taken.unwrap_or(0)) == (0, 0)).await;
}

pub(crate) async fn first_in_first_out(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b", "c", "d"]).await;
    let mut deliveries = consume(&broker, 2).await;
    drain(&broker, &mut deliveries, &["a", "b", "c", "d"]).await;
}

pub(crate) async fn waits_for_what_is_published_later(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let mut deliveries = consume(&one, 5).await;
    nothing(&mut deliveries).await;
    let publisher = spawn(async move {
        sleep(QUIET).await.unwrap();
        publish(&other, &["a", "b"]).await;
    });
    drain(&one, &mut deliveries, &["a", "b"]).await;
    publisher.await.unwrap();
}

pub(crate) async fn given_back_keeps_its_place(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b", "c"]).await;
    let mut deliveries = consume(&broker, 1).await;
    for attempt in 0..3 {
        let delivery = take(&mut deliveries).await;
        // A classic queue of RabbitMQ tells only that there was one before.
        let counted = if delivery.is_counted { attempt } else { 1 };
        assert_eq!(seen(&delivery), ("a", counted));
        broker.give_back(delivery.receipt).await.unwrap();
    }
    drain(&broker, &mut deliveries, &["a", "b", "c"]).await;
}

pub(crate) async fn prefetch_is_a_bound(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b", "c", "d", "e"]).await;
    let mut deliveries = consume(&broker, 2).await;
    let (a, _b) = (take(&mut deliveries).await, take(&mut deliveries).await);
    nothing(&mut deliveries).await;
    broker.ack(a.receipt).await.unwrap();
    assert_eq!(seen(&take(&mut deliveries).await).0, "c");
    nothing(&mut deliveries).await;
}

pub(crate) async fn highest_priority_first(place: &dyn Place) {
    let broker = place.open().await;
    broker.declare("urgent", &QueueOptions::new().max_priority(9)).await.unwrap();
    assert_eq!(broker.max_priority("urgent").await.unwrap(), Some(9));
    for (job, priority) in [("a", 0), ("b", 5), ("c", 9), ("d", 5), ("e", 200)] {
        let mut sent = message(job);
        sent.priority = priority;
        broker.publish("urgent", sent, None).await.unwrap();
    }
    let mut deliveries = broker.consume("urgent", 1).await.unwrap();
    drain(&broker, &mut deliveries, &["c", "e", "b", "d", "a"]).await;
}

/// Whoever declares the queue as it is found learns of its priorities, too.
pub(crate) async fn priorities_are_told(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    one.declare("urgent", &QueueOptions::new().max_priority(9)).await.unwrap();
    for (queue, highest) in [(QUEUE, 0), ("urgent", 9)] {
        other.declare(queue, &QueueOptions::new().as_found(true)).await.unwrap();
        assert_eq!(other.max_priority(queue).await.unwrap(), Some(highest), "{queue}");
        let wanted = QueueOptions::new().max_priority(5).as_found(true);
        other.declare(queue, &wanted).await.unwrap();
        assert_eq!(other.max_priority(queue).await.unwrap(), Some(highest), "{queue}");
    }
}

pub(crate) async fn two_consumers_share(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let names: Vec<String> = (0..40).map(|number| format!("job {number}")).collect();
    for name in &names {
        publish(&one, &[name]).await;
    }
    let (mut first, mut second) = (consume(&one, 3).await, consume(&other, 3).await);
    let mut taken = Vec::new();
    while taken.len() < names.len() {
        for (broker, deliveries) in [(&one, &mut first), (&other, &mut second)] {
            if let Some(delivery) = take_soon(deliveries, QUIET).await {
                taken.push(seen(&delivery).0.to_owned());
                broker.ack(delivery.receipt).await.unwrap();
            }
        }
    }
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), names.len(), "{taken:?}");
    nothing(&mut first).await;
    nothing(&mut second).await;
}

pub(crate) async fn what_a_dropped_consumer_had_comes_again(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    publish(&one, &["a", "b", "c"]).await;
    let mut deliveries = consume(&one, 10).await;
    let (a, b) = (take(&mut deliveries).await, take(&mut deliveries).await);
    drop(deliveries);
    assert!(matches!(one.ack(a.receipt).await, Err(BrokerError::Stale)));
    let mut deliveries = consume(&other, 10).await;
    assert_eq!(seen(&take(&mut deliveries).await), ("a", 1));
    assert_eq!(seen(&take(&mut deliveries).await), ("b", 1));
    assert_eq!(seen(&take(&mut deliveries).await).0, "c");
    assert!(matches!(one.ack(b.receipt).await, Err(BrokerError::Stale)));
}

pub(crate) async fn what_a_lost_broker_had_comes_again(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let mut patient = consume(&other, 10).await;
    let mut deliveries = consume(&one, 10).await;
    publish(&one, &["a", "b", "c", "d"]).await;
    let mut had = BTreeSet::new();
    while let Some(delivery) = take_soon(&mut deliveries, QUIET).await {
        had.insert(seen(&delivery).0.to_owned());
    }
    place.lose(one, vec![deliveries]);
    let mut came = BTreeSet::new();
    for _ in 0..4 {
        let delivery = take(&mut patient).await;
        let (job, attempt) = seen(&delivery);
        assert_eq!(attempt > 0, had.contains(job), "{delivery:?}");
        came.insert(job.to_owned());
    }
    assert_eq!(came.len(), 4);
}

pub(crate) async fn a_receipt_is_good_once_and_for_one(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    publish(&one, &["a", "b"]).await;
    let mut deliveries = consume(&one, 10).await;
    let (a, b) = (take(&mut deliveries).await, take(&mut deliveries).await);
    assert!(matches!(other.ack(a.receipt).await, Err(BrokerError::Stale)));
    one.ack(a.receipt).await.unwrap();
    assert!(matches!(one.ack(a.receipt).await, Err(BrokerError::Stale)));
    assert!(matches!(one.give_back(a.receipt).await, Err(BrokerError::Stale)));
    let buried = one.bury(a.receipt, message("a"), "late".into()).await;
    assert!(matches!(buried, Err(BrokerError::Stale)));
    one.give_back(b.receipt).await.unwrap();
    assert!(matches!(one.ack(b.receipt).await, Err(BrokerError::Stale)));
    drain(&one, &mut deliveries, &["b"]).await;
    counted(&one, |counts| counts.dead == 0).await;
}

pub(crate) async fn a_cancelled_consumer_ends(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b", "c"]).await;
    let mut deliveries = consume(&broker, 2).await;
    let a = take(&mut deliveries).await;
    deliveries.cancel().await.unwrap();
    let mut had = 1;
    while let Some(delivery) = deliveries.next().await.unwrap() {
        broker.ack(delivery.receipt).await.unwrap();
        had += 1;
    }
    assert!(deliveries.next().await.unwrap().is_none());
    broker.ack(a.receipt).await.unwrap();
    let mut deliveries = consume(&broker, 2).await;
    for _ in had..3 {
        take(&mut deliveries).await;
    }
    nothing(&mut deliveries).await;
}

pub(crate) async fn an_interrupted_next_loses_nothing(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let mut deliveries = consume(&broker, 4).await;
    let publisher = spawn({
        let broker = broker.clone();
        async move {
            for number in 0..30 {
                publish(&broker, &[&format!("{number:02}")]).await;
                sleep(Duration::from_micros(700)).await.unwrap();
            }
        }
    });
    let mut taken = Vec::new();
    let mut length = 0;
    while taken.len() < 30 {
        length = (length + 37) % 1_000;
        let next = timeout_after(Duration::from_micros(length), deliveries.next()).await;
        if let Ok(Ok(Some(delivery))) = next {
            taken.push(seen(&delivery).0.to_owned());
            broker.ack(delivery.receipt).await.unwrap();
        }
    }
    publisher.await.unwrap();
    let expected: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
    assert_eq!(taken, expected);
}

pub(crate) async fn an_interrupted_publish_says_what_it_knows(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let (mut at_least, mut at_most) = (0, 0);
    for length in 0..40 {
        let sent = message(&length.to_string());
        let mut published = std::pin::pin!(broker.publish(QUEUE, sent.clone(), None));
        let outcome = pikake_traps::timed(Duration::from_micros(length * 20), &mut published).await;
        at_most += 1;
        match outcome.output {
            Some(Ok(())) => at_least += 1,
            Some(Err(error)) => {
                assert_eq!(*error.message, sent);
                at_most -= u64::from(!error.is_uncertain);
            }
            None => {}
        }
    }
    // What is still on its way is behind this one by now.
    publish(&broker, &["last"]).await;
    counted(&broker, |counts| (at_least + 1..=at_most + 1).contains(&counts.ready)).await;
}

pub(crate) async fn many_publish_at_once(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let publish_one = |number: usize| {
        let broker = broker.clone();
        spawn(async move { publish(&broker, &[&number.to_string()]).await })
    };
    let tasks: Vec<_> = (0..200).map(publish_one).collect();
    for task in tasks {
        task.await.unwrap();
    }
    counted(&broker, |counts| counts.ready == 200).await;
}

pub(crate) async fn what_was_confirmed_outlives_a_close(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    publish(&broker, &["a", "b"]).await;
    let mut deliveries = consume(&broker, 1).await;
    let a = take(&mut deliveries).await;
    let acked = spawn({
        let broker = broker.clone();
        async move { broker.ack(a.receipt).await }
    });
    sleep(Duration::from_micros(100)).await.unwrap();
    broker.close().await.unwrap();
    acked.await.unwrap().unwrap();
    broker.close().await.unwrap();
    assert!(matches!(deliveries.next().await, Err(BrokerError::Closed)));
    let refused = broker.publish(QUEUE, message("c"), None).await.unwrap_err();
    assert!(!refused.is_uncertain, "{refused:?}");
    assert!(matches!(broker.counts(QUEUE).await, Err(BrokerError::Closed)));
    assert_eq!(broker.state(), "closed");
    let broker = place.open().await;
    assert_eq!(broker.state(), "open");
    let mut deliveries = consume(&broker, 1).await;
    drain(&broker, &mut deliveries, &["b"]).await;
}

pub(crate) async fn anything_is_carried(place: &dyn Place) {
    let broker: Rc<dyn Broker> = place.open().await;
    declare(&broker).await;
    let mut big = message("big");
    big.body = vec![b'x'; 3 << 20];
    for sent in [Message::default(), big] {
        broker.publish(QUEUE, sent.clone(), None).await.unwrap();
        let mut deliveries = consume(&broker, 1).await;
        let delivery = take(&mut deliveries).await;
        assert!(delivery.message == sent, "{:?}", delivery.message.headers);
        broker.ack(delivery.receipt).await.unwrap();
    }
}
