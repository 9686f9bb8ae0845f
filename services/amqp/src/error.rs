//! What can go wrong, with what is needed to go on.
//!
//! One [`Error`] for all that is asked of the broker; a [`PublishError`] for messages, which gives the
//! message back where it has not been sent. Both can be cloned or carried to other threads.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use pikake_traps::Interrupted;

use crate::client::address::Address;
use crate::message::Message;

/// A reason to close a channel or a connection, as the broker gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloseReason {
    /// AMQP's number of it: 404 for something that is not there, 403 for something not allowed.
    pub code: u16,
    /// In the broker's words, which name the object.
    pub text: String,
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
    pub(crate) fn connect(address: &Address, source: io::Error) -> Self {
        Self::Connect { address: address.place(), source: source.into() }
    }

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

/// Why a message is not known to be in the broker's hands.
///
/// Where the message has certainly not been sent, it is inside: [`into_message`](Self::into_message).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker took it and could not keep it: a full queue that rejects, an internal error.
    Nacked,
    /// It was published as mandatory, and no queue takes it.
    Returned {
        /// 312 where no queue is bound.
        code: u16,
        /// In the broker's words.
        text: String,
    },
    /// It was sent, the connection was lost, and it was not sent again. It may be there or not.
    Uncertain,
    /// The broker takes no messages (an alarm of memory or disk), or there was no connection, for
    /// longer than [`Options::blocked_deadline`](crate::Options::blocked_deadline).
    Blocked {
        /// What the broker says, or why there is no connection.
        reason: String,
        /// The message, if it was held back. Without, it was sent and its outcome is uncertain.
        message: Option<Box<Message>>,
    },
    /// The wait was interrupted.
    Interrupted {
        /// By what.
        why: Interrupted,
        /// The message, if it had not been sent. Without, its outcome is uncertain.
        message: Option<Box<Message>>,
    },
    /// The channel or the connection was closed, or the message cannot be encoded.
    Closed {
        /// Why.
        error: Error,
        /// The message, if it had not been sent. Without, its outcome is uncertain.
        message: Option<Box<Message>>,
    },
}

impl PublishError {
    /// The message, if it has certainly not been sent.
    pub fn into_message(self) -> Option<Message> {
        match self {
            Self::Blocked { message, .. }
            | Self::Interrupted { message, .. }
            | Self::Closed { message, .. } => message.map(|message| *message),
            Self::Nacked | Self::Returned { .. } | Self::Uncertain => None,
        }
    }

    /// Whether the message may have reached its queue all the same.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Uncertain => true,
            Self::Nacked | Self::Returned { .. } => false,
            Self::Blocked { message, .. }
            | Self::Interrupted { message, .. }
            | Self::Closed { message, .. } => message.is_none(),
        }
    }

    /// The same with a message that has not been sent.
    pub(crate) fn about(mut self, unsent: Message) -> Self {
        if let Self::Blocked { message, .. }
        | Self::Interrupted { message, .. }
        | Self::Closed { message, .. } = &mut self
        {
            *message = Some(Box::new(unsent));
        }
        self
    }

    /// The interruption, if that is what it was.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nacked => f.write_str("the broker could not keep the message"),
            Self::Returned { code, text } => {
                write!(f, "the broker returned the message, as no queue takes it: {code} {text}")
            }
            Self::Uncertain => {
                f.write_str("the connection was lost before the message was confirmed")
            }
            Self::Blocked { reason, .. } => write!(f, "no message is taken: {reason}"),
            Self::Interrupted { why, .. } => write!(f, "publishing was cut short ({why})"),
            Self::Closed { error, .. } => write!(f, "the message was not confirmed: {error}"),
        }
    }
}

impl StdError for PublishError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Interrupted { why, .. } => Some(why),
            Self::Closed { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A delivery was acknowledged too late: it belongs to an earlier connection or a closed channel, and
/// the broker has given the message back to its queue, or it was settled before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the delivery is no longer this channel's: the broker has taken it back")
    }
}

impl StdError for Stale {}
