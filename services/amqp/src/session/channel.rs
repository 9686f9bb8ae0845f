//! One channel of a session: its requests, one at a time; its contents, put together; what it owes
//! the broker, and what the broker owes it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;

use crate::error::Error;
use crate::message::{Message, Properties};
use crate::session::event::{Content, Outcome, Reply};
use crate::session::wire::append_method;

/// Sent, and not answered yet.
#[derive(Debug)]
pub(super) struct Asked<T> {
    /// Class and method of the request.
    pub(super) method: (u16, u16),
    /// A get whose message needs no acknowledgement.
    pub(super) is_free: bool,
    pub(super) token: T,
}

/// Encoded, and waiting for the answer to the one before.
#[derive(Debug)]
pub(super) struct Queued<T> {
    pub(super) bytes: Vec<u8>,
    pub(super) asked: Asked<T>,
}

/// Published in confirm mode.
#[derive(Debug)]
struct Unconfirmed<P> {
    message: Box<Message>,
    /// `None`: given up by this side.
    token: Option<P>,
    returned: Option<(u16, String)>,
}

/// What a content belongs to.
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

/// A content that is coming in.
#[derive(Debug)]
pub(super) enum Assembly {
    None,
    Header(ContentOf),
    Body { of: ContentOf, body: Vec<u8>, missing: u64 },
}

#[derive(Debug)]
pub(super) struct ChannelState<T, P> {
    pub(super) asked: Option<Asked<T>>,
    pub(super) queue: VecDeque<Queued<T>>,
    pub(super) assembly: Assembly,
    /// Consumers, and whether their deliveries need no acknowledgement.
    pub(super) consumers: Vec<(ShortString, bool)>,
    /// Confirms are on.
    pub(super) confirms: bool,
    /// The broker has asked for a pause.
    pub(super) is_paused: bool,
    /// We have asked for its end.
    pub(super) is_closing: bool,
    /// How many messages were published in confirm mode.
    published: u64,
    /// Those that are not confirmed, by their numbers. (One may never be, while many others are.)
    unconfirmed: BTreeMap<u64, Unconfirmed<P>>,
    /// Delivered, and neither acknowledged nor rejected here.
    owed: BTreeSet<u64>,
    /// Acknowledged here, and not yet there.
    acked: Vec<u64>,
}

impl<T, P> ChannelState<T, P> {
    pub(super) fn new() -> Self {
        Self {
            asked: None,
            queue: VecDeque::new(),
            assembly: Assembly::None,
            consumers: Vec::new(),
            confirms: false,
            is_paused: false,
            is_closing: false,
            published: 0,
            unconfirmed: BTreeMap::new(),
            owed: BTreeSet::new(),
            acked: Vec::new(),
        }
    }

    /// Whether the method was sent, and not answered yet.
    pub(super) fn has_asked(&self, method: (u16, u16)) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.method == method)
    }

    /// Expects the confirm of a message that was just queued.
    pub(super) fn expect_confirm(&mut self, message: Box<Message>, token: P) {
        self.published += 1;
        let entry = Unconfirmed { message, token: Some(token), returned: None };
        self.unconfirmed.insert(self.published, entry);
    }

    /// How many messages are not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The broker has confirmed, or refused, one message or all up to one.
    pub(super) fn confirm(
        &mut self,
        tag: u64,
        multiple: bool,
        is_ack: bool,
        mut tell: impl FnMut(Option<P>, Outcome),
    ) -> Result<(), Error> {
        let confirmed = match (tag, multiple) {
            (0, true) => 1..=self.published,
            (tag, true) if tag <= self.published => 1..=tag,
            (tag, false) if self.unconfirmed.contains_key(&tag) => tag..=tag,
            _ => return Err(Error::Protocol(format!("a confirm of message {tag}, which is none"))),
        };
        while let Some((&tag, _)) = self.unconfirmed.range(confirmed.clone()).next() {
            let Some(entry) = self.unconfirmed.remove(&tag) else { break };
            let outcome = match (entry.returned, is_ack) {
                (_, false) => Outcome::Nacked,
                (None, true) => Outcome::Acked,
                (Some((code, text)), true) => Outcome::Returned { code, text },
            };
            tell(entry.token, outcome);
        }
        Ok(())
    }

    /// The broker returns a message. It does not say which; it comes before its confirm, so it is the
    /// oldest that is the same. (Two that are the same in everything are one as good as the other.)
    /// Properties may come back as others than were sent, or not be readable here; then place and body
    /// have to do.
    pub(super) fn returned(&mut self, why: basic::Return, properties: &Properties, body: &[u8]) {
        let is_like_it = |entry: &Unconfirmed<P>| {
            let message = &entry.message;
            message.mandatory
                && entry.returned.is_none()
                && message.exchange == why.exchange
                && message.routing_key == why.routing_key
                && message.body == body
        };
        let mut like_it = self.unconfirmed.iter().filter(|(_, entry)| is_like_it(entry));
        let oldest = like_it.clone().next();
        // The broker puts a name of its own in the place of direct reply-to.
        let but_reply = |properties: &Properties| properties.clone().with_reply_to("".into());
        let back = but_reply(properties);
        let same = like_it.find(|(_, entry)| but_reply(&entry.message.properties) == back);
        let found = same.or(oldest).map(|(&tag, _)| tag);
        match found.and_then(|tag| self.unconfirmed.get_mut(&tag)) {
            Some(entry) => entry.returned = Some((why.reply_code, why.reply_text.to_string())),
            None => {
                tracing::debug!(key = %why.routing_key, "a message came back that nobody waits for")
            }
        }
    }

    /// No longer tells what becomes of the messages that are not confirmed.
    pub(super) fn abandon(&mut self) -> Vec<P> {
        self.unconfirmed.values_mut().filter_map(|entry| entry.token.take()).collect()
    }

    /// A delivery has come that has to be acknowledged.
    pub(super) fn owe(&mut self, tag: u64) -> Result<(), Error> {
        match tag != 0 && self.owed.insert(tag) {
            true => Ok(()),
            false if tag == 0 => Err(Error::Protocol("a delivery without a number".to_owned())),
            false => Err(Error::Protocol(format!("delivery {tag} came twice"))),
        }
    }

    /// Whether the delivery is still to be settled.
    pub(super) fn owes(&self, tag: u64) -> bool {
        self.owed.contains(&tag)
    }

    /// Whether the delivery was still to be settled; now it is not.
    pub(super) fn settle(&mut self, tag: u64) -> bool {
        self.owed.remove(&tag)
    }

    /// A request leaves. What was acknowledged must be known before all is taken back, and from then on
    /// nothing of it can be settled.
    pub(super) fn leaving(&mut self, method: (u16, u16), channel: u16, output: &mut Vec<u8>) {
        if matches!(method, (20, 40) | (60, 110)) {
            self.flush_acks(channel, output);
        }
        if method == (60, 110) {
            self.owed.clear();
        }
    }

    /// Acknowledges a delivery, when the next output is taken.
    pub(super) fn ack(&mut self, tag: u64) -> bool {
        let is_owed = self.settle(tag);
        if is_owed && !self.is_closing {
            self.acked.push(tag);
        }
        is_owed
    }

    /// One acknowledgement for all below the lowest that is still owed, one for each of the others.
    pub(super) fn flush_acks(&mut self, channel: u16, output: &mut Vec<u8>) {
        if self.acked.is_empty() {
            return;
        }
        self.acked.sort_unstable();
        let lowest = self.owed.first().copied().unwrap_or(u64::MAX);
        let together = self.acked.partition_point(|tag| *tag < lowest);
        let mut send = |tag, multiple| {
            let ack = basic::Ack { delivery_tag: tag, multiple };
            let method = AMQPClass::Basic(basic::AMQPMethod::Ack(ack));
            let queued = append_method(output, channel, method, usize::MAX);
            debug_assert!(queued.is_ok(), "an acknowledgement fits into a frame");
        };
        if together > 0 {
            send(self.acked[together - 1], together > 1);
        }
        for tag in &self.acked[together..] {
            send(*tag, false);
        }
        self.acked.clear();
    }

    /// All who wait: requests, and messages with their tokens.
    pub(super) fn dismantle(self) -> (Vec<T>, Vec<(Box<Message>, P)>) {
        let asked = self.asked.into_iter();
        let requests = asked.chain(self.queue.into_iter().map(|queued| queued.asked));
        let unconfirmed = self.unconfirmed.into_values();
        (
            requests.map(|asked| asked.token).collect(),
            unconfirmed.filter_map(|entry| Some((entry.message, entry.token?))).collect(),
        )
    }
}

/// Whether a method answers a request, and what it says.
pub(super) fn answer(request: (u16, u16), method: &AMQPClass) -> Option<Reply> {
    use amq_protocol::protocol::queue::AMQPMethod as Q;
    let got = ids(method);
    let expected = match request {
        // The one exception: exchange.unbind.
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

/// Class and method.
pub(super) fn ids(method: &AMQPClass) -> (u16, u16) {
    (method.get_amqp_class_id(), method.get_amqp_method_id())
}

#[cfg(test)]
mod tests;
