//! The locks of unique jobs: a queue for each key, which takes one message.
//!
//! The queue has `x-max-length` 1 and refuses further messages (`reject-publish`), so of several
//! senders the broker confirms one. The message is the lock. It ends by the queue's
//! `x-message-ttl`; to release it, the queue is deleted. What holds:
//!
//! * **Of two senders, one gets the lock**: the broker decides in one queue. A sender whose
//!   connection is lost while it takes the lock may find its own lock when it sends again: its job
//!   is not sent, and the error is that of a duplicate.
//! * **The holder is not known**: a reader that took the message to look at it would leave the
//!   queue empty meanwhile.
//! * **A released lock is that of the job**, unless it has ended by its time and another job has
//!   it: so a lock that is about to end is left to end. Clocks of workers and senders that differ
//!   by more than [`MARGIN`] make that wrong, and so does a job that runs twice.
//! * **Nothing is left**: an unused queue is deleted after the length and [`MARGIN`].

use std::time::{Duration, SystemTime};

use pikake_amqp::{Channel, Error, QueueOptions as AmqpQueue, Value, persistent, short};

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::error::PRECONDITION_FAILED;
use crate::brokers::rabbitmq::publisher::{Prepared, Publisher};
use crate::brokers::rabbitmq::queues::to_queue;
use crate::unique::UniqueLock;
use crate::wire::ids;

/// How much longer a queue lives than its lock, and how close to its end a lock is not released.
const MARGIN: Duration = Duration::from_secs(60);

/// The longest lock: RabbitMQ's longest time to live is 49 days.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The longest key that is part of a queue's name; a longer one is hashed.
const LONGEST_KEY: usize = 200;

/// How often a lock that is being released is tried again.
const TRIES: u32 = 10;

fn lock_queue(key: &str) -> String {
    match key.len() <= LONGEST_KEY {
        true => format!("pikake.unique.{key}"),
        false => format!("pikake.unique#{}", ids::derived(key, 0)),
    }
}

fn millis(length: Duration) -> Value {
    Value::LongLongInt(i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1))
}

/// Takes a lock; `false` if another job has it.
pub(crate) async fn lock(
    channel: impl AsyncFn() -> Result<Channel, BrokerError>,
    publisher: &Publisher,
    lock: &UniqueLock,
) -> Result<bool, BrokerError> {
    if lock.length > LONGEST {
        let why = "RabbitMQ keeps the lock of a unique job for 30 days at most".to_owned();
        return Err(BrokerError::Refused(why));
    }
    let queue = lock_queue(&lock.key);
    let options = || {
        AmqpQueue::default()
            .argument("x-max-length", Value::LongInt(1))
            .argument("x-overflow", Value::LongString("reject-publish".into()))
            .argument("x-message-ttl", millis(lock.length))
            .argument("x-expires", millis(lock.length + MARGIN))
    };
    for _ in 0..TRIES {
        let declared = channel().await?.declare_queue_once(&queue, options()).await;
        declared.map_err(|error| different(error, &lock.key))?;
        let make = || {
            let properties = persistent().with_correlation_id(short(&lock.job.0)?);
            Ok(Prepared::Message(to_queue(&queue, properties, Vec::new())?))
        };
        match publisher.publish(None, make).await {
            Ok(()) => return Ok(true),
            Err(unsent) if unsent.is_nacked => return Ok(false),
            // The lock was released a moment ago, and its queue deleted.
            Err(unsent) if unsent.is_unroutable => {}
            Err(unsent) => return Err(unsent.into()),
        }
    }
    Err(BrokerError::Lost(format!("the queue `{queue}` is deleted again and again")))
}

fn different(error: Error, key: &str) -> BrokerError {
    match error.reason() {
        Some(reason) if reason.code == PRECONDITION_FAILED => BrokerError::Refused(format!(
            "the key `{key}` has a lock of another length: give all locks of a key one length ({error})"
        )),
        _ => error.into(),
    }
}

/// Releases a lock, unless it is about to end.
pub(crate) async fn unlock(
    channel: &Channel,
    lock: &UniqueLock,
    now: SystemTime,
) -> Result<(), BrokerError> {
    // A short lock has a short margin.
    if now + MARGIN.min(lock.length / 10) < lock.ends {
        channel.delete_queue(&lock_queue(&lock.key)).await?;
    }
    Ok(())
}
