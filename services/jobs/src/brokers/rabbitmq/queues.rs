//! What is asked of RabbitMQ about queues: made, counted, emptied.
//!
//! AMQP reports most errors by closing the channel they happened on, so each of
//! these calls has a channel of its own.

use pikake_amqp::{Channel, Error, Message as Publishing, QueueOptions as AmqpQueue, Value, short};

use crate::broker::{BrokerError, Counts, QueueOptions};
use crate::brokers::rabbitmq::error::{NOT_FOUND, PRECONDITION_FAILED};

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

/// Whether quorum queues of this version of RabbitMQ drop messages unless they have a limit.
pub(crate) fn drops_messages(version: Option<&str>) -> bool {
    !version.is_some_and(|version| version.starts_with("3."))
}

/// Declares a queue and the one of its dead, and tells whether it is replicated.
pub(crate) async fn declare(
    channel: impl AsyncFn() -> Result<Channel, BrokerError>,
    queue: &str,
    options: &QueueOptions,
    drops_messages: bool,
) -> Result<bool, BrokerError> {
    if options.replicated && options.max_priority > 0 {
        return Err(BrokerError::Refused(format!(
            "queue `{queue}`: RabbitMQ's quorum queues have no priorities; declare it with \
             `replicated: false`, or without priorities"
        )));
    }
    if queue.is_empty() || queue.contains(['*', '#']) {
        return Err(BrokerError::Refused(format!("`{queue}` cannot be the name of a queue")));
    }
    let mut wanted = match options.replicated && !drops_messages {
        // As Celery declares it, which may come first or second.
        true => AmqpQueue::quorum(),
        false => kind(options.replicated),
    };
    if options.max_priority > 0 {
        let priority = Value::LongInt(options.max_priority.into());
        wanted = wanted.argument("x-max-priority", priority);
    }
    if options.single_consumer {
        wanted = wanted.argument("x-single-active-consumer", Value::Boolean(true));
    }
    let found = async |name: &str, wanted, is_replicated, as_found| match channel()
        .await?
        .declare_queue(name, wanted)
        .await
    {
        Ok(_) => Ok(is_replicated),
        Err(error) => match kind_found(&error, is_replicated) {
            Some(found) if as_found || differs_in_limit(&error) => Ok(found),
            Some(_) => Err(BrokerError::Refused(format!(
                "queue `{name}` exists with other options: declare it with its own, or `as_found` ({error})"
            ))),
            None => Err(error.into()),
        },
    };
    let is_replicated = found(queue, wanted, options.replicated, options.as_found).await?;
    found(&dead_queue(queue), kind(is_replicated), is_replicated, true).await?;
    Ok(is_replicated)
}

/// Whether a queue that could not be declared differs in the limit of deliveries: Celery sets none for its quorum queues,
/// and earlier versions of pikake set one for each.
fn differs_in_limit(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.text.contains("'x-delivery-limit'"))
}

/// Whether a queue is replicated that could not be declared, as it is there and another one; `None` if
/// that is not why. AMQP has no way to ask, so it is what the broker does not like about the attempt.
fn kind_found(error: &Error, is_replicated: bool) -> Option<bool> {
    /// Quorum queues have one value of each.
    const OF_THE_KIND: [&str; 4] = ["x-queue-type", "durable", "exclusive", "auto_delete"];
    let reason = error.reason().filter(|reason| reason.code == PRECONDITION_FAILED)?;
    let is_other = OF_THE_KIND.iter().any(|name| reason.text.contains(&format!("'{name}'")));
    Some(is_replicated != is_other)
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
pub(crate) fn is_not_found(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.code == NOT_FOUND)
}

/// How many are ready in a queue, and how many consume it.
pub(crate) async fn look(channel: &Channel, queue: &str) -> Result<(u64, u64), Error> {
    let found = channel.declare_queue(queue, AmqpQueue::passive()).await?;
    Ok((found.messages.into(), found.consumers.into()))
}

/// Ready, dead, consumers. The channel is closed if the queue was made by somebody else and has no dead.
pub(crate) async fn counts(channel: &Channel, queue: &str) -> Result<Counts, BrokerError> {
    let (ready, consumers) = look(channel, queue).await?;
    let dead = match look(channel, &dead_queue(queue)).await {
        Ok((dead, _)) => dead,
        Err(error) if is_not_found(&error) => 0,
        Err(error) => return Err(error.into()),
    };
    Ok(Counts { ready, dead, consumers: Some(consumers), ..Counts::default() })
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
