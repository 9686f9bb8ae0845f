//! Queues in which messages wait for their time, at the broker.
//!
//! This is a scheme of names, and the one page to read when they are seen in RabbitMQ's management.
//!
//! A time of waiting is a binary number of [`UNIT`]s. For each of its bits there is a queue whose
//! messages live for that power of two, and then go on; so all messages of a queue wait equally long,
//! and none is held up by the one before it. The bits are the words of the routing key:
//!
//! ```text
//! 5 units for `mail`: the key is 0.….0.1.0.1.mail
//!
//! exchange pikake.delay.2 ─(bit 2 is 1)─▶ queue mail.delay.2, 4 units ─▶ exchange pikake.delay.1
//! exchange pikake.delay.1 ─(bit 1 is 0)─▶ exchange pikake.delay.0
//! exchange pikake.delay.0 ─(bit 0 is 1)─▶ queue mail.delay.0, 1 unit  ─▶ exchange pikake.due ─▶ mail
//! ```
//!
//! The exchanges are all queues'; each queue has delay queues of its own, so that its delayed messages
//! can be counted and purged. They are made when the first message is delayed.

use std::time::{Duration, SystemTime};

use pikake_amqp::{Channel, Connection, Error, ExchangeOptions, QueueOptions, Table, Value};
use pikake_task::in_parallel;

/// What delays are rounded up to.
const UNIT: Duration = Duration::from_millis(100);

/// How many bits a delay has: 77 days at most.
pub(crate) const LEVELS: usize = 26;

/// The exchange from which all messages go whose time has come.
const DUE: &str = "pikake.due";

fn exchange(level: usize) -> String {
    format!("pikake.delay.{level}")
}

pub(crate) fn delay_queue(queue: &str, level: usize) -> String {
    format!("{queue}.delay.{level}")
}

/// Where a message goes in, and under which key, to be in its queue from that moment on. `None`: the
/// moment is too far ahead.
pub(crate) fn route(queue: &str, length: Duration) -> Option<(String, String)> {
    let units = length.as_nanos().div_ceil(UNIT.as_nanos()).max(1);
    let highest = units.ilog2() as usize;
    if highest >= LEVELS {
        return None;
    }
    let bits = (0..LEVELS).rev().map(|bit| if units >> bit & 1 == 1 { "1." } else { "0." });
    Some((exchange(highest), bits.collect::<String>() + queue))
}

/// The longest delay that there is a way for.
pub(crate) fn longest() -> Duration {
    UNIT * ((1 << LEVELS) - 1)
}

/// A binding key that fits every word but the one of a bit.
fn key(bit: usize, value: &str, rest: &str) -> String {
    format!("{}{value}.{}{rest}", "*.".repeat(LEVELS - 1 - bit), "*.".repeat(bit))
}

/// So many channels make levels side by side: a broker grants a number of them.
const LANES: usize = 8;

/// Makes all that a queue needs to delay, some levels side by side: one after the other, these would be
/// 130 round trips, which is more than the life of some workers.
pub(crate) async fn make(
    connection: &Connection,
    queue: &str,
    is_replicated: bool,
) -> Result<(), Error> {
    let lanes = (0..LANES).map(|lane| {
        let (connection, queue) = (connection.clone(), queue.to_owned());
        async move {
            let channel = connection.channel_unconfirmed().await?;
            for level in (lane..LEVELS).step_by(LANES) {
                make_level(&channel, &queue, level, is_replicated).await?;
            }
            Ok::<_, Error>(())
        }
    });
    for made in in_parallel(lanes).await? {
        match made {
            Ok(made) => made?,
            Err(error) => return Err(Error::Unavailable(error.to_string())),
        }
    }
    Ok(())
}

/// Makes one level, of the same kind as the queue.
async fn make_level(
    channel: &Channel,
    queue: &str,
    level: usize,
    is_replicated: bool,
) -> Result<(), Error> {
    let topic = || ExchangeOptions::of_kind("topic");
    let below = level.checked_sub(1).map_or_else(|| DUE.to_owned(), exchange);
    let name = exchange(level);
    channel.declare_exchange(&below, topic()).await?;
    channel.declare_exchange(&name, topic()).await?;
    channel.bind_exchange(&below, &name, &key(level, "0", "#"), Table::default()).await?;
    if level == 0 {
        let due = "*.".repeat(LEVELS) + queue;
        channel.bind(queue, DUE, &due, Table::default()).await?;
    }
    let millis = i64::try_from((UNIT * (1 << level)).as_millis()).unwrap_or(i64::MAX);
    let text = |text: &str| Value::LongString(text.into());
    let kind = match is_replicated {
        // Without these two, a message may be lost on its way on, should the broker die then.
        true => QueueOptions::quorum()
            .argument("x-dead-letter-strategy", text("at-least-once"))
            .argument("x-overflow", text("reject-publish")),
        false => QueueOptions::default(),
    };
    let options = kind
        .argument("x-message-ttl", Value::LongLongInt(millis))
        .argument("x-dead-letter-exchange", text(&below));
    let waiting = delay_queue(queue, level);
    channel.declare_queue(&waiting, options).await?;
    channel.bind(&waiting, &name, &key(level, "1", queue), Table::default()).await
}

/// How long it is until a moment, if that is ahead.
pub(crate) fn until(moment: Option<SystemTime>, now: SystemTime) -> Option<Duration> {
    moment?.duration_since(now).ok().filter(|length| !length.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_the_sum_of_its_bits() {
        let zeros = |count| "0.".repeat(count);
        let (exchange, key) = route("mail", Duration::from_millis(500)).unwrap();
        assert_eq!(exchange, "pikake.delay.2");
        assert_eq!(key, zeros(LEVELS - 3) + "1.0.1.mail");
        let (exchange, key) = route("a.b", Duration::from_nanos(1)).unwrap();
        assert_eq!((exchange, key), ("pikake.delay.0".to_owned(), zeros(LEVELS - 1) + "1.a.b"));
        assert!(route("mail", longest()).is_some());
        assert!(route("mail", longest() + UNIT).is_none());
    }

    #[test]
    fn a_binding_key_has_as_many_words_as_a_routing_key() {
        let (_, routing) = route("mail", UNIT).unwrap();
        for bit in 0..LEVELS {
            assert_eq!(key(bit, "1", "mail").split('.').count(), routing.split('.').count());
        }
    }
}
