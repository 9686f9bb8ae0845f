//! The ids and stamps of revoked jobs that a worker keeps for messages still to come: bounded in
//! number and age.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::message::Message;

/// How many ids are kept, and how many stamps; the oldest are dropped first. Celery's number.
const LIMIT: usize = 50_000;
/// The longest id or stamp that is kept, in bytes: AMQP's brokers take no longer ids.
const LONGEST: usize = 255;
/// How long an id or a stamp is kept. Longer than Celery's three hours, since delayed messages wait
/// at the broker.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The jobs that were revoked last, by their ids or by stamps that Celery's canvas has put into
/// their headers.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    ids: Texts,
    stamps: Texts,
}

impl Revoked {
    /// Adds an id; `false` if it was known, or no job can have it.
    pub(crate) fn insert(&mut self, id: String, since: SystemTime, now: SystemTime) -> bool {
        self.ids.insert(id, since, now)
    }

    /// Adds a value of a stamped header; `false` if it was known, or is too long.
    pub(crate) fn insert_stamp(&mut self, name: &str, value: &Value, now: SystemTime) -> bool {
        self.stamps.insert(stamp(name, value), now, now)
    }

    /// Whether the job of an id was revoked. The id is kept, since the message may be delivered
    /// again.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Whether the job of a message was revoked, by its id or by a stamp.
    pub(crate) fn revokes(&self, message: &Message) -> bool {
        message.job().is_some_and(|id| self.contains(id))
            || (!self.stamps.is_empty()
                && stamps_of(message)
                    .any(|(name, value)| self.stamps.contains(&stamp(name, value))))
    }

    /// The ids, oldest first, and since when they are revoked.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, SystemTime)> {
        self.ids.iter()
    }
}

fn stamp(name: &str, value: &Value) -> String {
    format!("{name}={value}")
}

/// The stamped headers of a message: a name, and one of its values.
pub(crate) fn stamps_of(message: &Message) -> impl Iterator<Item = (&str, &Value)> {
    let names = message.headers.get("stamped_headers").and_then(Value::as_array);
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    let values = |name| message.headers.get("stamps").and_then(|stamps| stamps.get(name));
    let stamps = names.filter_map(move |name| Some((name, values(name)?)));
    stamps.flat_map(|(name, value)| each(value).iter().map(move |value| (name, value)))
}

/// The elements of a list, or a value that is none.
pub(crate) fn each(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        one => std::slice::from_ref(one),
    }
}

/// Texts with the moment of each.
#[derive(Debug, Default)]
struct Texts {
    since: BTreeMap<String, SystemTime>,
    /// The texts in the order of their age.
    order: VecDeque<String>,
}

impl Texts {
    fn insert(&mut self, text: String, since: SystemTime, now: SystemTime) -> bool {
        self.forget_old(now);
        let is_old = now.duration_since(since).is_ok_and(|age| age > LIFE);
        if is_old || text.len() > LONGEST || self.since.contains_key(&text) {
            return false;
        }
        self.since.insert(text.clone(), since);
        self.order.push_back(text);
        if self.order.len() > LIMIT {
            self.forget_oldest();
        }
        true
    }

    fn forget_old(&mut self, now: SystemTime) {
        let is_old = |since: &SystemTime| now.duration_since(*since).is_ok_and(|age| age > LIFE);
        while self.order.front().and_then(|text| self.since.get(text)).is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            self.since.remove(&oldest);
        }
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn contains(&self, text: &str) -> bool {
        !self.is_empty() && self.since.contains_key(text)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, SystemTime)> {
        self.order.iter().filter_map(|text| Some((text.as_str(), *self.since.get(text)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn number_and_age_are_bounded() {
        let mut revoked = Revoked::default();
        let begin = SystemTime::UNIX_EPOCH + LIFE;
        for number in 0..LIMIT + 2 {
            assert!(revoked.insert(number.to_string(), begin, begin));
        }
        assert!(!revoked.insert("7".to_owned(), begin, begin));
        assert!(!revoked.insert("x".repeat(LONGEST + 1), begin, begin));
        assert_eq!(revoked.iter().count(), LIMIT);
        assert!(!revoked.contains("1") && revoked.contains("2"));
        let later = begin + LIFE + Duration::from_secs(1);
        assert!(!revoked.insert("old".to_owned(), begin, later));
        assert!(revoked.insert("new".to_owned(), later, later));
        assert_eq!(revoked.iter().map(|(id, _)| id).collect::<Vec<_>>(), ["new"]);
    }

    #[test]
    fn stamps_revoke_messages() {
        let mut revoked = Revoked::default();
        let message = |stamped_headers: Value, stamps: Value| {
            let mut message = Message::default();
            message.headers.insert("stamped_headers".to_owned(), stamped_headers);
            message.headers.insert("stamps".to_owned(), stamps);
            message
        };
        let stamped = message(json!(["one", "two"]), json!({"one": 1, "two": ["2", 3]}));
        assert!(!revoked.revokes(&stamped));
        for (name, value, revokes) in [
            ("one", json!(1), true),
            ("one", json!("1"), false),
            ("two", json!("2"), true),
            ("two", json!(3), true),
            ("two", json!(["2", 3]), false),
            ("three", Value::Null, false),
        ] {
            let mut revoked = Revoked::default();
            assert!(revoked.insert_stamp(name, &value, SystemTime::UNIX_EPOCH));
            assert_eq!(revoked.revokes(&stamped), revokes, "{name} {value}");
            assert_eq!(revoked.iter().count(), 0);
        }
        revoked.insert_stamp("one", &json!(1), SystemTime::UNIX_EPOCH);
        // A header that is not said to be a stamp is none.
        assert!(!revoked.revokes(&message(json!([]), json!({"one": 1}))));
        assert!(!revoked.revokes(&message(json!({"one": 1}), json!("one"))));
    }
}
