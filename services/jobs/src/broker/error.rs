//! How errors of brokers read.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;

use pikake_traps::Interrupted;

use crate::broker::{BrokerError, PublishError, PublishFailure};

impl BrokerError {
    /// Whether the same call may well succeed in a while: the broker is lost, or its disk is full.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Io(error) => error.kind() == ErrorKind::StorageFull,
            _ => false,
        }
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(why) => write!(f, "the broker was being waited for: {why}"),
            Self::Lost(why) => write!(f, "the broker is lost, and being looked for: {why}"),
            Self::Refused(why) => write!(f, "the broker refuses: {why}"),
            Self::Stale => f.write_str(
                "the receipt is of an earlier connection or was used: the message is somebody \
                 else's by now",
            ),
            Self::NoOutcome => f.write_str(
                "the outcome cannot be known here: nobody asked for it before the job was sent, \
                 or it was forgotten",
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
            true => f.write_str(" (it may have arrived all the same)"),
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
                "the broker is short of memory or disk, and took no messages for {length:?}; see \
                 to its alarm and send again"
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
