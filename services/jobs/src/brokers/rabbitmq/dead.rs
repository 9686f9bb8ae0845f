//! The dead of a queue: messages moved there with the reason why, read, and sent again.

use pikake_amqp::{Channel, Delivery, Properties, Value};
use pikake_traps::wall_time;

use crate::broker::{BrokerError, DeadJob};
use crate::brokers::rabbitmq::message::{
    REASON, SINCE, headless, message, millis, properties, text_of, time_of, with_header,
};
use crate::brokers::rabbitmq::publisher::Publisher;
use crate::brokers::rabbitmq::queues::{dead_queue, look, to_queue};
use crate::message::{JobId, Message};

/// Moves a message to the dead of a queue. `repair` declares their queue again.
pub(crate) async fn bury(
    publisher: &Publisher,
    queue: &str,
    message: &Message,
    reason: &str,
    repair: impl AsyncFnOnce() -> Result<(), BrokerError>,
) -> Result<(), BrokerError> {
    let now = wall_time();
    let dead = dead_queue(queue);
    let (reason, since) = (Value::LongString(reason.into()), Value::LongLongInt(millis(now)));
    let without_reason = with_header(headless(message, now)?, SINCE, since)?;
    let with_reason = with_header(without_reason.clone(), REASON, reason)?;
    let send_with = async |properties: &Properties| {
        publisher.send(|| to_queue(&dead, properties.clone(), message.body.clone())).await
    };
    let send = async || match send_with(&with_reason).await {
        // Its own headers may leave no room for a reason.
        Err(BrokerError::Refused(_)) => send_with(&without_reason).await,
        sent => sent,
    };
    let sent = send().await;
    let Err(BrokerError::Refused(why)) = sent else { return sent };
    tracing::warn!(
        queue = dead,
        why,
        "a message cannot be moved to the dead; declares their queue again"
    );
    match repair().await {
        // The queue is there, and of another kind.
        Ok(()) | Err(BrokerError::Refused(_)) => send().await,
        lost => lost,
    }
}

/// The dead as they are, `limit` at most, the oldest first. Dropped, they are back.
async fn get(channel: &Channel, queue: &str, limit: usize) -> Result<Vec<Delivery>, BrokerError> {
    let mut got = Vec::new();
    while got.len() < limit {
        let Some(delivery) = channel.get(&dead_queue(queue), false).await? else { break };
        got.push(delivery);
    }
    Ok(got)
}

pub(crate) async fn dead(
    channel: &Channel,
    queue: &str,
    limit: usize,
) -> Result<Vec<DeadJob>, BrokerError> {
    let got = get(channel, queue, limit).await?;
    let job = |delivery: &Delivery| {
        let reason = text_of(&delivery.properties, REASON).unwrap_or_default();
        let since = time_of(&delivery.properties, SINCE);
        DeadJob::new(reason, since, read(delivery))
    };
    Ok(got.iter().map(job).collect())
}

fn read(delivery: &Delivery) -> Message {
    message(&delivery.properties, delivery.body.clone(), wall_time())
}

/// Publishes dead messages again, all or those of one job, and then takes them from the dead. If
/// the connection is lost in between, a message is in both queues. The others go back in the end.
pub(crate) async fn replay(
    channel: &Channel,
    queue: &str,
    job: Option<&JobId>,
    publisher: &Publisher,
) -> Result<u64, BrokerError> {
    let begun = wall_time();
    let mut others = Vec::new();
    let mut replayed = 0;
    let (mut unseen, _) = look(channel, &dead_queue(queue)).await?;
    while let Some(delivery) = get(channel, queue, 1).await?.pop() {
        // The messages that were there at the beginning come first, whatever clock their time is
        // of.
        let was_there = unseen > 0;
        unseen = unseen.saturating_sub(1);
        if !was_there && time_of(&delivery.properties, SINCE).is_some_and(|since| since > begun) {
            // It has died again in the meantime.
            break;
        }
        let message = read(&delivery).for_replay();
        if job.is_some_and(|job| message.job() != Some(&job.0)) {
            others.push(delivery);
            continue;
        }
        let properties = properties(&message, wall_time())?;
        publisher.send(|| to_queue(queue, properties.clone(), message.body.clone())).await?;
        // Stale: the connection was lost, and the message is among the dead as well.
        let _ = delivery.ack();
        replayed += 1;
    }
    Ok(replayed)
}
