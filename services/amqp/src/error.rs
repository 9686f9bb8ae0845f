//! What can go wrong with a request, or with a connection: an [`Error`], which can be cloned and carried
//! to other threads.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use pikake_traps::Interrupted;

/// A reason to close a channel or a connection, as the broker gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloseReason {
    /// AMQP's number of it: 404 for something that is not there, 403 for something not allowed.
    pub code: u16,
    /// In the broker's words, which name the object.
    pub text: String,
}

/// The broker has an error of its own.
const INTERNAL: u16 = 541;

impl CloseReason {
    /// Whether the broker has an error of its own.
    pub(crate) fn is_internal(&self) -> bool {
        self.code == INTERNAL
    }

    /// Whether the reason is the broker's (a shutdown, a lack of something), and not what we did.
    pub(crate) fn is_passing(&self) -> bool {
        /// Connection forced, resource error, internal error.
        const PASSING: [u16; 3] = [320, 506, INTERNAL];
        PASSING.contains(&self.code)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The broker's texts begin with the code's name.
        write!(f, "{} {}", self.code, self.text)
    }
}

/// Why something that was asked of the broker was not done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No connection came about: the address, and the system's error or the peer's silence.
    Connect {
        /// Where to: host and port.
        address: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The broker does not let us in: a wrong password, no such virtual host.
    Refused {
        /// Where: host and port.
        address: String,
        /// In the broker's words.
        reason: CloseReason,
    },
    /// The peer sent what AMQP 0-9-1 does not allow, or is no AMQP broker.
    Protocol(String),
    /// The connection was lost while the broker had not answered yet. What was asked may have been
    /// done. The channel goes on with the next connection.
    ConnectionLost(String),
    /// The broker closed the connection for good.
    ConnectionClosed(CloseReason),
    /// The broker closed this channel, and only this one. Open another.
    ChannelClosed(CloseReason),
    /// This side has closed the channel or the connection.
    Closed,
    /// The broker ended the consumer: its queue was deleted, or has another leader.
    ConsumerCancelled,
    /// A URL means nothing, or names files that cannot be used; or arguments cannot be sent. Nothing was.
    Invalid(String),
    /// The broker refuses a limit for the whole channel, as RabbitMQ does for quorum queues. Use
    /// [`ConsumeOptions::prefetch`](crate::ConsumeOptions::prefetch), one limit for each consumer,
    /// and a semaphore for the whole. The channel was closed by that. (RabbitMQ closes the whole
    /// connection, which then recovers without the channel.)
    NoGlobalQos(CloseReason),
    /// There was no connection to ask over, or as many channels as there may be, and that did not
    /// change within the time that [`Options::blocked_deadline`](crate::Options::blocked_deadline) allows.
    Unavailable(String),
    /// The wait was interrupted. An answer that comes later is thrown away.
    Interrupted(Interrupted),
}

impl Error {
    /// The interruption, if that is what it was.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }

    /// What the broker gave as its reason, if it was the broker.
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
                f.write_str("the broker ended the consumer, as its queue is gone or moved")
            }
            Self::Invalid(what) => f.write_str(what),
            Self::NoGlobalQos(reason) => write!(
                f,
                "the broker knows no limit for a whole channel here ({reason}); set the prefetch \
                 of each consumer instead, and limit the whole by a semaphore"
            ),
            Self::Unavailable(why) => write!(f, "the broker cannot be asked: {why}"),
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
