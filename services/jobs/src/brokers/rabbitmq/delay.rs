//! Queues in which messages wait for their time, at the broker: those of Celery's native delayed
//! delivery, which all applications and both libraries share, and nine for parts of a second.
//!
//! A delay is a binary number of seconds. For each of its bits there is a queue whose messages live
//! for that power of two, and then go on; so all messages of a queue wait equally long, and none is
//! held up by the one before it. The bits are the first words of the routing key, and the name of
//! the queue to come to is the rest:
//!
//! ```text
//! 5.3 s for `mail`: the key is 0.….0.1.0.1.mail
//!
//! exchange pikake_delayed_300ms ─▶ queue pikake_delayed_300ms, 0.3 s ─▶ exchange celery_delayed_27
//! exchange celery_delayed_27 ─(bit 27 is 0)─▶ … ─▶ exchange celery_delayed_2
//! exchange celery_delayed_2 ─(bit 2 is 1)─▶ queue celery_delayed_2, 4 s ─▶ exchange celery_delayed_1
//! exchange celery_delayed_1 ─(bit 1 is 0)─▶ exchange celery_delayed_0
//! exchange celery_delayed_0 ─(bit 0 is 1)─▶ queue celery_delayed_0, 1 s ─▶ exchange celery_delayed_delivery ─▶ mail
//! ```

use std::future::Future;
use std::time::{Duration, SystemTime};

use pikake_amqp::{Channel, Connection, Error, ExchangeOptions, QueueOptions, Table, Value};
use pikake_task::in_parallel;

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::error::PRECONDITION_FAILED;
use crate::brokers::rabbitmq::queues::{is_not_found, look};

/// What delays are rounded up to.
const UNIT: Duration = Duration::from_millis(100);

/// So many units are a second.
const TENTHS: u128 = 10;

/// How many bits the seconds of a delay have: 8.5 years at most.
const LEVELS: usize = 28;

/// The exchange from which all messages go whose time has come.
const DUE: &str = "celery_delayed_delivery";

/// An exchange, and its queue.
fn level_name(level: usize) -> String {
    format!("celery_delayed_{level}")
}

/// An exchange, and its queue.
fn tenths_name(tenths: u128) -> String {
    format!("pikake_delayed_{tenths}00ms")
}

/// Where a message goes in, and under which key, to be in its queue from that moment on. `None`:
/// the moment is too far ahead.
pub(crate) fn route(queue: &str, length: Duration) -> Option<(String, String)> {
    let units = length.as_nanos().div_ceil(UNIT.as_nanos()).max(1);
    let (seconds, tenths) = (units / TENTHS, units % TENTHS);
    if seconds >> LEVELS > 0 {
        return None;
    }
    let exchange = match tenths {
        0 => level_name(seconds.ilog2() as usize),
        tenths => tenths_name(tenths),
    };
    let bits = (0..LEVELS).rev().map(|bit| if seconds >> bit & 1 == 1 { "1." } else { "0." });
    Some((exchange, bits.collect::<String>() + queue))
}

/// The queue to which a waiting message is to come.
fn destination(key: &str) -> Option<&str> {
    key.splitn(LEVELS + 1, '.').nth(LEVELS)
}

/// The longest delay that there is a way for.
pub(crate) fn longest() -> Duration {
    Duration::from_secs(1 << LEVELS) - UNIT
}

/// A binding key that fits every word but the one of a bit.
fn key(bit: usize, value: &str) -> String {
    format!("{}{value}.#", "*.".repeat(LEVELS - 1 - bit))
}

/// A delay queue, and the exchange of its name.
struct Level {
    name: String,
    kind: &'static str,
    length: Duration,
    /// The exchange to which its messages go on.
    next: String,
    /// The key with which messages come to it.
    key: String,
}

/// The delay queues, in the order in which messages go through them.
fn levels() -> impl Iterator<Item = Level> {
    let tenths = (1..TENTHS).map(|tenths| Level {
        name: tenths_name(tenths),
        kind: "fanout",
        length: UNIT * tenths as u32,
        next: level_name(LEVELS - 1),
        key: String::new(),
    });
    let seconds = (0..LEVELS).rev().map(|level| Level {
        name: level_name(level),
        kind: "topic",
        length: Duration::from_secs(1 << level),
        next: level.checked_sub(1).map_or_else(|| DUE.to_owned(), level_name),
        key: key(level, "1"),
    });
    tenths.chain(seconds)
}

/// So many channels declare side by side: a broker grants a number of them.
const LANES: usize = 8;

/// Declares all that delays need, as Celery does, some queues side by side: one after the other,
/// these would be 150 round trips, which is more than the life of some workers.
pub(crate) async fn make(connection: &Connection) -> Result<(), Error> {
    let first = (0..LANES).map(|lane| {
        let connection = connection.clone();
        async move {
            let mut channel = connection.channel_unconfirmed().await?;
            for level in levels().skip(lane).step_by(LANES) {
                channel = make_level(&connection, channel, level).await?;
            }
            Ok((lane, channel))
        }
    });
    let then = in_lanes(first).await?.into_iter().map(|(lane, channel)| async move {
        for level in (0..LEVELS).skip(lane).step_by(LANES) {
            let below = level.checked_sub(1).map_or_else(|| DUE.to_owned(), level_name);
            if level == 0 {
                channel.declare_exchange(DUE, ExchangeOptions::of_kind("topic")).await?;
            }
            let (from, key) = (level_name(level), key(level, "0"));
            channel.bind_exchange(&below, &from, &key, Table::default()).await?;
        }
        Ok(())
    });
    in_lanes(then).await.map(drop)
}

/// Runs futures in parallel.
async fn in_lanes<T: 'static>(
    lanes: impl Iterator<Item: Future<Output = Result<T, Error>> + 'static>,
) -> Result<Vec<T>, Error> {
    let made = in_parallel(lanes).await?.into_iter();
    made.map(|made| made.unwrap_or_else(|error| Err(Error::Unavailable(error.to_string()))))
        .collect()
}

/// Declares one queue with its exchange. A queue of Celery's may be a classic one, which costs the
/// channel; the next one is returned.
async fn make_level(
    connection: &Connection,
    mut channel: Channel,
    level: Level,
) -> Result<Channel, Error> {
    let Level { name, kind, length, next, key } = level;
    channel.declare_exchange(&name, ExchangeOptions::of_kind(kind)).await?;
    let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
    let text = |text: &str| Value::LongString(text.into());
    let options = QueueOptions::quorum()
        // Without the strategy, a message may be lost on its way on, should the broker die then.
        .argument("x-dead-letter-strategy", text("at-least-once"))
        .argument("x-overflow", text("reject-publish"))
        .argument("x-message-ttl", Value::LongLongInt(millis))
        .argument("x-dead-letter-exchange", text(&next));
    match channel.declare_queue(&name, options).await {
        Ok(_) => {}
        Err(error) if error.reason().is_some_and(|why| why.code == PRECONDITION_FAILED) => {
            channel = connection.channel_unconfirmed().await?;
        }
        Err(error) => return Err(error),
    }
    channel.bind(&name, &name, &key, Table::default()).await?;
    Ok(channel)
}

/// Whether all has been declared before, by Celery or pikake. If not, the channel is closed.
pub(crate) async fn is_made(channel: &Channel) -> Result<bool, Error> {
    let passive = ExchangeOptions { passive: true, ..ExchangeOptions::of_kind("topic") };
    match channel.declare_exchange(DUE, passive).await {
        Ok(()) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets the messages of a queue come to it when their time has come.
pub(crate) async fn bind(channel: &Channel, queue: &str) -> Result<(), Error> {
    channel.bind(queue, DUE, &("*.".repeat(LEVELS) + queue), Table::default()).await
}

/// How many messages of all queues wait for their time.
pub(crate) async fn count(
    channel: impl AsyncFn() -> Result<Channel, BrokerError>,
) -> Result<u64, BrokerError> {
    let (mut delayed, mut open) = (0, channel().await?);
    for Level { name, .. } in levels() {
        match look(&open, &name).await {
            Ok((messages, _)) => delayed += messages,
            // Celery makes no queues for tenths.
            Err(error) if is_not_found(&error) && name == level_name(LEVELS - 1) => return Ok(0),
            Err(error) if is_not_found(&error) => open = channel().await?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(delayed)
}

/// Removes the messages that wait for one queue, and returns how many. Those of others are held
/// meanwhile, and may come as much later.
pub(crate) async fn purge(
    channel: impl AsyncFn() -> Result<Channel, BrokerError>,
    queue: &str,
) -> Result<u64, BrokerError> {
    let mut purged = 0;
    for Level { name, .. } in levels() {
        let channel = channel().await?;
        let mut others = Vec::new();
        loop {
            match channel.get(&name, false).await {
                Ok(None) => break,
                Ok(Some(message)) if destination(&message.routing_key) == Some(queue) => {
                    // Stale: the connection was lost, and the message is there again.
                    purged += u64::from(message.ack().is_ok());
                }
                Ok(Some(message)) => others.push(message.receipt),
                Err(error) if is_not_found(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(purged)
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
        let (exchange, key) = route("mail", Duration::from_secs(5)).unwrap();
        assert_eq!(exchange, "celery_delayed_2");
        assert_eq!(key, zeros(LEVELS - 3) + "1.0.1.mail");
        let (exchange, key) = route("mail", Duration::from_millis(5_201)).unwrap();
        assert_eq!(exchange, "pikake_delayed_300ms");
        assert_eq!(key, zeros(LEVELS - 3) + "1.0.1.mail");
        let (exchange, key) = route("a.b", Duration::from_nanos(1)).unwrap();
        assert_eq!((exchange.as_str(), key), ("pikake_delayed_100ms", zeros(LEVELS) + "a.b"));
        assert!(route("mail", longest()).is_some());
        assert!(route("mail", longest() + UNIT).is_none());
    }

    #[test]
    fn the_destination_is_behind_the_bits() {
        for queue in ["mail", "a.b", "0.1"] {
            let (_, key) = route(queue, UNIT).unwrap();
            assert_eq!(destination(&key), Some(queue));
        }
        assert_eq!(destination("1.0.mail"), None);
    }

    #[test]
    fn a_binding_key_fits_one_bit() {
        assert_eq!(key(LEVELS - 1, "1"), "1.#");
        assert_eq!(key(0, "0"), "*.".repeat(LEVELS - 1) + "0.#");
    }
}
