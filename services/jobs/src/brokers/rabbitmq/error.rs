//! What errors of the AMQP client mean to the user of a broker.

use std::io;
use std::time::Duration;

use pikake_amqp::{Connection, Error, PublishError as Unpublished, State};

use crate::broker::{BrokerError, PublishFailure};

/// AMQP's number for something that is not there.
pub(crate) const NOT_FOUND: u16 = 404;
/// AMQP's number for something that is there and different.
pub(crate) const PRECONDITION_FAILED: u16 = 406;

impl From<Error> for BrokerError {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted(why) => Self::Interrupted(why),
            Error::Closed => Self::Closed,
            // A handshake of TLS has failed: the broker is there.
            Error::Connect { ref source, .. } if source.kind() == io::ErrorKind::InvalidData => {
                Self::Refused(error.to_string())
            }
            Error::Connect { .. }
            | Error::ConnectionLost(_)
            | Error::Unavailable(_)
            | Error::ConsumerCancelled => Self::Lost(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// A message that was not sent, or not confirmed.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// Whether it may have arrived all the same.
    pub(crate) is_uncertain: bool,
    pub(crate) cause: PublishFailure,
    /// The error that its channel or its connection was closed with while it was under way.
    pub(crate) lost: Option<Error>,
    /// Whether there is no queue for it.
    pub(crate) is_unroutable: bool,
    /// Whether the queue is full, and refuses more.
    pub(crate) is_nacked: bool,
}

impl Unsent {
    pub(crate) fn of(error: BrokerError) -> Self {
        Self {
            is_uncertain: false,
            cause: PublishFailure::Broker(error),
            lost: None,
            is_unroutable: false,
            is_nacked: false,
        }
    }

    pub(crate) fn uncertain(error: BrokerError) -> Self {
        Self { is_uncertain: true, ..Self::of(error) }
    }
}

/// For callers to whom it makes no difference whether the message has arrived.
impl From<Unsent> for BrokerError {
    fn from(unsent: Unsent) -> Self {
        match unsent.cause {
            PublishFailure::Broker(error) => error,
            blocked @ PublishFailure::Blocked(_) => Self::Lost(blocked.to_string()),
        }
    }
}

/// Why a message was not confirmed, and whether it may have arrived all the same.
pub(crate) fn unpublished(error: Unpublished, over: &Connection, wait_limit: Duration) -> Unsent {
    let is_uncertain = error.is_uncertain();
    let is_unroutable = matches!(error, Unpublished::Returned { .. });
    let is_nacked = matches!(error, Unpublished::Nacked);
    let cause = match error {
        Unpublished::Blocked { .. } if matches!(over.state(), State::Blocked { .. }) => {
            PublishFailure::Blocked(wait_limit)
        }
        Unpublished::Interrupted { why, .. } => {
            PublishFailure::Broker(BrokerError::Interrupted(why))
        }
        Unpublished::Closed { error, .. } => PublishFailure::Broker(error.into()),
        // There was no connection for that long, or the broker did not read.
        Unpublished::Blocked { .. } | Unpublished::Uncertain => {
            PublishFailure::Broker(BrokerError::Lost(error.to_string()))
        }
        _ => PublishFailure::Broker(BrokerError::Refused(error.to_string())),
    };
    Unsent { is_uncertain, cause, lost: None, is_unroutable, is_nacked }
}
