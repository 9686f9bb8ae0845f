//! Chords: a queue for each, which has the outcomes of the members that have ended.
//!
//! A member publishes its outcome to the queue, then counts the queue's messages. If there are as many as members, it takes
//! them all; whoever has all of them sends the job that follows, and deletes the queue.
//!
//! * **No chord is left**: a member's own message is acknowledged after its call here has returned. The call returns without
//!   the members only if the count was too low at a moment when this caller held no message of the queue. A caller that
//!   holds messages counts again after it has returned them, over the same channel, so the broker sees the return first. So
//!   the last caller to count finds all messages ready. An interrupted caller calls again over the same channel, which
//!   returns what it held. If a connection is lost, the broker requeues what it held, the member's own message among it, and
//!   the second run of that member calls again. (The broker requeues both at the same time, and the run takes longer. This is no guarantee: in
//!   fault runs on a busy machine, three of ten chords of 200 members were left, and none of thirty with 20.)
//!   The first run, if its process lives on, takes no more messages, and its worker no more calls (`Broker::holds`): the
//!   second run might count meanwhile, and a first run that is lost then has no third.
//! * **No member counts twice**: whoever takes the messages removes the second one of a member. Two calls never share a
//!   channel, also not two runs of one job in a process: a message that the other one returns would count as the second one.
//! * **The job that follows is sent once, or again with the same id**, if a caller is lost before it has deleted the queue.
//!
//! The queue is a classic one, whose count is exact at any moment; that of a quorum queue lags behind.

use std::collections::BTreeMap;
use std::time::Duration;

use pikake_amqp::{Channel, QueueOptions as AmqpQueue, Value, persistent, short};
use pikake_traps::{random, sleep, wall_time};

use crate::broker::BrokerError;
use crate::broker::outcomes::CHORD_LIFETIME;
use crate::brokers::rabbitmq::message::with_header;
use crate::brokers::rabbitmq::publisher::Publisher;
use crate::brokers::rabbitmq::queues::{is_not_found, look, to_queue};
use crate::brokers::rabbitmq::value::json;
use crate::message::{ChordMember, JobId, Outcome};

/// The header with a member's place.
const INDEX: &str = "group_index";

/// The longest pause before members that held some messages each try again.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The queue of a chord.
pub(crate) fn chord_queue(chord: &str) -> String {
    format!("pikake.chord.{chord}")
}

/// Adds a member, whose own message came over the connection of that epoch. Once all members are there, returns them.
pub(crate) async fn join(
    channel: &Channel,
    epoch: u64,
    publisher: &Publisher,
    member: &ChordMember,
) -> Result<Option<Vec<ChordMember>>, BrokerError> {
    let queue = chord_queue(&member.chord);
    let lifetime = i64::try_from(CHORD_LIFETIME.as_millis()).unwrap_or(i64::MAX);
    let options = AmqpQueue::default().argument("x-expires", Value::LongLongInt(lifetime));
    channel.declare_queue_once(&queue, options).await?;
    let send = || {
        let index = i64::try_from(member.index).unwrap_or(i64::MAX);
        let properties = persistent()
            .with_content_type(short("application/json")?)
            .with_correlation_id(short(&member.id)?);
        let properties = with_header(properties, INDEX, Value::LongLongInt(index))?;
        to_queue(&queue, properties, member.outcome.to_meta(&member.id, wall_time()))
    };
    publisher.send(send).await?;
    let size = u64::from(member.size);
    loop {
        match look(channel, &queue).await {
            Ok((ready, _)) if ready < size => return Ok(None),
            Ok(_) => {}
            // Another member has ended the chord.
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if channel.connection().epoch() != epoch {
            return Err(BrokerError::Lost("it was lost while a chord was joined".to_owned()));
        }
        let mut members = BTreeMap::new();
        while let Some(delivery) = channel.get(&queue, false).await? {
            let headers = delivery.properties.headers().as_ref();
            let index = headers.and_then(|headers| headers.inner().get(INDEX)).map(json);
            let index = index.as_ref().and_then(serde_json::Value::as_u64).unwrap_or_default();
            match Outcome::from_meta(&delivery.body) {
                Ok((JobId(id), outcome)) if !members.contains_key(&(index, id.clone())) => {
                    members.insert((index, id), (outcome, delivery));
                }
                // The second one of a member, or of a stranger.
                _ => {
                    let _ = delivery.ack();
                }
            }
        }
        if members.len() as u64 >= size {
            let members = members.into_iter().map(|((index, id), (outcome, _))| {
                ChordMember::new(member.chord.clone(), member.size, index, id, outcome)
            });
            return Ok(Some(members.collect()));
        }
        for (_, delivery) in members.into_values() {
            // Stale: the connection was lost, and the broker has requeued it.
            let _ = delivery.nack(true);
        }
        sleep(LONGEST_PAUSE.mul_f64(random::f64())).await?;
    }
}
