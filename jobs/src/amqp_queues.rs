//! What is asked of RabbitMQ about queues: made, counted, emptied.
//!
//! Apart from the broker. AMQP reports most errors by closing the channel they happened on, so each of
//! these calls has a channel of its own.

use pikake_amqp::{Channel, Error, Message as Publishing, QueueOptions as AmqpQueue, Value, short};

use crate::amqp_delay::{LEVELS, delay_queue};
use crate::amqp_error::NOT_FOUND;
use crate::broker::{BrokerError, Counts, QueueOptions};

/// RabbitMQ 4 drops a message for good that was delivered so often, 20 times unless it is told. Whether
/// a job has been tried often enough is for its worker to say, which buries it.
const DELIVERY_LIMIT: i64 = 1_000_000;

pub(crate) fn dead_queue(queue: &str) -> String {
    format!("{queue}.dead")
}

/// The kind of a queue.
fn kind(is_replicated: bool) -> AmqpQueue {
    match is_replicated {
        true => {
            AmqpQueue::quorum().argument("x-delivery-limit", Value::LongLongInt(DELIVERY_LIMIT))
        }
        false => AmqpQueue::default(),
    }
}

pub(crate) async fn declare(
    channel: &Channel,
    queue: &str,
    options: &QueueOptions,
) -> Result<(), BrokerError> {
    if options.replicated && options.max_priority > 0 {
        return Err(BrokerError::Refused(format!(
            "queue `{queue}`: RabbitMQ's quorum queues have no priorities; declare it with \
             `replicated: false`, or without priorities"
        )));
    }
    if queue.is_empty() || queue.contains(['*', '#']) {
        return Err(BrokerError::Refused(format!("`{queue}` cannot be the name of a queue")));
    }
    let mut wanted = kind(options.replicated);
    if options.max_priority > 0 {
        let priority = Value::LongInt(options.max_priority.into());
        wanted = wanted.argument("x-max-priority", priority);
    }
    channel.declare_queue(queue, wanted).await?;
    Ok(declare_dead(channel, queue, options.replicated).await?)
}

/// Makes the queue of a queue's dead.
pub(crate) async fn declare_dead(
    channel: &Channel,
    queue: &str,
    is_replicated: bool,
) -> Result<(), Error> {
    channel.declare_queue(&dead_queue(queue), kind(is_replicated)).await.map(drop)
}

/// Whether the broker says that something is not there. The channel is closed then.
fn is_not_found(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.code == NOT_FOUND)
}

/// How many are ready in a queue, and how many consume it.
async fn look(channel: &Channel, queue: &str) -> Result<(u64, u64), Error> {
    let found = channel.declare_queue(queue, AmqpQueue::passive()).await?;
    Ok((found.messages.into(), found.consumers.into()))
}

/// Ready, dead, consumers.
pub(crate) async fn counts(channel: &Channel, queue: &str) -> Result<Counts, BrokerError> {
    let (ready, consumers) = look(channel, queue).await?;
    let (dead, _) = look(channel, &dead_queue(queue)).await?;
    Ok(Counts { ready, taken: None, delayed: 0, dead, consumers: Some(consumers) })
}

/// How many wait for their time. Without delay queues there are none, and the channel is closed.
pub(crate) async fn count_delayed(channel: &Channel, queue: &str) -> Result<u64, BrokerError> {
    let mut delayed = 0;
    for level in (0..LEVELS).rev() {
        match look(channel, &delay_queue(queue, level)).await {
            Ok((messages, _)) => delayed += messages,
            Err(error) if is_not_found(&error) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(delayed)
}

/// The same, and they are gone.
pub(crate) async fn purge_delayed(channel: &Channel, queue: &str) -> Result<u64, BrokerError> {
    let mut purged = 0;
    for level in (0..LEVELS).rev() {
        match channel.purge(&delay_queue(queue, level)).await {
            Ok(messages) => purged += u64::from(messages),
            Err(error) if is_not_found(&error) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(purged)
}

/// A message for a queue, which has to be there.
pub(crate) fn to_queue(
    queue: &str,
    properties: pikake_amqp::Properties,
    body: Vec<u8>,
) -> Result<Publishing, Error> {
    let (exchange, routing_key) = (short("")?, short(queue)?);
    Ok(Publishing { exchange, routing_key, properties, body, mandatory: true })
}
