//! What can go wrong with a message: a [`PublishError`], which gives the message back where it has not
//! been sent, and [`Stale`] for a delivery that is settled too late.

use std::error::Error as StdError;
use std::fmt;

use pikake_traps::Interrupted;

use crate::error::Error;
use crate::message::Message;

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
