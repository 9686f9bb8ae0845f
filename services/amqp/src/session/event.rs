//! The events of a session.

use amq_protocol::types::ShortString;

use crate::error::{CloseReason, Error};
use crate::message::{Message, Properties, Queue};

/// A received message.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Content {
    pub(crate) tag: u64,
    /// It has to be acknowledged.
    pub(crate) needs_ack: bool,
    /// Its names or properties cannot be read: the session rejects it, and hands it to nobody.
    pub(crate) is_unreadable: bool,
    pub(crate) redelivered: bool,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: Properties,
    pub(crate) body: Vec<u8>,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Done,
    Queue(Queue),
    /// The number of messages that were purged or deleted.
    Count(u32),
    Got(Option<Box<Content>>),
    /// The answer to basic.get was an unreadable message, which is rejected.
    Rejected,
}

/// The outcome of a published message.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Acked,
    Nacked,
    Returned {
        code: u16,
        text: String,
    },
    /// The channel ended before the confirm.
    Unknown(Error),
}

/// An event of a session. `T` identifies a request, `P` a published message.
#[derive(Debug)]
pub(crate) enum Event<T, P> {
    /// The handshake is over.
    Opened,
    Replied {
        token: T,
        result: Result<Reply, Error>,
    },
    Confirmed {
        token: P,
        outcome: Outcome,
    },
    Delivered {
        channel: u16,
        consumer: ShortString,
        content: Box<Content>,
    },
    /// The broker has requeued all earlier unsettled deliveries of the channel (basic.recover-ok).
    Recovered {
        channel: u16,
    },
    /// The broker cancelled the consumer.
    ConsumerCancelled {
        channel: u16,
        consumer: ShortString,
    },
    /// The broker closed the channel. Events for its requests and messages come before this one.
    ChannelClosed {
        channel: u16,
        reason: CloseReason,
    },
    /// A channel number is free again.
    NumberFreed,
    /// The publish window of a channel has changed.
    Flow,
    Blocked(String),
    Unblocked,
    /// The last event.
    Ended(Ended),
}

/// Why a session is over.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// The broker closed the connection, in the handshake or later. If `is_blamed`, the channels
    /// that caused the close have ended, and the others may recover.
    ByBroker { reason: CloseReason, is_blamed: bool },
    /// The broker has answered this side's connection.close.
    ByUs,
    /// The broker broke the protocol.
    Protocol(Error),
    /// The broker missed too many heartbeats.
    Silent,
}

/// The requests and messages that a session leaves unanswered at its end.
#[derive(Debug)]
pub(crate) struct Unanswered<T, P> {
    /// Requests without a reply.
    pub(crate) requests: Vec<T>,
    /// Messages without a confirm, each with its channel, in publish order per channel.
    pub(crate) unconfirmed: Vec<(u16, Box<Message>, P)>,
}
