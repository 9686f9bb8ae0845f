//! The errors of messages: [`PublishError`], which contains an unsent message, and [`Stale`] for a
//! delivery that is settled too late.

use std::error::Error as StdError;
use std::fmt;

use pikake_traps::Interrupted;

use crate::error::Error;
use crate::message::Message;

/// The error of a message that the broker has not confirmed.
///
/// If the message was certainly not sent, [`into_message`](Self::into_message) returns the message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker received the message but refused it: a full queue, an internal error.
    Nacked,
    /// The message was mandatory, and no queue is bound for it.
    Returned {
        /// The reply code: 312 if no queue is bound.
        code: u16,
        /// The broker's reply text.
        text: String,
    },
    /// The connection was lost after the message was sent, and the message was not sent again.
    Uncertain,
    /// The broker accepted no messages (a memory or disk alarm), or there was no connection, for
    /// longer than [`Options::blocked_deadline`](crate::Options::blocked_deadline).
    Blocked {
        /// The broker's reason, or the state of the connection.
        reason: String,
        /// The message, if it was not sent. `None` if it was sent and its outcome is uncertain.
        message: Option<Box<Message>>,
    },
    /// The wait was interrupted.
    Interrupted {
        /// The interruption.
        why: Interrupted,
        /// The message, if it was not sent. `None` if its outcome is uncertain.
        message: Option<Box<Message>>,
    },
    /// The channel or the connection was closed, or the message cannot be encoded.
    Closed {
        /// The cause.
        error: Error,
        /// The message, if it was not sent. `None` if its outcome is uncertain.
        message: Option<Box<Message>>,
    },
}

impl PublishError {
    /// The message, if it was certainly not sent.
    pub fn into_message(self) -> Option<Message> {
        match self {
            Self::Blocked { message, .. }
            | Self::Interrupted { message, .. }
            | Self::Closed { message, .. } => message.map(|message| *message),
            Self::Nacked | Self::Returned { .. } | Self::Uncertain => None,
        }
    }

    /// Whether the message may have reached its queue despite the error.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Uncertain => true,
            Self::Nacked | Self::Returned { .. } => false,
            Self::Blocked { message, .. }
            | Self::Interrupted { message, .. }
            | Self::Closed { message, .. } => message.is_none(),
        }
    }

    /// Adds a message that was not sent.
    pub(crate) fn with_message(mut self, unsent: Message) -> Self {
        if let Self::Blocked { message, .. }
        | Self::Interrupted { message, .. }
        | Self::Closed { message, .. } = &mut self
        {
            *message = Some(Box::new(unsent));
        }
        self
    }

    /// The interruption, if the error is one.
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
            Self::Nacked => f.write_str("the broker refused the message"),
            Self::Returned { code, text } => {
                write!(f, "the broker returned the message as unroutable: {code} {text}")
            }
            Self::Uncertain => {
                f.write_str("the connection was lost before the message was confirmed")
            }
            Self::Blocked { reason, .. } => write!(f, "publishing is blocked: {reason}"),
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

/// A delivery was settled too late or twice. Its connection or channel has ended, and the broker
/// has requeued the message; or an earlier call has settled the delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the delivery was settled before, or its channel or connection has ended")
    }
}

impl StdError for Stale {}
