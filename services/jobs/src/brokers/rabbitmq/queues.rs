//! What is asked of RabbitMQ about queues: made, counted, emptied.
//!
//! AMQP reports most errors by closing the channel they happened on, so each of
//! these calls has a channel of its own.

use pikake_amqp::{Channel, Error, Message as Publishing, QueueOptions as AmqpQueue, Value, short};

use crate::broker::{BrokerError, Counts, QueueOptions};
use crate::brokers::rabbitmq::error::{NOT_FOUND, PRECONDITION_FAILED};

/// RabbitMQ 4 drops a message for good that was delivered so often, 20 times unless it is told.
/// Whether a job has been tried often enough is for its worker to say, which buries it.
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

/// Declares a queue and the one of its dead, and tells what is there.
pub(crate) async fn declare(
    channel: impl AsyncFn() -> Result<Channel, BrokerError>,
    queue: &str,
    options: &QueueOptions,
    drops_messages: bool,
) -> Result<Found, BrokerError> {
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
    let here =
        Found { is_replicated: options.replicated, max_priority: Some(options.max_priority) };
    let found = async |name: &str, wanted, here: Found, as_found| match channel()
        .await?
        .declare_queue(name, wanted)
        .await
    {
        Ok(_) => Ok(here),
        Err(error) => match here.corrected(&error) {
            Some(found) if as_found || differs_in_limit(&error) => Ok(found),
            Some(_) => Err(BrokerError::Refused(format!(
                "queue `{name}` exists with other options: declare it with its own, or `as_found` ({error})"
            ))),
            None => Err(error.into()),
        },
    };
    let there = found(queue, wanted, here, options.as_found).await?;
    found(&dead_queue(queue), kind(there.is_replicated), there, true).await?;
    Ok(there)
}

/// Whether a queue that could not be declared differs in the limit of deliveries: Celery sets none
/// for its quorum queues, and earlier versions of pikake set one for each.
fn differs_in_limit(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.text.contains("'x-delivery-limit'"))
}

/// The options of a queue that is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) is_replicated: bool,
    /// `None` if the broker does not tell.
    pub(crate) max_priority: Option<u8>,
}

impl Found {
    /// The options of a queue that could not be declared with these, as it is there and another
    /// one; `None` if that is not why. AMQP has no way to ask, so it is what the broker does not
    /// like about the attempt.
    fn corrected(self, error: &Error) -> Option<Self> {
        /// Quorum queues have one value of each.
        const OF_THE_KIND: [&str; 4] = ["x-queue-type", "durable", "exclusive", "auto_delete"];
        let reason = error.reason().filter(|reason| reason.code == PRECONDITION_FAILED)?;
        let concerns = |name: &str| reason.text.contains(&format!("'{name}'"));
        let is_replicated = self.is_replicated != OF_THE_KIND.into_iter().any(concerns);
        let max_priority = match is_replicated {
            true => Some(0),
            false if concerns("x-max-priority") => there(&reason.text),
            false => None,
        };
        Some(Self { is_replicated, max_priority })
    }
}

/// The number in a text of RabbitMQ's such as `received none but current is the value '9' of type
/// 'signedint'`, or `received '5' but current is '9'`.
fn there(text: &str) -> Option<u8> {
    let (_, current) = text.rsplit_once("current is ")?;
    match current.split('\'').nth(1) {
        Some(value) => value.parse().ok(),
        None => Some(0),
    }
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

/// Whether somebody else consumes the queue alone. A missing permission has the same number, and
/// another text: "access to".
pub(crate) fn is_consumed(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.text.starts_with("ACCESS_REFUSED - queue '"))
}

/// How many are ready in a queue, and how many consume it.
pub(crate) async fn look(channel: &Channel, queue: &str) -> Result<(u64, u64), Error> {
    let found = channel.declare_queue(queue, AmqpQueue::passive()).await?;
    Ok((found.messages.into(), found.consumers.into()))
}

/// Ready, dead, consumers. The channel is closed if the queue was made by somebody else and has no
/// dead.
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
