//! What a session tells.

use amq_protocol::types::ShortString;

use crate::error::{CloseReason, Error};
use crate::message::{Message, Properties, Queue};

/// A message as it came in.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Content {
    pub(crate) tag: u64,
    /// It has to be acknowledged.
    pub(crate) is_owed: bool,
    /// Its names or properties cannot be read: the session rejects it, and hands it to nobody.
    pub(crate) is_unreadable: bool,
    pub(crate) redelivered: bool,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: Properties,
    pub(crate) body: Vec<u8>,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Done,
    Queue(Queue),
    /// Messages that were purged or deleted.
    Count(u32),
    Got(Option<Box<Content>>),
    /// The message that was there could not be read, and is rejected.
    Rejected,
}

/// What became of a published message.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Acked,
    Nacked,
    Returned {
        code: u16,
        text: String,
    },
    /// The channel has ended before; nobody knows.
    Unknown(Error),
}

/// What a session tells. `T` names a request, `P` a published message.
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
    /// What was delivered before, and not settled, is the broker's again.
    TakenBack {
        channel: u16,
    },
    /// By the broker.
    ConsumerCancelled {
        channel: u16,
        consumer: ShortString,
    },
    /// By the broker. Those who waited have been told before.
    ChannelClosed {
        channel: u16,
        reason: CloseReason,
    },
    /// Another channel may be opened.
    NumberFree,
    /// More messages may be published on a channel than before, or none.
    Flow,
    Blocked(String),
    Unblocked,
    /// Nothing comes after this.
    Ended(Ended),
}

/// Why a session is over.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// The broker closed it, in the handshake or later. What it was blamed on has been told; the
    /// others may try again.
    ByBroker { reason: CloseReason, is_blamed: bool },
    /// The broker has answered our farewell.
    ByUs,
    /// What came is not AMQP.
    Protocol(Error),
    /// Nothing came for too long.
    Silent,
}

/// What is left when a session is given up.
#[derive(Debug)]
pub(crate) struct Remains<T, P> {
    /// Requests without an answer.
    pub(crate) requests: Vec<T>,
    /// Messages without a confirm, with their channels, in the order of each channel.
    pub(crate) unconfirmed: Vec<(u16, Box<Message>, P)>,
}
