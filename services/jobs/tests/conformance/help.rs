//! What most cases do: messages with a name, and waits that have an end.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{Broker, Counts, Deliveries, Delivery, Message, QueueOptions};
use pikake_traps::{sleep, timeout_after};

pub(crate) const QUEUE: &str = "mail";

/// What comes at all, comes within this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What has not come in this, does not come.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

/// A message of the job of that name.
pub(crate) fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message.headers.insert("id".to_owned(), job.into());
    message.headers.insert("task".to_owned(), "count".into());
    message.body = b"[[], {}, {}]".to_vec();
    message
}

thread_local! {
    /// Whether the queues of this case are replicated.
    pub(crate) static IS_REPLICATED: Cell<bool> = const { Cell::new(false) };
}

/// A broker's queue.
pub(crate) async fn declare(broker: &Rc<dyn Broker>) {
    let mut options = QueueOptions::default();
    options.replicated = IS_REPLICATED.get();
    broker.declare(QUEUE, &options).await.unwrap();
}

pub(crate) async fn publish(broker: &Rc<dyn Broker>, jobs: &[&str]) {
    for job in jobs {
        broker.publish(QUEUE, message(job), None).await.unwrap();
    }
}

pub(crate) async fn consume(broker: &Rc<dyn Broker>, prefetch: u16) -> Box<dyn Deliveries> {
    broker.consume(QUEUE, prefetch).await.unwrap()
}

/// The next delivery, which comes.
pub(crate) async fn take(deliveries: &mut Box<dyn Deliveries>) -> Delivery {
    let next = timeout_after(PATIENCE, deliveries.next()).await;
    next.expect("a delivery comes").unwrap().expect("it was not cancelled")
}

/// The next delivery, if one comes soon.
pub(crate) async fn take_soon(
    deliveries: &mut Box<dyn Deliveries>,
    within: Duration,
) -> Option<Delivery> {
    let next = timeout_after(within, deliveries.next()).await;
    next.ok().map(|next| next.unwrap().expect("it was not cancelled"))
}

/// There is nothing to be delivered.
pub(crate) async fn nothing(deliveries: &mut Box<dyn Deliveries>) {
    let delivery = take_soon(deliveries, QUIET).await;
    assert!(delivery.is_none(), "nothing was to come, but {delivery:?}");
}

/// The job of a delivery, and how often it was delivered before.
pub(crate) fn seen(delivery: &Delivery) -> (&str, u32) {
    (delivery.message.job().unwrap_or_default(), delivery.attempt)
}

/// The queue comes to have so many; a broker may count a moment later.
pub(crate) async fn counted(broker: &Rc<dyn Broker>, is_so: impl Fn(&Counts) -> bool) {
    let mut counts = broker.counts(QUEUE).await.unwrap();
    for _ in 0..100 {
        if is_so(&counts) {
            return;
        }
        sleep(QUIET).await.unwrap();
        counts = broker.counts(QUEUE).await.unwrap();
    }
    panic!("this is what it has: {counts:?}");
}

/// Takes these jobs, in this order, and acknowledges them.
pub(crate) async fn drain(
    broker: &Rc<dyn Broker>,
    deliveries: &mut Box<dyn Deliveries>,
    jobs: &[&str],
) {
    let mut taken = Vec::new();
    for _ in jobs {
        let delivery = take(deliveries).await;
        taken.push(delivery.message.job().unwrap_or_default().to_owned());
        broker.ack(delivery.receipt).await.unwrap();
    }
    assert_eq!(taken, jobs);
}
