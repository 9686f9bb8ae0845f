//! What the broker sends: bytes to frames, and frames to events.

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod octets_tests;

use std::mem;
use std::time::Duration;

use amq_protocol::protocol::{AMQPClass, basic, channel, connection};
use amq_protocol::types::ShortString;

use super::channel::{Assembly, ChannelState, ContentOf, answer, ids};
use super::event::{Content, Ended, Event, Outcome, Reply};
use super::wire::{self, Frame, append_method};
use super::{Phase, Session};
use crate::error::{CloseReason, Error};
use crate::message::Properties;

/// No larger body is sent or taken: the highest `max_message_size` that RabbitMQ can be set to.
pub(super) const LARGEST_BODY: u64 = 512 * 1024 * 1024;
/// Room made for a body before it is there. A peer's claim alone should cost no memory.
const ROOM_AHEAD: u64 = 1024 * 1024;

/// So many octets of answers, and of refusals, may wait for a broker that asks and does not read.
const MOST_ANSWERS: usize = 1024 * 1024;

fn wrong(what: String) -> Error {
    Error::Protocol(what)
}

impl<T, P> Session<T, P> {
    /// Takes what came from the broker.
    pub(crate) fn input(&mut self, bytes: &[u8], now: Duration) {
        self.last_received = now;
        if self.rest.is_empty() {
            let used = self.frames(bytes);
            self.rest.extend_from_slice(&bytes[used..]);
        } else {
            let mut rest = mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let used = self.frames(&rest);
            rest.drain(..used);
            self.rest = rest;
        }
    }

    /// Handles the whole frames at the beginning of the bytes, and tells how many bytes that were.
    fn frames(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while self.phase != Phase::Over {
            let handled = match wire::split(&bytes[used..], self.limits.frame_max) {
                Ok(None) => return used,
                Ok(Some(raw)) => {
                    used += raw.length;
                    raw.decode().and_then(|frame| self.frame(raw.channel, frame))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                self.fail(error);
            }
        }
        bytes.len()
    }

    fn frame(&mut self, channel: u16, frame: Frame<'_>) -> Result<(), Error> {
        match frame {
            Frame::Heartbeat => Ok(()),
            Frame::Method(method) if channel == 0 => self.connection_method(method),
            _ if channel == 0 => Err(Error::Protocol("content on channel 0".to_owned())),
            _ if !matches!(self.phase, Phase::Open | Phase::Closing) => {
                Err(Error::Protocol(format!("channel {channel} in the handshake")))
            }
            frame => self.channel_frame(channel, frame),
        }
    }

    fn connection_method(&mut self, method: AMQPClass) -> Result<(), Error> {
        use connection::AMQPMethod as M;
        let AMQPClass::Connection(method) = method else {
            return Err(Error::Protocol("a channel's method on channel 0".to_owned()));
        };
        match (self.phase, method) {
            (_, M::Close(close)) => {
                self.queue_connection(M::CloseOk(connection::CloseOk {}))?;
                let reason =
                    CloseReason { code: close.reply_code, text: close.reply_text.to_string() };
                let is_blamed = self.blame((close.class_id, close.method_id), &reason);
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
                let ok = self.greeter.start_ok(&start)?;
                self.phase = Phase::Tuning;
                self.queue_connection(M::StartOk(ok))
            }
            (Phase::Tuning, M::Tune(tune)) => {
                self.limits = self.greeter.agree(self.limits.frame_max, &tune)?;
                self.queue_connection(M::TuneOk(self.limits.tune_ok()))?;
                self.phase = Phase::Opening;
                let virtual_host = self.greeter.vhost.clone();
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

    fn channel_frame(&mut self, number: u16, frame: Frame<'_>) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else {
            return Err(wrong(format!("channel {number}, which is not open")));
        };
        match (mem::replace(&mut channel.assembly, Assembly::None), frame) {
            (Assembly::None, Frame::Method(method)) => self.method(number, method),
            // The broker may give up in the middle of a content.
            (_, Frame::Method(method @ AMQPClass::Channel(channel::AMQPMethod::Close(_)))) => {
                self.method(number, method)
            }
            (Assembly::None, Frame::UnreadableMethod(method)) => {
                self.method(number, method)?;
                let channel = self.channels.get_mut(&number);
                if let Some(Assembly::Header(of)) = channel.map(|channel| &mut channel.assembly) {
                    of.set_unreadable();
                }
                Ok(())
            }
            (Assembly::Header(mut of), Frame::Header(header)) => {
                of.set_properties(header.properties);
                self.content_header(number, of, header.body_size)
            }
            (Assembly::Header(mut of), Frame::UnreadableHeader { body_size }) => {
                of.set_unreadable();
                self.content_header(number, of, body_size)
            }
            (Assembly::Body { of, mut body, missing }, Frame::Body(part)) => {
                if part.len() as u64 > missing {
                    return Err(wrong(format!("a body longer than it said on channel {number}")));
                }
                body.extend_from_slice(part);
                self.content_body(number, of, body, missing - part.len() as u64)
            }
            (_, frame) => Err(wrong(format!("out of order on channel {number}: {}", frame.what()))),
        }
    }

    fn content_header(&mut self, number: u16, of: ContentOf, body_size: u64) -> Result<(), Error> {
        if body_size > LARGEST_BODY {
            return Err(wrong(format!("a body of {body_size} bytes")));
        }
        let body = Vec::with_capacity(body_size.min(ROOM_AHEAD) as usize);
        self.content_body(number, of, body, body_size)
    }

    fn content_body(
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
            ContentOf::Return(returned) => channel.returned(returned.0, &returned.1, &body),
            ContentOf::Deliver { consumer, mut content } => {
                content.is_owed =
                    !channel.consumers.iter().any(|(tag, no_ack)| *no_ack && *tag == consumer);
                if content.is_owed {
                    if channel.has_asked((60, 110)) {
                        // On its way when all was to be taken back, and so is this.
                        return Ok(());
                    }
                    channel.owe(content.tag)?;
                }
                if content.is_unreadable {
                    return self.reject_unreadable(number, consumer.as_str(), &content);
                }
                content.body = body;
                self.events.push_back(Event::Delivered { channel: number, consumer, content });
            }
            ContentOf::Get(mut content) => {
                content.is_owed = channel.asked.as_ref().is_some_and(|asked| !asked.is_free);
                if content.is_owed {
                    channel.owe(content.tag)?;
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
                self.answered(number, reply);
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
        match content.is_owed {
            true => self.reject(number, content.tag, false),
            false => Ok(()),
        }
    }

    /// The answer to what was asked last on the channel.
    fn answered(&mut self, number: u16, reply: Reply) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let Some(asked) = channel.asked.take() else { return };
        let is_farewell = asked.method == (20, 40);
        self.events.push_back(Event::Replied { token: asked.token, result: Ok(reply) });
        match is_farewell {
            true => self.drop_channel(number, &Error::Closed),
            false => self.next_request(number),
        }
    }

    fn method(&mut self, number: u16, method: AMQPClass) -> Result<(), Error> {
        use basic::AMQPMethod as B;
        use channel::AMQPMethod as C;
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        match method {
            AMQPClass::Basic(B::Deliver(deliver)) => {
                let basic::Deliver { delivery_tag, redelivered, exchange, routing_key, .. } =
                    deliver;
                let content = content(delivery_tag, redelivered, exchange, routing_key);
                let consumer = deliver.consumer_tag;
                channel.assembly = Assembly::Header(ContentOf::Deliver { consumer, content });
            }
            AMQPClass::Basic(B::GetOk(get)) => {
                if !channel.has_asked((60, 70)) {
                    return Err(wrong(format!("a message nobody asked for on channel {number}")));
                }
                let basic::GetOk { delivery_tag, redelivered, exchange, routing_key, .. } = get;
                let content = content(delivery_tag, redelivered, exchange, routing_key);
                channel.assembly = Assembly::Header(ContentOf::Get(content));
            }
            AMQPClass::Basic(B::Return(why)) => {
                let properties = Properties::default();
                let returned = Box::new((why, properties));
                channel.assembly = Assembly::Header(ContentOf::Return(returned));
            }
            AMQPClass::Basic(B::Ack(ack)) => {
                return self.confirmed(number, ack.delivery_tag, ack.multiple, true);
            }
            AMQPClass::Basic(B::Nack(nack)) => {
                return self.confirmed(number, nack.delivery_tag, nack.multiple, false);
            }
            AMQPClass::Basic(B::Cancel(cancel)) => {
                channel.consumers.retain(|(tag, _)| *tag != cancel.consumer_tag);
                if !cancel.nowait {
                    let ok = basic::CancelOk { consumer_tag: cancel.consumer_tag.clone() };
                    self.say(number, AMQPClass::Basic(B::CancelOk(ok)))?;
                }
                let consumer = cancel.consumer_tag;
                self.events.push_back(Event::ConsumerCancelled { channel: number, consumer });
            }
            AMQPClass::Channel(C::Flow(flow)) => {
                channel.is_paused = !flow.active;
                let ok = channel::FlowOk { active: flow.active };
                self.say(number, AMQPClass::Channel(C::FlowOk(ok)))?;
                self.events.push_back(Event::Flow);
            }
            AMQPClass::Channel(C::Close(close)) => {
                return self.closed_by_broker(number, close);
            }
            method => return self.reply(number, &method),
        }
        Ok(())
    }

    fn reply(&mut self, number: u16, method: &AMQPClass) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let asked = channel.asked.as_ref().map(|asked| asked.method);
        let Some(reply) = asked.and_then(|asked| answer(asked, method)) else {
            let (class, id) = ids(method);
            return Err(wrong(format!(
                "method {class}.{id} on channel {number}, where {asked:?} was asked"
            )));
        };
        match method {
            AMQPClass::Basic(basic::AMQPMethod::CancelOk(ok)) => {
                forget_consumer(channel, &ok.consumer_tag);
            }
            AMQPClass::Basic(basic::AMQPMethod::RecoverOk(_)) => {
                self.events.push_back(Event::TakenBack { channel: number });
            }
            _ => {}
        }
        self.answered(number, reply);
        Ok(())
    }

    fn confirmed(&mut self, number: u16, tag: u64, multiple: bool, ack: bool) -> Result<(), Error> {
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let events = &mut self.events;
        let mut is_told = true;
        channel.confirm(tag, multiple, ack, |token, outcome| match token {
            Some(token) => events.push_back(Event::Confirmed { token, outcome }),
            None => is_told = false,
        })?;
        if !is_told {
            // Nobody waits for it, but for the room that it took.
            events.push_back(Event::Flow);
        }
        Ok(())
    }

    /// Answers the broker. Of a channel that is being closed it wants to know no more: it may have
    /// forgotten it when it reads this, and then would close the connection.
    fn say(&mut self, number: u16, method: AMQPClass) -> Result<(), Error> {
        if self.channels.get(&number).is_some_and(|channel| channel.is_closing) {
            return Ok(());
        }
        let before = self.output.len();
        append_method(&mut self.output, number, method, self.limits.frame_max)?;
        self.answers += self.output.len() - before;
        match self.answers <= MOST_ANSWERS {
            true => Ok(()),
            false => Err(wrong(format!("it has {} octets of answers to read", self.answers))),
        }
    }

    /// Gives back a delivery that nobody here takes.
    pub(crate) fn give_back(&mut self, number: u16, tag: u64) {
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
        self.say(number, AMQPClass::Basic(basic::AMQPMethod::Reject(reject)))
    }

    fn closed_by_broker(&mut self, number: u16, close: channel::Close) -> Result<(), Error> {
        let ok = AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}));
        append_method(&mut self.output, number, ok, self.limits.frame_max)?;
        let reason = CloseReason { code: close.reply_code, text: close.reply_text.to_string() };
        let error = refusal((close.class_id, close.method_id), &reason);
        if self.channels.get(&number).is_some_and(|channel| channel.has_asked((20, 40))) {
            // Both ends have closed it; the answer to ours is still to come.
            return Ok(());
        }
        self.drop_channel(number, &error);
        self.events.push_back(Event::ChannelClosed { channel: number, reason });
        Ok(())
    }

    /// The broker closes the connection for what was asked on a channel. Only who asked has to do with
    /// it: for them it is as if the channel had been closed. `false`: nobody asked.
    fn blame(&mut self, method: (u16, u16), reason: &CloseReason) -> bool {
        let asked = self.channels.iter().filter(|(_, channel)| channel.has_asked(method));
        let blamed: Vec<u16> = asked.map(|(&number, _)| number).collect();
        for &channel in &blamed {
            self.drop_channel(channel, &refusal(method, reason));
            self.events.push_back(Event::ChannelClosed { channel, reason: reason.clone() });
        }
        !blamed.is_empty()
    }

    /// Tells all who wait for the channel that it has ended.
    fn drop_channel(&mut self, number: u16, error: &Error) {
        let Some(channel) = self.channels.remove(&number) else { return };
        let (requests, unconfirmed) = channel.dismantle();
        for token in requests {
            self.events.push_back(Event::Replied { token, result: Err(error.clone()) });
        }
        for (_, token) in unconfirmed {
            let outcome = Outcome::Unknown(error.clone());
            self.events.push_back(Event::Confirmed { token, outcome });
        }
        self.events.push_back(Event::NumberFree);
    }
}

/// What comes in next.
fn content(
    tag: u64,
    redelivered: bool,
    exchange: ShortString,
    routing_key: ShortString,
) -> Box<Content> {
    let (properties, body) = (Properties::default(), Vec::new());
    let (is_owed, is_unreadable) = (true, false);
    Box::new(Content {
        tag,
        is_owed,
        is_unreadable,
        redelivered,
        exchange,
        routing_key,
        properties,
        body,
    })
}

/// What the broker's reason for not doing something is to whoever asked for it.
fn refusal(method: (u16, u16), reason: &CloseReason) -> Error {
    match (reason.code, method) {
        (540, (60, 10 | 20)) => Error::NoGlobalQos(reason.clone()),
        _ => Error::ChannelClosed(reason.clone()),
    }
}

fn forget_consumer<T, P>(channel: &mut ChannelState<T, P>, consumer: &ShortString) {
    channel.consumers.retain(|(tag, _)| tag != consumer);
}
