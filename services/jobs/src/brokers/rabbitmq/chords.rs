//! Chords: a queue for each, which has the outcomes of the members that have ended.
//!
//! A member publishes its outcome to the queue, then counts the queue's messages. If there are as
//! many as members, it takes them all; whoever has all of them sends the job that follows, and
//! deletes the queue.
//!
//! * **One caller takes them**: as an exclusive consumer, with a channel of its own. It keeps
//!   consumer and messages until it has deleted the queue. If it gives up or is lost, its channel
//!   ends: RabbitMQ's queue then removes the consumer and requeues the messages in one step.
//! * **No chord is left**: a member's own message is acknowledged after its call here has returned.
//!   The call returns without the members only if it has counted too few at a moment without a
//!   consumer. All messages of the queue were ready then, so a member was missing, which counts
//!   later. While there is a consumer, the call counts again.
//! * **No member counts twice**: the caller that takes the messages acknowledges, and so removes,
//!   duplicates of a member.
//! * **The job that follows is sent once, or again with the same id**, if a caller is lost before
//!   it has deleted the queue.
//!
//! The queue is a classic one, whose count is exact at any moment; that of a quorum queue lags
//! behind.

use std::collections::BTreeMap;
use std::time::Duration;

use pikake_amqp::{
    Channel, ConsumeOptions, Consumer, Error, QueueOptions as AmqpQueue, Receipt, Value,
    persistent, short,
};
use pikake_traps::{random, sleep, wall_time};

use crate::broker::BrokerError;
use crate::broker::outcomes::CHORD_LIFETIME;
use crate::brokers::rabbitmq::message::with_header;
use crate::brokers::rabbitmq::publisher::{Prepared, Publisher};
use crate::brokers::rabbitmq::queues::{is_consumed, is_not_found, look, to_queue};
use crate::brokers::rabbitmq::value::json;
use crate::message::{AllMembers, ChordMember};

/// The header with a member's place.
const INDEX: &str = "group_index";

/// The pause before a caller counts again while another one has the messages, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The queue of a chord.
pub(crate) fn chord_queue(chord: &str) -> String {
    format!("pikake.chord.{chord}")
}

/// A channel that may consume the queue of a chord. Its end requeues what it has, also that of an
/// interrupted call.
struct Taking {
    channel: Channel,
    consumer: Option<Consumer>,
    taken: Vec<Receipt>,
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Before the consumer and the receipts are dropped: each of them would tell the broker on
        // its own, and another caller could count between the end of the consumer and the return of
        // the messages.
        drop(self.channel.close());
    }
}

impl Taking {
    /// Takes all messages, as the only consumer, and removes duplicates of a member. `None` if the
    /// queue has lost its consumer.
    async fn take(
        &mut self,
        queue: &str,
        of: &ChordMember,
    ) -> Result<Option<Vec<ChordMember>>, Error> {
        let options = ConsumeOptions { prefetch: 0, exclusive: true, ..ConsumeOptions::default() };
        let consumer = self.consumer.insert(self.channel.consume(queue, options).await?);
        loop {
            match look(&self.channel, queue).await? {
                // A channel is in order, so all messages have come. In a cluster, some may come
                // later: too few are taken then.
                (0, _) => break,
                // The queue has lost its consumer.
                (_, 0) => return Ok(None),
                _ => {}
            }
        }
        let mut members = BTreeMap::new();
        while let Some(delivery) = consumer.try_next() {
            let headers = delivery.properties.headers().as_ref();
            let index = headers.and_then(|headers| headers.inner().get(INDEX)).map(json);
            let index = index.as_ref().and_then(serde_json::Value::as_u64).unwrap_or_default();
            match of.other(index, &delivery.body) {
                Ok(member) if !members.contains_key(&(index, member.id.clone())) => {
                    members.insert((index, member.id.clone()), member);
                    self.taken.push(delivery.receipt);
                }
                // The second one of a member, or of a stranger. Stale: the connection was lost, and
                // it has been requeued.
                _ => drop(delivery.ack()),
            }
        }
        Ok(Some(members.into_values().collect()))
    }
}

/// Whether a queue is not there. Its messages are gone.
fn is_deleted(error: &Error) -> bool {
    error.reason().is_some_and(|reason| reason.text.starts_with("NOT_FOUND - no queue"))
}

/// A queue that cannot be reached is lost, as a connection is: in a cluster, its node may be down.
fn failed(error: Error) -> BrokerError {
    match is_not_found(&error) {
        true => BrokerError::Lost(error.to_string()),
        false => error.into(),
    }
}

/// Adds a member. Once all members are there, returns them.
pub(crate) async fn join(
    open: impl AsyncFn() -> Result<Channel, BrokerError>,
    publisher: &Publisher,
    member: &ChordMember,
) -> Result<Option<AllMembers>, BrokerError> {
    let queue = chord_queue(&member.chord);
    let lifetime = i64::try_from(CHORD_LIFETIME.as_millis()).unwrap_or(i64::MAX);
    let options = AmqpQueue::default().argument("x-expires", Value::LongLongInt(lifetime));
    let meta = member.to_meta(wall_time());
    if let Err(error) = member.other(member.index, &meta) {
        return Err(BrokerError::Refused(format!("a value that nobody can read: {error}")));
    }
    let mut channel = open().await?;
    channel.declare_queue_once(&queue, options).await.map_err(failed)?;
    let message = || {
        let index = i64::try_from(member.index).unwrap_or(i64::MAX);
        let properties = persistent()
            .with_content_type(short("application/json")?)
            .with_correlation_id(short(&member.id)?);
        let properties = with_header(properties, INDEX, Value::LongLongInt(index))?;
        to_queue(&queue, properties, meta.clone())
    };
    match publisher.publish(None, || Ok(Prepared::Message(message()?))).await {
        // The queue was there: another member has ended the chord.
        Err(unsent) if unsent.is_unroutable => return Ok(None),
        sent => sent?,
    }
    let size = u64::from(member.size);
    let mut pause = FIRST_PAUSE;
    loop {
        let counted = look(&channel, &queue).await;
        let mut taking = Taking { channel, consumer: None, taken: Vec::new() };
        let members = match counted {
            Ok((ready, 0)) if ready < size => return Ok(None),
            Ok((_, 0)) => taking.take(&queue, member).await,
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        match members {
            Ok(Some(members)) if members.len() as u64 >= size => {
                return Ok(Some(AllMembers::held(members, taking)));
            }
            Ok(_) => {}
            // Another member has ended the chord.
            Err(error) if is_deleted(&error) => return Ok(None),
            // Another member takes the messages.
            Err(error) if is_consumed(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        drop(taking);
        sleep(pause.mul_f64(random::f64())).await?;
        pause = LONGEST_PAUSE.min(pause * 2);
        channel = open().await?;
    }
}
