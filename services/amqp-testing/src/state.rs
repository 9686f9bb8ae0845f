//! The state of the broker.

mod peer;
mod queues;
mod requests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use amq_protocol::protocol::queue;
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

    /// The first argument in which a declaration differs, and how.
    pub(crate) fn difference(&self, declare: &queue::Declare) -> Option<(String, String)> {
        let flags = [
            ("durable", declare.durable, self.durable),
            ("auto_delete", declare.auto_delete, self.auto_delete),
        ];
        for (name, wanted, is) in flags {
            if wanted != is {
                return Some((name.into(), format!("received '{wanted}' but current is '{is}'")));
            }
        }
        let (wanted, here) = (declare.arguments.inner(), self.arguments.inner());
        let names: BTreeSet<_> = wanted.keys().chain(here.keys()).collect();
        let name = names.into_iter().find(|name| wanted.get(*name) != here.get(*name))?;
        let how = match (wanted.get(name), here.get(name)) {
            (Some(wanted), Some(here)) => {
                let [(wanted, _), (here, _)] = [wanted, here].map(described);
                format!("received '{wanted}' but current is '{here}'")
            }
            (wanted, here) => {
                let [wanted, here] = [wanted, here].map(|value| match value.map(described) {
                    Some((value, kind)) => format!("the value '{value}' of type '{kind}'"),
                    None => "none".to_owned(),
                });
                format!("received {wanted} but current is {here}")
            }
        };
        Some((name.to_string(), how))
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

/// An argument as text, and RabbitMQ's name of its type.
fn described(value: &Value) -> (String, &'static str) {
    match value {
        Value::Boolean(is) => (is.to_string(), "bool"),
        Value::LongInt(number) => (number.to_string(), "signedint"),
        Value::LongLongInt(number) => (number.to_string(), "long"),
        Value::LongString(text) => (text.to_string(), "longstr"),
        other => (format!("{other:?}"), "another"),
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
    /// The number of names that the broker has given to queues and consumers.
    pub(crate) names: u64,
    /// The limit of channels for new connections.
    pub(crate) channel_max: Option<u16>,
}
