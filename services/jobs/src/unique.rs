//! Unique jobs: while one has the lock of a key, no other job is sent with that key.
//!
//! The lock is kept by the broker, and the message says which one its job has. A worker releases
//! the lock when the job begins or ends; every lock ends by itself after its length.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::broker::{BrokerError, LocalFuture, PublishError};
use crate::message::{JobId, Message};
use crate::wire::Parameter;
use crate::wire::request::UNIQUE;

/// For how long a job is the only one of its key. Set by `#[pikake::job(unique_for = "10m")]` or
/// [`Call::unique`](crate::Call::unique).
///
/// # Examples
///
/// ```
/// use pikake::jobs::{Unique, UntilWhen};
/// use std::time::Duration;
///
/// let waiting = Unique::new(Duration::from_secs(600)).until(UntilWhen::Begun);
/// assert_eq!(waiting.until, UntilWhen::Begun);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unique {
    /// How long the lock lasts at most, from the sending on. It should be longer than the job waits
    /// and runs.
    pub length: Duration,
    /// When the lock is released before that.
    pub until: UntilWhen,
    /// The argument that is the key; `None`: all arguments together. A call with a key of its own
    /// ignores this.
    pub by: Option<Parameter>,
}

impl Unique {
    /// Unique until the job has ended, and at most for this length.
    pub const fn new(length: Duration) -> Self {
        Self { length, until: UntilWhen::Ended, by: None }
    }

    /// Sets when the lock is released.
    pub const fn until(mut self, until: UntilWhen) -> Self {
        self.until = until;
        self
    }

    /// Sets the argument that is the key.
    pub const fn by(mut self, by: Parameter) -> Self {
        self.by = Some(by);
        self
    }

    /// The key of a job with these arguments.
    pub(crate) fn key(&self, args: &str, kwargs: &str) -> String {
        if let Some(by) = self.by {
            return by.argument(args, kwargs);
        }
        // Senders write spaces as they like.
        let plain = |text| serde_json::from_str::<Value>(text).unwrap_or_default().to_string();
        match plain(kwargs) {
            none if none == "{}" => plain(args),
            kwargs => format!("{}{kwargs}", plain(args)),
        }
    }
}

/// When the lock of a unique job is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum UntilWhen {
    /// When the job begins: another one may wait while it runs. A retry has no lock.
    Begun,
    /// When the job has ended. A retry keeps the lock.
    Ended,
    /// When its length is over, whatever becomes of the job.
    Elapsed,
}

/// The lock that a unique job has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UniqueLock {
    /// The key: the job's name, `:` and the call's key.
    pub key: String,
    /// The id of the job.
    pub job: JobId,
    /// How long the lock lasts at most.
    pub length: Duration,
    /// When the lock ends at the latest.
    pub ends: SystemTime,
    /// When the lock is released.
    pub until: UntilWhen,
}

/// What became of the message of a unique job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UniqueSent {
    /// The message was published, and its job has the lock.
    Sent,
    /// Another job has the lock, and nothing was published. `None` if the broker does not know
    /// which job.
    Held(Option<JobId>),
}

/// The answer to the publishing of a unique job.
pub(crate) type Published<'a> = LocalFuture<'a, Result<UniqueSent, PublishError>>;

/// The answer of a broker without locks.
pub(crate) fn unknown<'a>(message: Message) -> Published<'a> {
    let why = "this broker has no unique jobs: send the job without a lock".to_owned();
    let cause = crate::broker::PublishFailure::Broker(BrokerError::Refused(why));
    Box::pin(async { Err(PublishError::new(message, false, cause)) })
}

/// The header of a unique job.
#[derive(Serialize, Deserialize)]
struct Written {
    key: String,
    until: UntilWhen,
    /// Milliseconds.
    length: u64,
    /// Milliseconds since 1970.
    ends: u64,
}

impl UniqueLock {
    /// A lock that begins now.
    pub fn new(key: String, job: JobId, unique: Unique, now: SystemTime) -> Self {
        // A longer one than a year is no lock, but a mistake.
        let length = unique.length.min(LONGEST);
        let ends = now + length;
        Self { key, job, length, ends, until: unique.until }
    }

    /// The lock that a message says its job has.
    pub fn of(message: &Message) -> Option<Self> {
        let written = message.headers.get(UNIQUE)?;
        let Written { key, until, length, ends } = Written::deserialize(written).ok()?;
        let ends = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ends))?;
        let job = JobId(message.job()?.to_owned());
        Some(Self { key, job, length: Duration::from_millis(length), ends, until })
    }

    /// Whether the end of the job releases the lock, after a begin that has released it or not.
    pub(crate) fn ends_with_job(&self, is_released: bool) -> bool {
        match self.until {
            UntilWhen::Begun => !is_released,
            UntilWhen::Ended => true,
            UntilWhen::Elapsed => false,
        }
    }

    /// The header of the job's message.
    pub(crate) fn header(&self) -> Value {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let ends = self.ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (length, ends) = (millis(self.length), millis(ends));
        let written = Written { key: self.key.clone(), until: self.until, length, ends };
        serde_json::to_value(written).unwrap_or_default()
    }
}

/// The longest lock.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_lock() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let unique = Unique::new(Duration::from_millis(1_500)).until(UntilWhen::Begun);
        let lock = UniqueLock::new("mail:7".into(), JobId("a".into()), unique, begin);
        let mut message = Message { correlation_id: Some("a".into()), ..Message::default() };
        assert_eq!(UniqueLock::of(&message), None);
        message.headers.insert(UNIQUE.to_owned(), lock.header());
        assert_eq!(UniqueLock::of(&message), Some(lock));
        message.headers.insert(UNIQUE.to_owned(), "odd".into());
        assert_eq!(UniqueLock::of(&message), None);
    }

    #[test]
    fn equal_arguments_are_one_key() {
        let all = Unique::new(Duration::ZERO);
        assert_eq!(all.key("[1, \"x\"]", "{}"), all.key("[1,\"x\"]", "{ }"));
        assert_ne!(all.key("[1]", "{}"), all.key("[1]", "{\"a\":1}"));
        let by = all.by(Parameter::new(1, "user"));
        assert_eq!(by.key("[1, 7]", "{}"), by.key("[2]", "{\"user\":7}"));
    }
}
