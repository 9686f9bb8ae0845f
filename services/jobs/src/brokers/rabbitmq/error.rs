//! What errors of the AMQP client mean for who uses a broker.

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
            // A handshake of TLS that came to nothing: somebody is there.
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

/// What was not sent, or not confirmed.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// It may be there all the same.
    pub(crate) is_uncertain: bool,
    pub(crate) cause: PublishFailure,
    /// It costs the connection each time.
    pub(crate) is_stumbled_over: bool,
}

impl Unsent {
    pub(crate) fn of(error: BrokerError) -> Self {
        let cause = PublishFailure::Broker(error);
        Self { is_uncertain: false, cause, is_stumbled_over: false }
    }

    pub(crate) fn uncertain(error: BrokerError) -> Self {
        Self { is_uncertain: true, ..Self::of(error) }
    }
}

/// The same for who does not mind whether it is there.
pub(crate) fn lost(unsent: Unsent) -> BrokerError {
    match unsent.cause {
        PublishFailure::Broker(error) => error,
        blocked => BrokerError::Lost(blocked.to_string()),
    }
}

/// Why a message was not confirmed, and whether it may be there all the same.
pub(crate) fn unpublished(error: Unpublished, over: &Connection, blocked: Duration) -> Unsent {
    let is_uncertain = error.is_uncertain();
    let is_stumbled_over =
        matches!(&error, Unpublished::Closed { error: Error::ConnectionClosed(_), .. });
    let cause = match error {
        Unpublished::Blocked { .. } if matches!(over.state(), State::Blocked { .. }) => {
            let cause = PublishFailure::Blocked(blocked);
            return Unsent { is_uncertain, cause, is_stumbled_over };
        }
        Unpublished::Interrupted { why, .. } => BrokerError::Interrupted(why),
        Unpublished::Closed { error, .. } => error.into(),
        // There was no connection for that long, or the broker did not read.
        Unpublished::Blocked { .. } | Unpublished::Uncertain => {
            BrokerError::Lost(error.to_string())
        }
        _ => BrokerError::Refused(error.to_string()),
    };
    Unsent { is_uncertain, cause: PublishFailure::Broker(cause), is_stumbled_over }
}
