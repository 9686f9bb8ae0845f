//! The ids of revoked jobs that a worker keeps for messages still to come: bounded in number and
//! age.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

/// How many ids are kept; the oldest are dropped first. Celery's number.
const LIMIT: usize = 50_000;
/// The longest id that is kept, in bytes: AMQP's brokers take no longer ones.
const LONGEST_ID: usize = 255;
/// How long an id is kept. Longer than Celery's three hours, since delayed messages wait at the
/// broker.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The ids of the jobs that were revoked last.
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    since: BTreeMap<String, SystemTime>,
    /// The ids in the order of their age.
    order: VecDeque<String>,
}

impl Revoked {
    /// Adds an id; `false` if it was known, or no job can have it.
    pub(crate) fn insert(&mut self, id: String, since: SystemTime, now: SystemTime) -> bool {
        self.forget_old(now);
        let is_old = now.duration_since(since).is_ok_and(|age| age > LIFE);
        if is_old || id.len() > LONGEST_ID || self.since.contains_key(&id) {
            return false;
        }
        self.since.insert(id.clone(), since);
        self.order.push_back(id);
        if self.order.len() > LIMIT {
            self.forget_oldest();
        }
        true
    }

    fn forget_old(&mut self, now: SystemTime) {
        let is_old = |since: &SystemTime| now.duration_since(*since).is_ok_and(|age| age > LIFE);
        while self.order.front().and_then(|id| self.since.get(id)).is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            self.since.remove(&oldest);
        }
    }

    /// Whether the job was revoked. The id is kept, since its message may be delivered again.
    pub(crate) fn contains(&self, id: &str) -> bool {
        !self.since.is_empty() && self.since.contains_key(id)
    }

    /// The ids, oldest first, and since when they are revoked.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, SystemTime)> {
        self.order.iter().filter_map(|id| Some((id.as_str(), *self.since.get(id)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_age_are_bounded() {
        let mut revoked = Revoked::default();
        let begin = SystemTime::UNIX_EPOCH + LIFE;
        for number in 0..LIMIT + 2 {
            assert!(revoked.insert(number.to_string(), begin, begin));
        }
        assert!(!revoked.insert("7".to_owned(), begin, begin));
        assert!(!revoked.insert("x".repeat(LONGEST_ID + 1), begin, begin));
        assert_eq!(revoked.iter().count(), LIMIT);
        assert!(!revoked.contains("1") && revoked.contains("2"));
        let later = begin + LIFE + Duration::from_secs(1);
        assert!(!revoked.insert("old".to_owned(), begin, later));
        assert!(revoked.insert("new".to_owned(), later, later));
        assert_eq!(revoked.iter().map(|(id, _)| id).collect::<Vec<_>>(), ["new"]);
    }
}
