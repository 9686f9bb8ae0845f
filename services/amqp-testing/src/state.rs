//! What the broker knows.

mod peer;
mod queues;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use pikake_amqp::{Message, Table, Value};

/// A consumer: its connection, its channel, its tag.
pub(crate) type ConsumerKey = (u64, u16, String);

/// A message in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    /// How often it was delivered before.
    pub(crate) deliveries: u32,
    pub(crate) expires: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) durable: bool,
    /// The connection it belongs to.
    pub(crate) owner: Option<u64>,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Table,
    pub(crate) ready: VecDeque<Stored>,
    pub(crate) unacked: usize,
    /// The next one comes first.
    pub(crate) consumers: VecDeque<ConsumerKey>,
    pub(crate) is_taken: bool,
}

impl QueueState {
    pub(crate) fn text(&self, argument: &str) -> Option<String> {
        match self.arguments.inner().get(argument)? {
            Value::LongString(text) => Some(text.to_string()),
            _ => None,
        }
    }

    pub(crate) fn number(&self, argument: &str) -> Option<u64> {
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

    pub(crate) fn is_quorum(&self) -> bool {
        self.text("x-queue-type").as_deref() == Some("quorum")
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) kind: String,
    /// Whereto, whether that is a queue, and under which key.
    pub(crate) routes: Vec<(String, bool, String)>,
}

/// Delivered and not settled.
#[derive(Debug)]
pub(crate) struct Unacked {
    pub(crate) queue: String,
    pub(crate) consumer: String,
    pub(crate) stored: Stored,
}

#[derive(Debug)]
pub(crate) struct ConsumerState {
    pub(crate) queue: String,
    pub(crate) no_ack: bool,
    pub(crate) prefetch: usize,
}

/// A message that is coming in.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) message: Message,
    pub(crate) missing: u64,
    pub(crate) has_header: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ChannelState {
    pub(crate) next_tag: u64,
    pub(crate) prefetch: usize,
    pub(crate) is_limited: bool,
    pub(crate) consumers: BTreeMap<String, ConsumerState>,
    pub(crate) unacked: BTreeMap<u64, Unacked>,
    /// Messages published in confirm mode.
    pub(crate) published: Option<u64>,
    pub(crate) incoming: Option<Incoming>,
    /// The consumer of direct answers.
    pub(crate) answers: Option<String>,
    /// It was closed here, and everything but the answer to that is ignored.
    pub(crate) is_closing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) rest: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) is_greeted: bool,
    pub(crate) channels: BTreeMap<u16, ChannelState>,
    /// Nothing more comes after the output.
    pub(crate) is_over: bool,
    /// Not read any more, as the broker is blocked.
    pub(crate) is_stopped: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) peers: BTreeMap<u64, Peer>,
    pub(crate) next_peer: u64,
    pub(crate) queues: BTreeMap<String, QueueState>,
    pub(crate) exchanges: BTreeMap<String, Exchange>,
    /// Kinds of exchanges that it does not know any more.
    pub(crate) forgotten_kinds: BTreeSet<String>,
    pub(crate) blocked: Option<String>,
    /// How many channels it grants, if it was told.
    pub(crate) channel_max: Option<u16>,
}
