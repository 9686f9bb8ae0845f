//! The connections of the broker: frames, handshake, channels, errors.

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};

use super::queues::{FRAME_MAX, append_content};
use super::{ChannelState, Incoming, Peer, State, Stored};
use pikake_amqp::Error;
use pikake_amqp::wire::REPLY_TO;
use pikake_amqp::wire::{self, Frame};
use pikake_amqp::{Message, Properties, Table, Value};

/// The refusal of a request, which closes the channel, or the connection if `is_hard`.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) text: String,
    pub(crate) is_hard: bool,
}

pub(crate) fn refuse<T>(code: u16, text: String) -> Result<T, Refusal> {
    Err(Refusal { code, text, is_hard: false })
}

impl State {
    pub(crate) fn connect(&mut self) -> u64 {
        self.next_peer += 1;
        self.peers.insert(self.next_peer, Peer::default());
        self.next_peer
    }

    /// The open channels of a connection.
    pub(crate) fn channels_of(&self, id: u64) -> Vec<u16> {
        self.peers.get(&id).map(|peer| peer.channels.keys().copied().collect()).unwrap_or_default()
    }

    /// Removes a connection, requeues its messages, and deletes its exclusive queues.
    pub(crate) fn disconnect(&mut self, id: u64) {
        for number in self.channels_of(id) {
            self.end_channel(id, number);
        }
        self.peers.remove(&id);
        let exclusive = self.queues.iter().filter(|(_, queue)| queue.owner == Some(id));
        for name in exclusive.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove_queue(&name);
        }
    }

    pub(crate) fn input(&mut self, id: u64, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.rest.extend_from_slice(bytes);
        if !peer.is_greeted && peer.rest.len() >= wire::PROTOCOL_HEADER.len() {
            let rest = peer.rest.split_off(wire::PROTOCOL_HEADER.len());
            let header = std::mem::replace(&mut peer.rest, rest);
            peer.is_greeted = true;
            if header != wire::PROTOCOL_HEADER {
                peer.output.extend(wire::PROTOCOL_HEADER);
                peer.is_ended = true;
                return;
            }
            let start = connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: Table::default(),
                mechanisms: "PLAIN".into(),
                locales: "en_US".into(),
            };
            self.send_method(id, 0, AMQPClass::Connection(connection::AMQPMethod::Start(start)));
        }
        self.handle_frames(id);
    }

    /// Handles all complete frames.
    pub(crate) fn handle_frames(&mut self, id: u64) {
        loop {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            if peer.is_ended || peer.is_paused || !peer.is_greeted {
                return;
            }
            let rest = std::mem::take(&mut peer.rest);
            let mut used = 0;
            let result = match wire::split(&rest, FRAME_MAX) {
                Ok(None) => None,
                Ok(Some(raw)) => {
                    used = raw.length;
                    Some(raw.decode_any().map(|frame| (raw.channel, frame)))
                }
                Err(error) => Some(Err(error)),
            };
            if let (
                Some(reason),
                Some(Ok((_, Frame::Method(AMQPClass::Basic(basic::AMQPMethod::Publish(_)))))),
            ) = (self.blocked.clone(), &result)
            {
                peer.is_paused = true;
                peer.rest = rest;
                let reason = connection::Blocked { reason: reason.as_str().into() };
                self.send_method(
                    id,
                    0,
                    AMQPClass::Connection(connection::AMQPMethod::Blocked(reason)),
                );
                return;
            }
            match result {
                None => {
                    peer.rest = rest;
                    return;
                }
                Some(Ok((number, frame))) => self.handle_frame(id, number, frame),
                Some(Err(error)) => self.close_connection(id, 501, &error.to_string(), (0, 0)),
            }
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.rest = rest[used..].to_vec();
            }
        }
    }

    fn handle_frame(&mut self, id: u64, number: u16, frame: Frame<'_>) {
        match frame {
            Frame::Heartbeat => {}
            Frame::Method(AMQPClass::Connection(method)) => self.connection_request(id, method),
            Frame::Method(AMQPClass::Channel(method)) => self.channel_request(id, number, method),
            Frame::Method(method) => {
                let ids = (method.get_amqp_class_id(), method.get_amqp_method_id());
                match self.channel(id, number) {
                    None => self.close_connection(id, 504, "CHANNEL_ERROR - not open", ids),
                    Some(channel) if channel.is_closing => {}
                    Some(_) => match self.request(id, number, method) {
                        Ok(Some(reply)) => self.send_method(id, number, reply),
                        Ok(None) => {}
                        Err(why) => self.refuse_request(id, number, why, ids),
                    },
                }
            }
            Frame::UnreadableMethod(_) | Frame::UnreadableHeader { .. } => {
                self.close_connection(id, 501, "FRAME_ERROR - not UTF-8", (0, 0));
            }
            Frame::Header(header) => {
                let Some(incoming) = self.incoming(id, number) else { return };
                incoming.message.properties = header.properties;
                incoming.missing = header.body_size;
                incoming.has_header = true;
                self.finish_message(id, number);
            }
            Frame::Body(part) => {
                let Some(incoming) = self.incoming(id, number) else { return };
                incoming.message.body.extend_from_slice(part);
                incoming.missing = incoming.missing.saturating_sub(part.len() as u64);
                self.finish_message(id, number);
            }
        }
    }

    pub(crate) fn channel(&mut self, id: u64, number: u16) -> Option<&mut ChannelState> {
        self.peers.get_mut(&id)?.channels.get_mut(&number)
    }

    fn incoming(&mut self, id: u64, number: u16) -> Option<&mut Incoming> {
        self.channel(id, number)?.incoming.as_mut()
    }

    fn refuse_request(&mut self, id: u64, number: u16, why: Refusal, ids: (u16, u16)) {
        if why.is_hard {
            return self.close_connection(id, why.code, &why.text, ids);
        }
        self.end_channel(id, number);
        if let Some(peer) = self.peers.get_mut(&id) {
            let closing = ChannelState { is_closing: true, ..ChannelState::default() };
            peer.channels.insert(number, closing);
        }
        let close = channel::Close {
            reply_code: why.code,
            reply_text: why.text.as_str().into(),
            class_id: ids.0,
            method_id: ids.1,
        };
        self.send_method(id, number, AMQPClass::Channel(channel::AMQPMethod::Close(close)));
    }

    pub(crate) fn close_connection(&mut self, id: u64, code: u16, text: &str, ids: (u16, u16)) {
        let text: String = text.chars().take(200).collect();
        let close = connection::Close {
            reply_code: code,
            reply_text: text.as_str().into(),
            class_id: ids.0,
            method_id: ids.1,
        };
        self.send_method(id, 0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.is_ended = true;
        }
    }

    pub(crate) fn send_method(&mut self, id: u64, number: u16, method: AMQPClass) {
        if let Some(peer) = self.peers.get_mut(&id) {
            let queued = wire::append_method(&mut peer.output, number, method, FRAME_MAX);
            assert!(queued.is_ok(), "the method fits into a frame");
        }
    }

    fn connection_request(&mut self, id: u64, method: connection::AMQPMethod) {
        use connection::AMQPMethod as M;
        let reply = match method {
            M::StartOk(start) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    let properties = start.client_properties.inner();
                    peer.accepts_cancel = match properties.get("capabilities") {
                        Some(Value::FieldTable(capabilities)) => {
                            capabilities.inner().get("consumer_cancel_notify")
                                == Some(&Value::Boolean(true))
                        }
                        _ => false,
                    };
                }
                M::Tune(connection::Tune {
                    channel_max: self.channel_max.unwrap_or(2047),
                    frame_max: FRAME_MAX as u32,
                    heartbeat: 60,
                })
            }
            M::Open(_) => M::OpenOk(connection::OpenOk {}),
            M::Close(_) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.is_ended = true;
                }
                M::CloseOk(connection::CloseOk {})
            }
            _ => return,
        };
        self.send_method(id, 0, AMQPClass::Connection(reply));
    }

    fn channel_request(&mut self, id: u64, number: u16, method: channel::AMQPMethod) {
        use channel::AMQPMethod as M;
        let reply = match method {
            M::Open(_) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.channels.insert(number, ChannelState::default());
                }
                M::OpenOk(channel::OpenOk {})
            }
            M::Close(_) => {
                self.end_channel(id, number);
                M::CloseOk(channel::CloseOk {})
            }
            M::CloseOk(_) => return self.end_channel(id, number),
            M::Flow(channel::Flow { active: true }) => M::FlowOk(channel::FlowOk { active: true }),
            M::Flow(_) => {
                let text = "NOT_IMPLEMENTED - active=false";
                return self.close_connection(id, 540, text, (20, 20));
            }
            _ => return,
        };
        self.send_method(id, number, AMQPClass::Channel(reply));
    }

    /// Removes a channel, and requeues its messages.
    pub(crate) fn end_channel(&mut self, id: u64, number: u16) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(channel) = peer.channels.remove(&number) else { return };
        let mut queues = Vec::new();
        for unacked in channel.unacked.into_values() {
            queues.push(unacked.queue.clone());
            self.reject(unacked, true);
        }
        for (tag, consumer) in channel.consumers {
            self.forget_consumer(id, number, &tag, &consumer.queue);
        }
        queues.iter().for_each(|queue| self.deliver(queue));
    }

    pub(crate) fn forget_consumer(&mut self, id: u64, number: u16, tag: &str, queue: &str) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        state.consumers.retain(|key| (key.0, key.1, key.2.as_str()) != (id, number, tag));
        if state.consumers.is_empty() {
            state.has_exclusive_consumer = false;
            if state.auto_delete {
                self.remove_queue(queue);
            }
        }
    }

    /// Accepts and confirms the incoming message if it is complete.
    fn finish_message(&mut self, id: u64, number: u16) {
        let Some(channel) = self.channel(id, number) else { return };
        let Some(incoming) = channel.incoming.take_if(|i| i.has_header && i.missing == 0) else {
            return;
        };
        let message = incoming.message;
        let confirm = channel.published.as_mut().map(|count| {
            *count += 1;
            *count
        });
        if !message.exchange.as_str().is_empty()
            && !self.exchanges.contains_key(message.exchange.as_str())
        {
            let text = format!("NOT_FOUND - no exchange '{}' in vhost '/'", message.exchange);
            let refusal = Refusal { code: 404, text, is_hard: false };
            return self.refuse_request(id, number, refusal, (60, 40));
        }
        if has_direct_reply_to(&message)
            && self.channel(id, number).is_some_and(|c| c.direct_reply_consumer.is_none())
        {
            let text = "PRECONDITION_FAILED - fast reply consumer does not exist".to_owned();
            let refusal = Refusal { code: 406, text, is_hard: false };
            return self.refuse_request(id, number, refusal, (60, 40));
        }
        if breaks_direct_reply(&message) {
            return self.close_connection(id, 541, "INTERNAL_ERROR", (0, 0));
        }
        let queues = self.route(message.exchange.as_str(), message.routing_key.as_str());
        let is_held = queues.iter().any(|queue| self.held_confirms.contains(queue));
        self.accept_message(id, number, message);
        if let Some(delivery_tag) = confirm.filter(|_| !is_held) {
            let ack = basic::Ack { delivery_tag, multiple: false };
            self.send_method(id, number, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)));
        }
    }

    fn accept_message(&mut self, id: u64, number: u16, mut message: Message) {
        if has_direct_reply_to(&message) {
            let to = format!("{REPLY_TO}.{PROCESS}.{id}-{number}");
            message.properties = message.properties.with_reply_to(to.as_str().into());
        }
        let key = message.routing_key.as_str();
        if let Some(to) = parse_direct_reply(key) {
            if let Some((peer, channel)) = to {
                let tag = self
                    .channel(peer, channel)
                    .and_then(|channel| channel.direct_reply_consumer.clone());
                if let Some(tag) = tag {
                    let stored = Stored { message, number: 0, deliveries: 0, expires: None };
                    self.send(peer, channel, &tag, "", stored, true);
                }
            }
            return;
        }
        let queues = self.route(message.exchange.as_str(), key);
        if queues.is_empty() && message.mandatory {
            let why = basic::Return {
                reply_code: 312,
                reply_text: "NO_ROUTE".into(),
                exchange: message.exchange.clone(),
                routing_key: message.routing_key.clone(),
            };
            let method = AMQPClass::Basic(basic::AMQPMethod::Return(why));
            if let Some(peer) = self.peers.get_mut(&id) {
                append_content(&mut peer.output, number, method, &message);
            }
        }
        for queue in queues {
            self.put(&queue, message.clone());
        }
    }
}

fn has_direct_reply_to(message: &Message) -> bool {
    message.properties.reply_to().as_ref().is_some_and(|to| to.as_str() == REPLY_TO)
}

/// The process that this broker's names of direct reply-to name, in RabbitMQ's form; connection and
/// channel are in the key behind it.
const PROCESS: &str = "g1h3B3JlcGx5QDEAAAABAAAAAAAAAAE=";

/// The connection and the channel that a name of direct reply-to stands for, if the key begins like
/// such a name; they are `None` if this broker has not given it.
fn parse_direct_reply(key: &str) -> Option<Option<(u64, u16)>> {
    let process = key.strip_prefix(REPLY_TO)?.strip_prefix('.')?;
    let to = process.strip_prefix(PROCESS).and_then(|key| key.strip_prefix('.'));
    let to = to.and_then(|to| to.split_once('-'));
    Some(to.and_then(|(p, c)| Some((p.parse().ok()?, c.parse().ok()?))))
}

/// RabbitMQ 3.10 has an internal error at a name that is malformed, or of a node that is not
/// running.
fn breaks_direct_reply(message: &Message) -> bool {
    parse_direct_reply(message.routing_key.as_str()) == Some(None)
}

/// A message without its content.
pub(crate) fn incoming(publish: basic::Publish) -> Incoming {
    let message = Message {
        exchange: publish.exchange,
        routing_key: publish.routing_key,
        properties: Properties::default(),
        body: Vec::new(),
        mandatory: publish.mandatory,
    };
    Incoming { message, missing: 0, has_header: false }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { code: 501, text: error.to_string(), is_hard: true }
    }
}
