//! Routing, queues, deliveries, expiry and dead-lettering.

use std::time::Duration;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, basic};

use super::{ChannelState, QueueState, State, Stored, Unacked};
use pikake_amqp::wire;
use pikake_amqp::{Message, Properties, Value, short};

/// The frame size that the broker proposes to every client.
pub(crate) const FRAME_MAX: usize = 128 * 1024;

/// Whether a topic pattern matches a routing key.
fn topic_matches(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => {
            topic_matches(rest, key)
                || key.split_first().is_some_and(|(_, key)| topic_matches(pattern, key))
        }
        (Some((word, rest)), Some((first, key))) => {
            (*word == "*" || word == first) && topic_matches(rest, key)
        }
        _ => false,
    }
}

impl State {
    /// The queues to which an exchange routes a key.
    pub(crate) fn route(&self, exchange: &str, key: &str) -> Vec<String> {
        if exchange.is_empty() {
            return self.queues.contains_key(key).then(|| key.to_owned()).into_iter().collect();
        }
        let mut found = Vec::new();
        let Some(known) = self.exchanges.get(exchange) else { return found };
        for (to, is_queue, pattern) in &known.routes {
            let is_match = match known.kind.as_str() {
                "fanout" => true,
                "topic" => {
                    let words =
                        |text: &'_ str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
                    let (pattern, key) = (words(pattern), words(key));
                    let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
                    topic_matches(&pattern, &key.iter().map(String::as_str).collect::<Vec<_>>())
                }
                _ => pattern == key,
            };
            if is_match {
                match is_queue {
                    true => found.push(to.clone()),
                    false => found.extend(self.route(to, key)),
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// Removes a queue, its messages and its bindings.
    pub(crate) fn remove_queue(&mut self, name: &str) -> Option<QueueState> {
        // Another queue of the name does not get them.
        let channels = self.peers.values_mut().flat_map(|peer| peer.channels.values_mut());
        let unacked = channels.flat_map(|channel| channel.unacked.values_mut());
        for unacked in unacked.filter(|unacked| unacked.queue == name) {
            unacked.queue.clear();
        }
        for exchange in self.exchanges.values_mut() {
            exchange.routes.retain(|(to, is_queue, _)| !is_queue || to != name);
        }
        self.queues.remove(name)
    }

    pub(crate) fn put(&mut self, queue: &str, message: Message) {
        let now = self.now;
        let Some(state) = self.queues.get_mut(queue) else { return };
        let own = message.properties.expiration().as_ref().and_then(|ms| ms.as_str().parse().ok());
        let ttl = own.into_iter().chain(state.number("x-message-ttl")).min();
        let expires = ttl.map(|ms| now + Duration::from_millis(ms));
        state.make_ready(Stored { message, number: state.taken, deliveries: 0, expires });
        state.taken += 1;
        self.deliver(queue);
    }

    /// Delivers ready messages to consumers that have room.
    pub(crate) fn deliver(&mut self, queue: &str) {
        self.expire(queue);
        loop {
            let Some(state) = self.queues.get_mut(queue) else { return };
            if state.ready.is_empty() {
                return;
            }
            let mut consumer_with_room = None;
            for _ in 0..state.consumers.len() {
                let Some(consumer) = state.consumers.pop_front() else { break };
                state.consumers.push_back(consumer.clone());
                let channel = self.peers.get(&consumer.0).and_then(|p| p.channels.get(&consumer.1));
                let Some(channel) = channel.filter(|channel| !channel.is_closing) else { continue };
                let Some(known) = channel.consumers.get(&consumer.2) else { continue };
                let held = channel.unacked.values().filter(|u| u.consumer == consumer.2).count();
                if known.no_ack || known.prefetch == 0 || held < known.prefetch {
                    consumer_with_room = Some((consumer, known.no_ack));
                    break;
                }
            }
            let Some(((peer, number, tag), no_ack)) = consumer_with_room else { return };
            let Some(stored) = state.ready.pop_front() else { return };
            self.send(peer, number, &tag, queue, stored, no_ack);
        }
    }

    pub(crate) fn send(
        &mut self,
        peer: u64,
        number: u16,
        tag: &str,
        queue: &str,
        stored: Stored,
        no_ack: bool,
    ) {
        let is_quorum = self.queues.get(queue).is_some_and(QueueState::is_quorum);
        let Some(peer) = self.peers.get_mut(&peer) else { return };
        let Some(channel) = peer.channels.get_mut(&number) else { return };
        let delivery_tag = channel.take_tag();
        let deliver = basic::Deliver {
            consumer_tag: tag.into(),
            delivery_tag,
            redelivered: stored.deliveries > 0,
            exchange: stored.message.exchange.clone(),
            routing_key: stored.message.routing_key.clone(),
        };
        let method = AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver));
        append_content(&mut peer.output, number, method, &as_delivered(&stored, is_quorum));
        if !no_ack {
            if let Some(queue) = self.queues.get_mut(queue) {
                queue.unacked += 1;
            }
            let unacked = Unacked { queue: queue.to_owned(), consumer: tag.to_owned(), stored };
            channel.unacked.insert(delivery_tag, unacked);
        }
    }

    /// Requeues an unacknowledged message, or dead-letters it.
    pub(crate) fn reject(&mut self, unacked: Unacked, requeue: bool) {
        let Unacked { queue, mut stored, .. } = unacked;
        let Some(state) = self.queues.get_mut(&queue) else { return };
        state.unacked -= 1;
        stored.deliveries += 1;
        let limit = state.number("x-delivery-limit").filter(|_| state.is_quorum());
        match limit {
            Some(limit) if requeue && u64::from(stored.deliveries) > limit => {
                self.dead_letter(&queue, stored, "delivery_limit");
            }
            _ if requeue => state.make_ready(stored),
            _ => self.dead_letter(&queue, stored, "rejected"),
        }
    }

    fn dead_letter(&mut self, queue: &str, stored: Stored, reason: &str) {
        let Some(state) = self.queues.get(queue) else { return };
        let Some(exchange) = state.text("x-dead-letter-exchange") else { return };
        let mut message = stored.message;
        let key = state.text("x-dead-letter-routing-key");
        let key = key.unwrap_or_else(|| message.routing_key.to_string());
        let mut headers = message.properties.headers().clone().unwrap_or_default();
        if !headers.contains_key("x-first-death-queue") {
            headers.insert("x-first-death-queue".into(), Value::LongString(queue.into()));
            headers.insert("x-first-death-reason".into(), Value::LongString(reason.into()));
        }
        message.properties = without_expiration(&message.properties).with_headers(headers);
        let names = short(&exchange).and_then(|exchange| Ok((exchange, short(&key)?)));
        if let Ok((exchange, key)) = names {
            (message.exchange, message.routing_key) = (exchange, key);
        }
        for to in self.route(&exchange, &key) {
            self.put(&to, message.clone());
        }
    }

    /// Dead-letters the expired messages of a queue.
    pub(crate) fn expire(&mut self, queue: &str) {
        let now = self.now;
        let Some(state) = self.queues.get_mut(queue) else { return };
        let has_expired = |stored: &Stored| stored.expires.is_some_and(|at| at <= now);
        if !state.ready.iter().any(has_expired) {
            return;
        }
        let (expired, ready): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.ready).into_iter().partition(has_expired);
        state.ready = ready.into();
        for stored in expired {
            self.dead_letter(queue, stored, "expired");
        }
    }

    /// The time at which the next message expires.
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        let stored = self.queues.values().flat_map(|queue| &queue.ready);
        stored.filter_map(|stored| stored.expires).min()
    }

    /// Advances the time, and delivers to all queues.
    pub(crate) fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        for queue in self.queues.keys().cloned().collect::<Vec<_>>() {
            self.deliver(&queue);
        }
    }
}

impl ChannelState {
    /// The tag of the next delivery.
    pub(crate) fn take_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }
}

/// The message as a delivery. A quorum queue adds the number of earlier deliveries.
pub(crate) fn as_delivered(stored: &Stored, is_quorum: bool) -> Message {
    let mut message = stored.message.clone();
    if is_quorum && stored.deliveries > 0 {
        let mut headers = message.properties.headers().clone().unwrap_or_default();
        let count = Value::LongLongInt(stored.deliveries.into());
        headers.insert("x-delivery-count".into(), count);
        message.properties = message.properties.with_headers(headers);
    }
    message
}

/// The properties without the expiration: a dead-lettered message must not expire again.
fn without_expiration(properties: &Properties) -> Properties {
    let mut kept = Properties::default();
    macro_rules! keep {
        ($($get:ident $with:ident),*) => {$(
            if let Some(value) = properties.$get().clone() {
                kept = kept.$with(value);
            }
        )*};
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding,
        headers with_headers, delivery_mode with_delivery_mode, priority with_priority,
        correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, user_id with_user_id, app_id with_app_id
    );
    kept
}

pub(crate) fn append_content(
    output: &mut Vec<u8>,
    channel: u16,
    method: AMQPClass,
    message: &Message,
) {
    let header = AMQPFrame::Header(
        channel,
        AMQPContentHeader {
            class_id: method.get_amqp_class_id(),
            body_size: message.body.len() as u64,
            properties: message.properties.clone(),
        },
    );
    let queued = wire::append_method(output, channel, method, FRAME_MAX)
        // RabbitMQ does not split headers that it has made larger than a frame either.
        .and_then(|()| wire::append(output, &header, usize::MAX));
    assert!(queued.is_ok(), "a content that arrived can be encoded");
    wire::append_body(output, channel, &message.body, FRAME_MAX);
}
