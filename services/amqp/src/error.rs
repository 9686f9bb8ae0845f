//! The [`Error`] of a request or connection. Errors can be cloned and sent to other threads.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use pikake_traps::Interrupted;

/// A reason to close a channel or a connection, as the broker gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloseReason {
    /// AMQP's reply code: 404 for a missing object, 403 for a refused access.
    pub code: u16,
    /// The broker's reply text, which names the object.
    pub text: String,
}

/// The reply code for an internal error of the broker.
const INTERNAL: u16 = 541;

impl CloseReason {
    /// Whether the reason is an internal error of the broker.
    pub(crate) fn is_internal(&self) -> bool {
        self.code == INTERNAL
    }

    /// Whether the cause is the broker's state (a shutdown, a lack of resources), and not a
    /// request.
    pub(crate) fn is_transient(&self) -> bool {
        /// Connection forced, resource error, internal error.
        const TRANSIENT: [u16; 3] = [320, 506, INTERNAL];
        TRANSIENT.contains(&self.code)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The broker's texts begin with the code's name.
        write!(f, "{} {}", self.code, self.text)
    }
}

/// The error of a request, a consumer or a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed: the system reports an error, or the peer does not answer in time.
    Connect {
        /// Host and port.
        address: String,
        /// The system's error, or a timeout.
        source: Arc<io::Error>,
    },
    /// The broker refuses the connection: a wrong password, no such virtual host.
    Refused {
        /// Host and port.
        address: String,
        /// The broker's reason.
        reason: CloseReason,
    },
    /// The peer violates AMQP 0-9-1, or is no AMQP broker.
    Protocol(String),
    /// The connection was lost before the broker replied. The broker may have executed the request.
    /// The channel recovers with the next connection.
    ConnectionLost(String),
    /// The broker closed the connection for good.
    ConnectionClosed(CloseReason),
    /// The broker closed this channel, but no other one. Open a new channel.
    ChannelClosed(CloseReason),
    /// This side has closed the channel or the connection.
    Closed,
    /// The broker cancelled the consumer: its queue was deleted, or has another leader.
    ConsumerCancelled,
    /// A URL is invalid or names unusable files, or arguments cannot be encoded. Nothing was sent.
    Invalid(String),
    /// The broker refuses a prefetch for the whole channel, as RabbitMQ does for quorum queues. Set
    /// [`ConsumeOptions::prefetch`](crate::ConsumeOptions::prefetch) for each consumer, and limit
    /// the channel with a semaphore. The channel is closed. (RabbitMQ closes the whole connection,
    /// which then recovers without the channel.)
    NoGlobalQos(CloseReason),
    /// There was no connection, no free channel or no reply within the time that
    /// [`Options::blocked_deadline`](crate::Options::blocked_deadline) allows.
    Unavailable(String),
    /// The wait was interrupted. A later reply is dropped.
    Interrupted(Interrupted),
}

impl Error {
    /// The interruption, if the error is one.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }

    /// The broker's reason, if the error comes from the broker.
    pub fn reason(&self) -> Option<&CloseReason> {
        match self {
            Self::Refused { reason, .. }
            | Self::ConnectionClosed(reason)
            | Self::ChannelClosed(reason)
            | Self::NoGlobalQos(reason) => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { address, source } => {
                write!(f, "no connection to the AMQP broker at {address}: {source}")
            }
            Self::Refused { address, reason } => {
                write!(f, "the AMQP broker at {address} refuses the connection: {reason}")
            }
            Self::Protocol(what) => write!(f, "the peer does not speak AMQP 0-9-1: {what}"),
            Self::ConnectionLost(why) => write!(f, "the connection was lost: {why}"),
            Self::ConnectionClosed(reason) => {
                write!(f, "the broker closed the connection: {reason}")
            }
            Self::ChannelClosed(reason) => write!(f, "the broker closed the channel: {reason}"),
            Self::Closed => f.write_str("the channel or its connection has been closed"),
            Self::ConsumerCancelled => {
                f.write_str("the broker cancelled the consumer: its queue was deleted or has moved")
            }
            Self::Invalid(what) => f.write_str(what),
            Self::NoGlobalQos(reason) => write!(
                f,
                "the broker supports no prefetch for a whole channel ({reason}); set the prefetch \
                 of each consumer, and limit the channel with a semaphore"
            ),
            Self::Unavailable(why) => write!(f, "the broker is unavailable: {why}"),
            Self::Interrupted(why) => write!(f, "waiting for the broker was cut short ({why})"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Connect { source, .. } => Some(&**source),
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// The kind is never `Interrupted`; see the conversion from [`Interrupted`].
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Interrupted(why) => return why.clone().into(),
            Error::Connect { source, .. } => source.kind(),
            Error::Refused { .. } => io::ErrorKind::PermissionDenied,
            Error::Protocol(_) => io::ErrorKind::InvalidData,
            Error::ConnectionLost(_) => io::ErrorKind::ConnectionReset,
            Error::Invalid(_) => io::ErrorKind::InvalidInput,
            Error::Closed => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
