//! The texts of broker errors, and conversions to and from them.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;

use pikake_traps::Interrupted;

use crate::broker::{BrokerError, PublishError, PublishFailure};

impl BrokerError {
    /// Whether the same call may succeed later: the broker or the Redis of the results is lost, or
    /// the broker's disk is full.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) | Self::ResultsLost(_) => true,
            Self::Io(error) => error.kind() == ErrorKind::StorageFull,
            _ => false,
        }
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(why) => write!(f, "the wait for the broker was interrupted: {why}"),
            Self::Lost(why) => write!(f, "the connection to the broker is lost: {why}"),
            Self::Refused(why) => write!(f, "the broker refuses: {why}"),
            // These texts name Redis.
            Self::ResultsLost(why) | Self::ResultsRefused(why) => f.write_str(why),
            Self::Stale => f.write_str(
                "the receipt is of an earlier connection or was used: this consumer no longer has \
                 the message",
            ),
            Self::NoOutcome => f.write_str(
                "the outcome cannot arrive here: it was not expected before the job was sent, it \
                 was forgotten, or its connection was lost",
            ),
            Self::Closed => f.write_str("the connection to the broker has been closed"),
            Self::Io(error) => write!(f, "the broker failed: {error}"),
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

impl From<std::io::Error> for BrokerError {
    fn from(error: std::io::Error) -> Self {
        match pikake_net::interruption(&error) {
            Some(why) => Self::Interrupted(why.clone()),
            None => Self::Io(error),
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message was not confirmed: {}", self.cause)?;
        match self.is_uncertain {
            true => f.write_str(" (it may have arrived nevertheless)"),
            false => Ok(()),
        }
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

impl fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked(length) => write!(
                f,
                "the broker is short of memory or disk, and took no messages for {length:?}; \
                 clear its alarm and send again"
            ),
            Self::Broker(error) => error.fmt(f),
        }
    }
}

impl Error for PublishFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Blocked(_) => None,
            Self::Broker(error) => Some(error),
        }
    }
}
