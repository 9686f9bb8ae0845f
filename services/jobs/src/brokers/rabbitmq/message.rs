//! Messages as AMQP's properties, headers and body.
//!
//! No connection is needed for it. Headers are read and written by
//! `value.rs`; the body is never touched.

use std::borrow::Borrow;
use std::time::{Duration, SystemTime};

use pikake_amqp::{Error, Properties, Table, Value, persistent, short};
use serde_json::Map;

use crate::broker::outcomes::job_with_outcome;
use crate::brokers::rabbitmq::value::{json, table};
use crate::message::Message;
use crate::wire::request::{DELIVERIES, UNIQUE};

/// When the message is worth nothing any more, in milliseconds since 1970. AMQP's `expiration` is a
/// length, of which a reader cannot know when it began; and in a delay queue it would be taken for
/// one of the waiting.
const EXPIRES: &str = "pikake_expires";

/// RabbitMQ refuses a length of decades, so it is not told of what expires so late: whether it has,
/// a worker sees.
const LONGEST_EXPIRATION: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Why a message is among the dead,
pub(crate) const REASON: &str = "pikake_reason";

/// and since when, in milliseconds since 1970.
pub(crate) const SINCE: &str = "pikake_since";

/// How often a quorum queue has delivered the message before.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// What brokers write into the headers on a message's way, or act upon: it is of that way, not of
/// the message, and would be wrong when it is sent again. Other headers in `x-` are the sender's.
const BROKERS_OWN: [&str; 9] = [
    "x-death",
    DELIVERY_COUNT,
    "x-acquired-count",
    "x-stream-offset",
    "x-received-from",
    "x-delay",
    // Copies to other queues, which there would be again.
    "CC",
    "BCC",
    "x-shovelled",
];

/// The same, of those that begin so.
const BROKERS_PREFIXES: [&str; 4] = ["x-first-death-", "x-last-death-", "x-shovelled-", "x-opt-"];

fn is_brokers_own(name: &str) -> bool {
    BROKERS_OWN.contains(&name) || BROKERS_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The properties of a persistent message that waits in its queue. RabbitMQ drops expired messages
/// and notifies nobody, so only a message whose end nobody learns of has an `expiration`. A worker
/// revokes the job of any other expired message.
pub(crate) fn properties(message: &Message, now: SystemTime) -> Result<Properties, Error> {
    let mut properties = headless(message, now)?;
    if let Some(expires) = message.expires.filter(|_| !is_end_wanted(message)) {
        let left = expires.duration_since(now).unwrap_or_default();
        if left <= LONGEST_EXPIRATION {
            properties = properties.with_expiration(short(&left.as_millis().to_string())?);
        }
    }
    Ok(properties)
}

/// Whether the end of the message's job matters to anybody: a waiter, here or in Redis, or the
/// senders of unique jobs.
fn is_end_wanted(message: &Message) -> bool {
    message.reply_to.as_deref().is_some_and(|to| !to.is_empty())
        || job_with_outcome(message).is_some()
        || message.headers.contains_key(UNIQUE)
}

/// How long a message waits in a queue at most.
pub(crate) fn expiration(length: Duration) -> String {
    length.min(LONGEST_EXPIRATION).as_millis().to_string()
}

/// The same of one that waits for its time first.
pub(crate) fn headless(message: &Message, now: SystemTime) -> Result<Properties, Error> {
    let mut headers = table(&message.headers)?;
    if let Some(expires) = message.expires {
        headers.insert(short(EXPIRES)?, Value::LongLongInt(millis(expires)));
    }
    let mut properties = persistent()
        .with_headers(headers)
        .with_priority(message.priority)
        .with_timestamp(u64::try_from(millis(now) / 1_000).unwrap_or_default());
    if let Some(text) = &message.content_type {
        properties = properties.with_content_type(short(text)?);
    }
    if let Some(text) = &message.content_encoding {
        properties = properties.with_content_encoding(short(text)?);
    }
    if let Some(text) = &message.correlation_id {
        properties = properties.with_correlation_id(short(text)?);
    }
    if let Some(text) = &message.reply_to {
        properties = properties.with_reply_to(short(text)?);
    }
    Ok(properties)
}

/// Adds a header.
pub(crate) fn with_header(
    properties: Properties,
    name: &str,
    value: Value,
) -> Result<Properties, Error> {
    let mut headers = properties.headers().clone().unwrap_or_default();
    headers.insert(short(name)?, value);
    Ok(properties.with_headers(headers))
}

/// A message as it came in.
pub(crate) fn message(properties: &Properties, body: Vec<u8>, now: SystemTime) -> Message {
    let mut headers = Map::new();
    let mut expires = None;
    for (name, value) in properties.headers().iter().flat_map(Table::inner) {
        match name.as_str() {
            EXPIRES => expires = as_time(value),
            REASON | SINCE => {}
            name if is_brokers_own(name) => {}
            name => {
                headers.insert(name.to_owned(), json(value));
            }
        }
    }
    if expires.is_none() {
        let length =
            properties.expiration().as_ref().and_then(|length| length.as_str().parse().ok());
        expires = length.and_then(|length| now.checked_add(Duration::from_millis(length)));
    }
    Message {
        content_type: text(properties.content_type()),
        content_encoding: text(properties.content_encoding()),
        priority: properties.priority().unwrap_or_default(),
        correlation_id: text(properties.correlation_id()),
        reply_to: text(properties.reply_to()),
        expires,
        headers,
        body,
    }
}

/// How often a message was delivered before, and whether the broker or a header counts the latest
/// time. A classic queue tells only that there was one.
pub(crate) fn attempt(properties: &Properties, redelivered: bool) -> (u32, bool) {
    let count = |name| {
        let count = json(properties.headers().as_ref()?.inner().get(name)?).as_u64()?;
        Some(u32::try_from(count).unwrap_or(u32::MAX))
    };
    let (by_broker, by_worker) = (count(DELIVERY_COUNT), count(DELIVERIES).unwrap_or(0));
    let latest = by_broker.unwrap_or(redelivered.into());
    (by_worker.saturating_add(latest), by_broker.is_some() || !redelivered)
}

/// A header that is a text.
pub(crate) fn text_of(properties: &Properties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        Value::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// A header that is a time.
pub(crate) fn time_of(properties: &Properties, name: &str) -> Option<SystemTime> {
    as_time(properties.headers().as_ref()?.inner().get(name)?)
}

fn text(short: &Option<impl Borrow<str>>) -> Option<String> {
    short.as_ref().map(|text| text.borrow().to_owned())
}

fn as_time(value: &Value) -> Option<SystemTime> {
    let millis = json(value).as_u64()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json as made;

    #[test]
    fn headers_of_the_sender_in_x_are_kept() {
        let now = SystemTime::UNIX_EPOCH;
        let mut sent = Message::default();
        for name in ["x-request-id", "x-death", "x-first-death-queue", "CC", "x-delivery-count"] {
            sent.headers.insert(name.to_owned(), made!([name]));
        }
        let came = message(&properties(&sent, now).unwrap(), Vec::new(), now);
        assert_eq!(came.headers.keys().collect::<Vec<_>>(), ["x-request-id"]);
    }

    /// RabbitMQ would drop the others without a word.
    #[test]
    fn only_ignored_messages_expire_at_the_broker() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let expiration = |change: fn(&mut Message)| {
            let mut sent = Message {
                correlation_id: Some("17".into()),
                expires: Some(now + Duration::from_millis(1_500)),
                ..Message::default()
            };
            sent.headers.insert("ignore_result".into(), true.into());
            change(&mut sent);
            let properties = properties(&sent, now).unwrap();
            properties.expiration().as_ref().map(|length| length.as_str().to_owned())
        };
        assert_eq!(expiration(|_| {}), Some("1500".to_owned()));
        assert_eq!(expiration(|sent| sent.reply_to = Some("replies".into())), None);
        assert_eq!(expiration(|sent| drop(sent.headers.remove("ignore_result"))), None);
        assert_eq!(expiration(|sent| drop(sent.headers.insert(UNIQUE.into(), made!({})))), None);
    }

    #[test]
    fn a_message_comes_back_as_it_was() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut sent = Message {
            correlation_id: Some("17".into()),
            expires: Some(now + Duration::from_millis(1_500)),
            priority: 3,
            body: vec![0, 255],
            ..Message::default()
        };
        sent.headers.insert("retries".into(), made!(0));
        sent.headers.insert("nested".into(), made!({"list": [1, i64::MAX, 0.5, null, "größe"]}));
        let properties = properties(&sent, now).unwrap();
        let died = with_header(properties, "x-death", Value::Void).unwrap();
        assert_eq!(message(&died, sent.body.clone(), now), sent);
    }
}
