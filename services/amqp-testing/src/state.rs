//! The state of the broker.

mod peer;
mod queues;
mod requests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use pikake_amqp::{Message, Table, Value};

/// The key of a consumer: connection, channel and tag.
pub(crate) type ConsumerKey = (u64, u16, String);

/// A message in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    /// The number of earlier messages of the queue.
    pub(crate) number: u64,
    /// The number of earlier deliveries.
    pub(crate) deliveries: u32,
    pub(crate) expires: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) durable: bool,
    /// The connection of an exclusive queue.
    pub(crate) owner: Option<u64>,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: Table,
    /// The highest priority first, and the oldest message first of each.
    pub(crate) ready: VecDeque<Stored>,
    /// The number of messages that the queue has taken.
    pub(crate) taken: u64,
    pub(crate) unacked: usize,
    /// Consumers in round-robin order, the next one first.
    pub(crate) consumers: VecDeque<ConsumerKey>,
    pub(crate) has_exclusive_consumer: bool,
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

    /// Adds a ready message; one that was delivered before returns to its place.
    pub(crate) fn make_ready(&mut self, stored: Stored) {
        let place = self.place(&stored);
        let at = self.ready.partition_point(|other| self.place(other) < place);
        self.ready.insert(at, stored);
    }

    /// Messages are ready in this order.
    fn place(&self, stored: &Stored) -> (Reverse<u64>, u64) {
        (Reverse(self.priority(stored)), stored.number)
    }

    /// The priority of a message in this queue.
    fn priority(&self, stored: &Stored) -> u64 {
        let own = stored.message.properties.priority().unwrap_or(0);
        u64::from(own).min(self.number("x-max-priority").unwrap_or(0))
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) kind: String,
    /// Destination, whether the destination is a queue, and binding key.
    pub(crate) routes: Vec<(String, bool, String)>,
}

/// A delivery that is not settled.
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

/// A message whose content is incomplete.
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
    pub(crate) has_global_limit: bool,
    pub(crate) consumers: BTreeMap<String, ConsumerState>,
    pub(crate) unacked: BTreeMap<u64, Unacked>,
    /// The number of messages published in confirm mode; `None` in normal mode.
    pub(crate) published: Option<u64>,
    pub(crate) incoming: Option<Incoming>,
    /// The tag of the consumer of direct replies.
    pub(crate) direct_reply_consumer: Option<String>,
    /// The broker closed the channel, and ignores everything before channel.close-ok.
    pub(crate) is_closing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) rest: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) is_greeted: bool,
    /// Whether the client understands that the broker cancels a consumer.
    pub(crate) accepts_cancel: bool,
    pub(crate) channels: BTreeMap<u16, ChannelState>,
    /// Whether the connection closes after the output.
    pub(crate) is_ended: bool,
    /// Whether input is buffered but not handled, as the broker is blocked.
    pub(crate) is_paused: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) peers: BTreeMap<u64, Peer>,
    pub(crate) next_peer: u64,
    pub(crate) queues: BTreeMap<String, QueueState>,
    pub(crate) exchanges: BTreeMap<String, Exchange>,
    /// The kinds of exchanges that were removed.
    pub(crate) forgotten_kinds: BTreeSet<String>,
    pub(crate) blocked: Option<String>,
    /// The queues whose messages are not confirmed.
    pub(crate) held_confirms: BTreeSet<String>,
    pub(crate) refuses_direct_reply: bool,
    /// The limit of channels for new connections.
    pub(crate) channel_max: Option<u16>,
}
