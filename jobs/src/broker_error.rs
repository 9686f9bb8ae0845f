//! What a broker's errors say.
//!
//! Apart from the contract, which has what they are.

use std::error::Error;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

use crate::broker::{BrokerError, PublishError, PublishFailure};

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(why) => write!(f, "waiting for the broker was cut short ({why})"),
            Self::Lost(why) => write!(f, "the broker was lost and is being looked for: {why}"),
            Self::Refused(why) => write!(f, "the broker refuses: {why}"),
            Self::Stale => f.write_str(
                "the receipt is of an earlier connection or consumer, or was used already: the \
                 message is delivered again, or done",
            ),
            Self::NoOutcome => f.write_str(
                "the outcome of this job cannot be known here: it was not asked for before the job \
                 was sent, or was forgotten",
            ),
            Self::Closed => f.write_str("the connection to the broker has been closed"),
            Self::Io(error) => write!(f, "the broker's storage or connection failed: {error}"),
        }
    }
}

impl Error for BrokerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted(why) => Some(why),
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Interrupted> for BrokerError {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

/// An interruption is never of the kind `Interrupted`, on which others try again.
impl From<BrokerError> for io::Error {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Interrupted(why) => why.into(),
            BrokerError::Io(error) => error,
            other => Self::other(other),
        }
    }
}

impl fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked(length) => {
                write!(f, "the broker is short of memory or disk and took nothing for {length:?}")
            }
            Self::Broker(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.is_uncertain {
            true => "it is not known whether the broker has the message",
            false => "the message was not published",
        };
        write!(f, "{what}: {}", self.cause)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            PublishFailure::Blocked(_) => None,
            PublishFailure::Broker(error) => Some(error),
        }
    }
}

impl PublishError {
    /// For brokers.
    pub fn new(
        message: crate::message::Message,
        is_uncertain: bool,
        cause: impl Into<PublishFailure>,
    ) -> Self {
        Self { message: Box::new(message), is_uncertain, cause: cause.into() }
    }
}

impl From<BrokerError> for PublishFailure {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}
