//! What the broker knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::message::{Message, Table, Value};

/// A consumer: its connection, its channel, its tag.
pub(super) type ConsumerKey = (u64, u16, String);

/// A message in a queue.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) message: Message,
    /// How often it was delivered before.
    pub(super) deliveries: u32,
    pub(super) expires: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) durable: bool,
    /// The connection it belongs to.
    pub(super) owner: Option<u64>,
    pub(super) auto_delete: bool,
    pub(super) arguments: Table,
    pub(super) ready: VecDeque<Stored>,
    pub(super) unacked: usize,
    /// The next one comes first.
    pub(super) consumers: VecDeque<ConsumerKey>,
    pub(super) is_taken: bool,
}

impl QueueState {
    pub(super) fn text(&self, argument: &str) -> Option<String> {
        match self.arguments.inner().get(argument)? {
            Value::LongString(text) => Some(text.to_string()),
            _ => None,
        }
    }

    pub(super) fn number(&self, argument: &str) -> Option<u64> {
        match *self.arguments.inner().get(argument)? {
            Value::LongInt(n) => n.try_into().ok(),
            Value::LongLongInt(n) => n.try_into().ok(),
            Value::ShortInt(n) => n.try_into().ok(),
            Value::LongUInt(n) => Some(n.into()),
            Value::ShortUInt(n) => Some(n.into()),
            Value::ShortShortUInt(n) => Some(n.into()),
            _ => None,
        }
    }

    pub(super) fn is_quorum(&self) -> bool {
        self.text("x-queue-type").as_deref() == Some("quorum")
    }
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) kind: String,
    /// Whereto, whether that is a queue, and under which key.
    pub(super) routes: Vec<(String, bool, String)>,
}

/// Delivered and not settled.
#[derive(Debug)]
pub(super) struct Unacked {
    pub(super) queue: String,
    pub(super) consumer: String,
    pub(super) stored: Stored,
}

#[derive(Debug)]
pub(super) struct ConsumerState {
    pub(super) queue: String,
    pub(super) no_ack: bool,
    pub(super) prefetch: usize,
}

/// A message that is coming in.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) message: Message,
    pub(super) missing: u64,
    pub(super) has_header: bool,
}

#[derive(Debug, Default)]
pub(super) struct ChannelState {
    pub(super) next_tag: u64,
    pub(super) prefetch: usize,
    pub(super) is_limited: bool,
    pub(super) consumers: BTreeMap<String, ConsumerState>,
    pub(super) unacked: BTreeMap<u64, Unacked>,
    /// Messages published in confirm mode.
    pub(super) published: Option<u64>,
    pub(super) incoming: Option<Incoming>,
    /// The consumer of direct answers.
    pub(super) answers: Option<String>,
    /// It was closed here, and everything but the answer to that is ignored.
    pub(super) is_closing: bool,
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) rest: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) is_greeted: bool,
    pub(super) channels: BTreeMap<u16, ChannelState>,
    /// Nothing more comes after the output.
    pub(super) is_over: bool,
    /// Not read any more, as the broker is blocked.
    pub(super) is_stopped: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) now: Duration,
    pub(super) peers: BTreeMap<u64, Peer>,
    pub(super) next_peer: u64,
    pub(super) queues: BTreeMap<String, QueueState>,
    pub(super) exchanges: BTreeMap<String, Exchange>,
    /// Kinds of exchanges that it does not know any more.
    pub(super) forgotten_kinds: BTreeSet<String>,
    pub(super) blocked: Option<String>,
    /// How many channels it grants, if it was told.
    pub(super) channel_max: Option<u16>,
}
