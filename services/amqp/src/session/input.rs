//! Decodes the broker's bytes to frames, and turns frames into events.

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod octets_tests;

use std::mem;
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use amq_protocol::types::ShortString;

use super::channel::{Assembly, ChannelState, ContentOf, ids, reply_to};
use super::event::{Content, Ended, Event, Outcome, Reply};
use super::handshake::server_version;
use super::wire::{self, Frame, append_method};
use super::{Phase, Session};
use crate::error::{CloseReason, Error};
use crate::message::Properties;

/// No larger body is sent or taken: the highest `max_message_size` that RabbitMQ can be set to.
pub(super) const LARGEST_BODY: u64 = 512 * 1024 * 1024;
/// Room made for a body before it is there. A peer's claim alone should cost no memory.
const ROOM_AHEAD: u64 = 1024 * 1024;

/// Octets of replies and rejects that may be queued for a broker that does not read them.
const MAX_UNREAD_REPLIES: usize = 1024 * 1024;

fn violation(what: String) -> Error {
    Error::Protocol(what)
}

impl<T, P> Session<T, P> {
    /// Handles bytes from the broker.
    pub(crate) fn input(&mut self, bytes: &[u8], now: Duration) {
        self.last_received = now;
        if self.partial_frame.is_empty() {
            let used = self.handle_frames(bytes);
            self.partial_frame.extend_from_slice(&bytes[used..]);
        } else {
            let mut rest = mem::take(&mut self.partial_frame);
            rest.extend_from_slice(bytes);
            let used = self.handle_frames(&rest);
            rest.drain(..used);
            self.partial_frame = rest;
        }
    }

    /// Handles the complete frames at the beginning of the bytes, and returns their total length.
    fn handle_frames(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while self.phase != Phase::Over {
            let handled = match wire::split(&bytes[used..], self.limits.frame_max) {
                Ok(None) => return used,
                Ok(Some(raw)) => {
                    used += raw.length;
                    raw.decode().and_then(|frame| self.handle_frame(raw.channel, frame))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                self.fail(error);
            }
        }
        bytes.len()
    }

    fn handle_frame(&mut self, channel: u16, frame: Frame<'_>) -> Result<(), Error> {
        match frame {
            Frame::Heartbeat => Ok(()),
            Frame::Method(method) if channel == 0 => self.handle_connection_method(method),
            _ if channel == 0 => Err(Error::Protocol("content on channel 0".to_owned())),
            _ if !matches!(self.phase, Phase::Open | Phase::Closing) => {
                Err(Error::Protocol(format!("channel {channel} in the handshake")))
            }
            frame => self.handle_channel_frame(channel, frame),
        }
    }

    fn handle_connection_method(&mut self, method: AMQPClass) -> Result<(), Error> {
        use connection::AMQPMethod as M;
        let AMQPClass::Connection(method) = method else {
            return Err(Error::Protocol("a channel's method on channel 0".to_owned()));
        };
        match (self.phase, method) {
            (_, M::Close(close)) => {
                self.queue_connection(M::CloseOk(connection::CloseOk {}))?;
                let reason =
                    CloseReason { code: close.reply_code, text: close.reply_text.to_string() };
                let is_blamed = self.end_blamed((close.class_id, close.method_id), &reason);
                self.end(Ended::ByBroker { reason, is_blamed });
                Ok(())
            }
            (Phase::Closing, M::CloseOk(_)) => {
                self.end(Ended::ByUs);
                Ok(())
            }
            (Phase::Open | Phase::Closing, M::Blocked(blocked)) => {
                self.events.push_back(Event::Blocked(blocked.reason.to_string()));
                Ok(())
            }
            (Phase::Open | Phase::Closing, M::Unblocked(_)) => {
                self.events.push_back(Event::Unblocked);
                Ok(())
            }
            (Phase::Greeting, M::Start(start)) => {
                let ok = self.handshake_config.start_ok(&start)?;
                self.server_version = server_version(&start);
                self.phase = Phase::Tuning;
                self.queue_connection(M::StartOk(ok))
            }
            (Phase::Tuning, M::Tune(tune)) => {
                self.limits = self.handshake_config.agreed_limits(self.limits.frame_max, &tune)?;
                self.queue_connection(M::TuneOk(self.limits.tune_ok()))?;
                self.phase = Phase::Opening;
                let virtual_host = self.handshake_config.vhost.clone();
                self.queue_connection(M::Open(connection::Open { virtual_host }))
            }
            (Phase::Opening, M::OpenOk(_)) => {
                self.phase = Phase::Open;
                self.events.push_back(Event::Opened);
                Ok(())
            }
            (phase, method) => {
                let (class, id) = ids(&AMQPClass::Connection(method));
                Err(Error::Protocol(format!("method {class}.{id} while {phase:?}")))
            }
        }
    }

    fn handle_channel_frame(&mut self, number: u16, frame: Frame<'_>) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Err(violation(format!("channel {number}, which is not open")));
        };
        match (mem::replace(&mut channel.assembly, Assembly::None), frame) {
            (Assembly::None, Frame::Method(method)) => self.handle_method(number, method),
            // The broker may close the channel in the middle of a content.
            (_, Frame::Method(method @ AMQPClass::Channel(channel::AMQPMethod::Close(_)))) => {
                self.handle_method(number, method)
            }
            (Assembly::None, Frame::UnreadableMethod(method)) => {
                self.handle_method(number, method)?;
                let channel = self.channels.get_mut(&number);
                if let Some(Assembly::Header(of)) = channel.map(|channel| &mut channel.assembly) {
                    of.set_unreadable();
                }
                Ok(())
            }
            (Assembly::Header(mut of), Frame::Header(header)) => {
                of.set_properties(header.properties);
                self.start_body(number, of, header.body_size)
            }
            (Assembly::Header(mut of), Frame::UnreadableHeader { body_size }) => {
                of.set_unreadable();
                self.start_body(number, of, body_size)
            }
            (Assembly::Body { of, mut body, missing }, Frame::Body(part)) => {
                if part.len() as u64 > missing {
                    return Err(violation(format!(
                        "a body longer than announced on channel {number}"
                    )));
                }
                body.extend_from_slice(part);
                self.continue_body(number, of, body, missing - part.len() as u64)
            }
            (_, frame) => {
                Err(violation(format!("out of order on channel {number}: {}", frame.name())))
            }
        }
    }

    fn start_body(&mut self, number: u16, of: ContentOf, body_size: u64) -> Result<(), Error> {
        if body_size > LARGEST_BODY {
            return Err(violation(format!("a body of {body_size} bytes")));
        }
        let body = Vec::with_capacity(body_size.min(ROOM_AHEAD) as usize);
        self.continue_body(number, of, body, body_size)
    }

    fn continue_body(
        &mut self,
        number: u16,
        of: ContentOf,
        body: Vec<u8>,
        missing: u64,
    ) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        if missing > 0 {
            channel.assembly = Assembly::Body { of, body, missing };
            return Ok(());
        }
        match of {
            ContentOf::Return(returned) => channel.mark_return(returned.0, &returned.1, &body),
            ContentOf::Deliver { consumer, mut content } => {
                content.needs_ack =
                    !channel.consumers.iter().any(|(tag, no_ack)| *no_ack && *tag == consumer);
                if content.needs_ack {
                    if channel.awaits_reply((60, 110)) {
                        // On its way when all was to be taken back, and so is this.
                        return Ok(());
                    }
                    channel.add_unsettled(content.tag)?;
                }
                if content.is_unreadable {
                    return self.reject_unreadable(number, consumer.as_str(), &content);
                }
                content.body = body;
                self.events.push_back(Event::Delivered { channel: number, consumer, content });
            }
            ContentOf::Get(mut content) => {
                content.needs_ack = channel.pending.as_ref().is_some_and(|get| !get.is_no_ack);
                if content.needs_ack {
                    channel.add_unsettled(content.tag)?;
                }
                let reply = match content.is_unreadable {
                    true => {
                        self.reject_unreadable(number, "(a get)", &content)?;
                        Reply::Rejected
                    }
                    false => {
                        content.body = body;
                        Reply::Got(Some(content))
                    }
                };
                self.complete_request(number, reply);
            }
        }
        Ok(())
    }

    /// Rejects a message that cannot be read. Requeued, it would be delivered again without end.
    fn reject_unreadable(
        &mut self,
        number: u16,
        consumer: &str,
        content: &Content,
    ) -> Result<(), Error> {
        tracing::warn!(
            channel = number,
            consumer,
            tag = content.tag,
            "rejects a message whose names or properties are not UTF-8, or nested too deep"
        );
        match content.needs_ack {
            true => self.reject(number, content.tag, false),
            false => Ok(()),
        }
    }

    /// Reports the reply to the pending request, and sends the next request.
    fn complete_request(&mut self, number: u16, reply: Reply) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let Some(request) = channel.pending.take() else { return };
        let is_close = request.method == (20, 40);
        self.events.push_back(Event::Replied { token: request.token, result: Ok(reply) });
        match is_close {
            true => self.drop_channel(number, &Error::Closed),
            false => self.next_request(number),
        }
    }

    fn handle_method(&mut self, number: u16, method: AMQPClass) -> Result<(), Error> {
        use basic::AMQPMethod as B;
        use channel::AMQPMethod as C;
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        match method {
            AMQPClass::Basic(B::Deliver(deliver)) => {
                let basic::Deliver { delivery_tag, redelivered, exchange, routing_key, .. } =
                    deliver;
                let content = empty_content(delivery_tag, redelivered, exchange, routing_key);
                let consumer = deliver.consumer_tag;
                channel.assembly = Assembly::Header(ContentOf::Deliver { consumer, content });
            }
            AMQPClass::Basic(B::GetOk(get)) => {
                if !channel.awaits_reply((60, 70)) {
                    return Err(violation(format!("an unrequested message on channel {number}")));
                }
                let basic::GetOk { delivery_tag, redelivered, exchange, routing_key, .. } = get;
                let content = empty_content(delivery_tag, redelivered, exchange, routing_key);
                channel.assembly = Assembly::Header(ContentOf::Get(content));
            }
            AMQPClass::Basic(B::Return(why)) => {
                let properties = Properties::default();
                let returned = Box::new((why, properties));
                channel.assembly = Assembly::Header(ContentOf::Return(returned));
            }
            AMQPClass::Basic(B::Ack(ack)) => {
                return self.confirm(number, ack.delivery_tag, ack.multiple, true);
            }
            AMQPClass::Basic(B::Nack(nack)) => {
                return self.confirm(number, nack.delivery_tag, nack.multiple, false);
            }
            AMQPClass::Basic(B::Cancel(cancel)) => {
                channel.consumers.retain(|(tag, _)| *tag != cancel.consumer_tag);
                if !cancel.nowait {
                    let ok = basic::CancelOk { consumer_tag: cancel.consumer_tag.clone() };
                    self.send_reply(number, AMQPClass::Basic(B::CancelOk(ok)))?;
                }
                let consumer = cancel.consumer_tag;
                self.events.push_back(Event::ConsumerCancelled { channel: number, consumer });
            }
            AMQPClass::Channel(C::Flow(flow)) => {
                channel.is_paused = !flow.active;
                let ok = channel::FlowOk { active: flow.active };
                self.send_reply(number, AMQPClass::Channel(C::FlowOk(ok)))?;
                self.events.push_back(Event::Flow);
            }
            AMQPClass::Channel(C::Close(close)) => {
                return self.handle_channel_close(number, close);
            }
            method => return self.handle_reply(number, &method),
        }
        Ok(())
    }

    fn handle_reply(&mut self, number: u16, method: &AMQPClass) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let pending = channel.pending.as_ref().map(|request| request.method);
        let Some(reply) = pending.and_then(|request| reply_to(request, method)) else {
            let (class, id) = ids(method);
            return Err(violation(format!(
                "method {class}.{id} on channel {number}, where {pending:?} is pending"
            )));
        };
        match method {
            AMQPClass::Basic(basic::AMQPMethod::CancelOk(ok)) => {
                forget_consumer(channel, &ok.consumer_tag);
            }
            AMQPClass::Basic(basic::AMQPMethod::RecoverOk(_)) => {
                self.events.push_back(Event::Recovered { channel: number });
            }
            _ => {}
        }
        self.complete_request(number, reply);
        Ok(())
    }

    fn confirm(&mut self, number: u16, tag: u64, multiple: bool, ack: bool) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let events = &mut self.events;
        let mut has_publisher = true;
        channel.confirm(tag, multiple, ack, |token, outcome| match token {
            Some(token) => events.push_back(Event::Confirmed { token, outcome }),
            None => has_publisher = false,
        })?;
        if !has_publisher {
            // The message was abandoned, but publishers may wait for its place in the window.
            events.push_back(Event::Flow);
        }
        Ok(())
    }

    /// Replies to the broker, unless the channel is closing: the broker may have released the
    /// channel when it reads the reply, and would then close the connection.
    fn send_reply(&mut self, number: u16, method: AMQPClass) -> Result<(), Error> {
        if self.channels.get(&number).is_some_and(|channel| channel.is_closing) {
            return Ok(());
        }
        let before = self.output.len();
        append_method(&mut self.output, number, method, self.limits.frame_max)?;
        self.reply_bytes += self.output.len() - before;
        match self.reply_bytes <= MAX_UNREAD_REPLIES {
            true => Ok(()),
            false => Err(violation(format!("{} octets of replies unread", self.reply_bytes))),
        }
    }

    /// Requeues a delivery whose consumer is gone.
    pub(crate) fn requeue(&mut self, number: u16, tag: u64) {
        if let Err(error) = self.reject(number, tag, true) {
            self.fail(error);
        }
    }

    /// Rejects a delivery, unless it is settled already.
    fn reject(&mut self, number: u16, tag: u64, requeue: bool) -> Result<(), Error> {
        if !self.channels.get_mut(&number).is_some_and(|channel| channel.settle(tag)) {
            return Ok(());
        }
        let reject = basic::Reject { delivery_tag: tag, requeue };
        self.send_reply(number, AMQPClass::Basic(basic::AMQPMethod::Reject(reject)))
    }

    fn handle_channel_close(&mut self, number: u16, close: channel::Close) -> Result<(), Error> {
        let ok = AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}));
        append_method(&mut self.output, number, ok, self.limits.frame_max)?;
        let reason = CloseReason { code: close.reply_code, text: close.reply_text.to_string() };
        let error = close_error((close.class_id, close.method_id), &reason);
        if self.channels.get(&number).is_some_and(|channel| channel.awaits_reply((20, 40))) {
            // Both sides closed the channel; the broker's close-ok is still to come.
            return Ok(());
        }
        self.drop_channel(number, &error);
        self.events.push_back(Event::ChannelClosed { channel: number, reason });
        Ok(())
    }

    /// Ends the channels whose pending request has these ids, as if the broker had closed them: the
    /// broker closed the connection because of this method. Returns whether there was such a
    /// channel.
    fn end_blamed(&mut self, method: (u16, u16), reason: &CloseReason) -> bool {
        let waiting = self.channels.iter().filter(|(_, channel)| channel.awaits_reply(method));
        let blamed: Vec<u16> = waiting.map(|(&number, _)| number).collect();
        for &channel in &blamed {
            self.drop_channel(channel, &close_error(method, reason));
            self.events.push_back(Event::ChannelClosed { channel, reason: reason.clone() });
        }
        !blamed.is_empty()
    }

    /// Removes a channel, and fails its requests and unconfirmed messages.
    fn drop_channel(&mut self, number: u16, error: &Error) {
        let Some(channel) = self.channels.remove(&number) else { return };
        let (requests, unconfirmed) = channel.into_unanswered();
        for token in requests {
            self.events.push_back(Event::Replied { token, result: Err(error.clone()) });
        }
        for (_, token) in unconfirmed {
            let outcome = Outcome::Unknown(error.clone());
            self.events.push_back(Event::Confirmed { token, outcome });
        }
        self.events.push_back(Event::NumberFreed);
    }
}

/// A content without properties and body, which follow in other frames.
fn empty_content(
    tag: u64,
    redelivered: bool,
    exchange: ShortString,
    routing_key: ShortString,
) -> Box<Content> {
    let (properties, body) = (Properties::default(), Vec::new());
    let (needs_ack, is_unreadable) = (true, false);
    Box::new(Content {
        tag,
        needs_ack,
        is_unreadable,
        redelivered,
        exchange,
        routing_key,
        properties,
        body,
    })
}

/// The error for a request that the broker answers by closing the channel or connection.
fn close_error(method: (u16, u16), reason: &CloseReason) -> Error {
    match (reason.code, method) {
        (540, (60, 10 | 20)) => Error::NoGlobalQos(reason.clone()),
        _ => Error::ChannelClosed(reason.clone()),
    }
}

fn forget_consumer<T, P>(channel: &mut ChannelState<T, P>, consumer: &ShortString) {
    channel.consumers.retain(|(tag, _)| tag != consumer);
}
