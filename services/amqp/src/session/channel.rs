//! One channel of a session: it sends one request at a time, assembles contents, and tracks
//! unconfirmed messages and unsettled deliveries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;

use crate::error::Error;
use crate::message::{Message, Properties};
use crate::session::event::{Content, Outcome, Reply};
use crate::session::wire::append_method;

/// A request that awaits its reply.
#[derive(Debug)]
pub(super) struct PendingRequest<T> {
    /// Class and method ids.
    pub(super) method: (u16, u16),
    /// The request is basic.get with `no_ack`.
    pub(super) is_no_ack: bool,
    pub(super) token: T,
}

/// An encoded request, which is sent after the reply to the request before.
#[derive(Debug)]
pub(super) struct QueuedRequest<T> {
    pub(super) bytes: Vec<u8>,
    pub(super) request: PendingRequest<T>,
}

/// A message that was published in confirm mode.
#[derive(Debug)]
struct Unconfirmed<P> {
    message: Box<Message>,
    /// `None` once the message was abandoned.
    token: Option<P>,
    returned: Option<(u16, String)>,
}

/// The method that a content belongs to.
#[derive(Debug)]
pub(super) enum ContentOf {
    Deliver { consumer: ShortString, content: Box<Content> },
    Get(Box<Content>),
    Return(Box<(basic::Return, Properties)>),
}

impl ContentOf {
    /// The properties have come.
    pub(super) fn set_properties(&mut self, properties: Properties) {
        match self {
            Self::Deliver { content, .. } | Self::Get(content) => content.properties = properties,
            Self::Return(returned) => returned.1 = properties,
        }
    }

    /// Names or properties cannot be read. (A returned message is found by the rest.)
    pub(super) fn set_unreadable(&mut self) {
        if let Self::Deliver { content, .. } | Self::Get(content) = self {
            content.is_unreadable = true;
        }
    }
}

/// The part of a content that was received.
#[derive(Debug)]
pub(super) enum Assembly {
    None,
    Header(ContentOf),
    Body { of: ContentOf, body: Vec<u8>, missing: u64 },
}

#[derive(Debug)]
pub(super) struct ChannelState<T, P> {
    pub(super) pending: Option<PendingRequest<T>>,
    pub(super) queue: VecDeque<QueuedRequest<T>>,
    pub(super) assembly: Assembly,
    /// Tags of the consumers, each with its `no_ack`.
    pub(super) consumers: Vec<(ShortString, bool)>,
    /// Whether the channel is in confirm mode.
    pub(super) confirms: bool,
    /// Whether the broker paused the channel by channel.flow.
    pub(super) is_paused: bool,
    /// Whether this side has requested channel.close.
    pub(super) is_closing: bool,
    /// The number of messages published in confirm mode.
    published: u64,
    /// Unconfirmed messages by publish number. A map, since the broker may skip one for ever.
    unconfirmed: BTreeMap<u64, Unconfirmed<P>>,
    /// Tags of deliveries that this side has neither acknowledged nor rejected.
    unsettled: BTreeSet<u64>,
    /// Tags that this side has acknowledged, and whose basic.ack is not queued yet.
    unsent_acks: Vec<u64>,
}

impl<T, P> ChannelState<T, P> {
    pub(super) fn new() -> Self {
        Self {
            pending: None,
            queue: VecDeque::new(),
            assembly: Assembly::None,
            consumers: Vec::new(),
            confirms: false,
            is_paused: false,
            is_closing: false,
            published: 0,
            unconfirmed: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            unsent_acks: Vec::new(),
        }
    }

    /// Whether the pending request has these ids.
    pub(super) fn awaits_reply(&self, method: (u16, u16)) -> bool {
        self.pending.as_ref().is_some_and(|request| request.method == method)
    }

    /// Registers a message that was just queued as unconfirmed.
    pub(super) fn add_unconfirmed(&mut self, message: Box<Message>, token: P) {
        self.published += 1;
        let entry = Unconfirmed { message, token: Some(token), returned: None };
        self.unconfirmed.insert(self.published, entry);
    }

    /// The number of unconfirmed messages.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Handles basic.ack or basic.nack for one message, or for all up to it.
    pub(super) fn confirm(
        &mut self,
        tag: u64,
        multiple: bool,
        is_ack: bool,
        mut notify: impl FnMut(Option<P>, Outcome),
    ) -> Result<(), Error> {
        let confirmed = match (tag, multiple) {
            // Not from 1: the range would be invalid while nothing is published.
            (0, true) => 0..=self.published,
            (tag, true) if tag <= self.published => 1..=tag,
            (tag, false) if self.unconfirmed.contains_key(&tag) => tag..=tag,
            _ => return Err(Error::Protocol(format!("a confirm of message {tag}: unknown tag"))),
        };
        while let Some((&tag, _)) = self.unconfirmed.range(confirmed.clone()).next() {
            let Some(entry) = self.unconfirmed.remove(&tag) else { break };
            let outcome = match (entry.returned, is_ack) {
                (_, false) => Outcome::Nacked,
                (None, true) => Outcome::Acked,
                (Some((code, text)), true) => Outcome::Returned { code, text },
            };
            notify(entry.token, outcome);
        }
        Ok(())
    }

    /// Marks the message that the broker returns. basic.return has no publish number but precedes
    /// the confirm, so the oldest equal unconfirmed message is taken. The broker may change
    /// properties, or they may be unreadable: then exchange, routing key and body decide.
    pub(super) fn mark_return(&mut self, why: basic::Return, properties: &Properties, body: &[u8]) {
        let is_candidate = |entry: &Unconfirmed<P>| {
            let message = &entry.message;
            message.mandatory
                && entry.returned.is_none()
                && message.exchange == why.exchange
                && message.routing_key == why.routing_key
                && message.body == body
        };
        let mut candidates = self.unconfirmed.iter().filter(|(_, entry)| is_candidate(entry));
        let oldest = candidates.clone().next();
        // The broker replaces the direct reply-to by a name of its own.
        let without_reply_to =
            |properties: &Properties| properties.clone().with_reply_to("".into());
        let back = without_reply_to(properties);
        let same =
            candidates.find(|(_, entry)| without_reply_to(&entry.message.properties) == back);
        let found = same.or(oldest).map(|(&tag, _)| tag);
        match found.and_then(|tag| self.unconfirmed.get_mut(&tag)) {
            Some(entry) => entry.returned = Some((why.reply_code, why.reply_text.to_string())),
            None => {
                tracing::debug!(key = %why.routing_key, "a returned message matches none in flight")
            }
        }
    }

    /// Takes the tokens of all unconfirmed messages: their confirms produce no event.
    pub(super) fn abandon(&mut self) -> Vec<P> {
        self.unconfirmed.values_mut().filter_map(|entry| entry.token.take()).collect()
    }

    /// A delivery has come that has to be acknowledged.
    pub(super) fn add_unsettled(&mut self, tag: u64) -> Result<(), Error> {
        match tag != 0 && self.unsettled.insert(tag) {
            true => Ok(()),
            false if tag == 0 => Err(Error::Protocol("a delivery with tag 0".to_owned())),
            false => Err(Error::Protocol(format!("delivery {tag} arrived twice"))),
        }
    }

    /// Whether the delivery is not settled.
    pub(super) fn is_unsettled(&self, tag: u64) -> bool {
        self.unsettled.contains(&tag)
    }

    /// Marks a delivery as settled, and returns whether it was unsettled.
    pub(super) fn settle(&mut self, tag: u64) -> bool {
        self.unsettled.remove(&tag)
    }

    /// Prepares the output for a request. Acknowledgements go before channel.close and
    /// basic.recover; after basic.recover no earlier delivery can be settled.
    pub(super) fn prepare(&mut self, method: (u16, u16), channel: u16, output: &mut Vec<u8>) {
        if matches!(method, (20, 40) | (60, 110)) {
            self.flush_acks(channel, output);
        }
        if method == (60, 110) {
            self.unsettled.clear();
        }
    }

    /// Acknowledges a delivery when the next output is taken; returns whether it was unsettled.
    pub(super) fn ack(&mut self, tag: u64) -> bool {
        let was_unsettled = self.settle(tag);
        if was_unsettled && !self.is_closing {
            self.unsent_acks.push(tag);
        }
        was_unsettled
    }

    /// Queues one basic.ack for all tags below the lowest unsettled one, and one for each other
    /// tag.
    pub(super) fn flush_acks(&mut self, channel: u16, output: &mut Vec<u8>) {
        if self.unsent_acks.is_empty() {
            return;
        }
        self.unsent_acks.sort_unstable();
        let lowest = self.unsettled.first().copied().unwrap_or(u64::MAX);
        let together = self.unsent_acks.partition_point(|tag| *tag < lowest);
        let mut send = |tag, multiple| {
            let ack = basic::Ack { delivery_tag: tag, multiple };
            let method = AMQPClass::Basic(basic::AMQPMethod::Ack(ack));
            let queued = append_method(output, channel, method, usize::MAX);
            debug_assert!(queued.is_ok(), "an acknowledgement fits into a frame");
        };
        if together > 0 {
            send(self.unsent_acks[together - 1], together > 1);
        }
        for tag in &self.unsent_acks[together..] {
            send(*tag, false);
        }
        self.unsent_acks.clear();
    }

    /// The tokens of all unanswered requests, and the unconfirmed messages with theirs.
    pub(super) fn into_unanswered(self) -> (Vec<T>, Vec<(Box<Message>, P)>) {
        let pending = self.pending.into_iter();
        let requests = pending.chain(self.queue.into_iter().map(|queued| queued.request));
        let unconfirmed = self.unconfirmed.into_values();
        (
            requests.map(|request| request.token).collect(),
            unconfirmed.filter_map(|entry| Some((entry.message, entry.token?))).collect(),
        )
    }
}

/// The reply in a method, if the method answers the request.
pub(super) fn reply_to(request: (u16, u16), method: &AMQPClass) -> Option<Reply> {
    use amq_protocol::protocol::queue::AMQPMethod as Q;
    let got = ids(method);
    let expected = match request {
        // exchange.unbind-ok is the one reply whose id is not the next after its request.
        (40, 40) => (40, 51),
        (class, method) => (class, method + 1),
    };
    if (request, got) == ((60, 70), (60, 72)) {
        return Some(Reply::Got(None));
    }
    if got != expected {
        return None;
    }
    Some(match method {
        AMQPClass::Queue(Q::DeclareOk(ok)) => Reply::Queue(crate::message::Queue {
            name: ok.queue.to_string(),
            messages: ok.message_count,
            consumers: ok.consumer_count,
        }),
        AMQPClass::Queue(Q::PurgeOk(ok)) => Reply::Count(ok.message_count),
        AMQPClass::Queue(Q::DeleteOk(ok)) => Reply::Count(ok.message_count),
        _ => Reply::Done,
    })
}

/// Class and method ids.
pub(super) fn ids(method: &AMQPClass) -> (u16, u16) {
    (method.get_amqp_class_id(), method.get_amqp_method_id())
}

#[cfg(test)]
mod tests;
