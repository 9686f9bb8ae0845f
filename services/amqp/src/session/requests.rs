//! Requests, messages and acknowledgements of the client, each on a channel.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, basic, channel, exchange, queue};

use super::channel::{ChannelState, PendingRequest, QueuedRequest, ids};
use super::input::LARGEST_BODY;
use super::wire::DEEPEST_TABLE;
use super::{Phase, Session, wire};
use crate::error::Error;
use crate::message::{Message, Table, Value};
use crate::reply_name::is_malformed_reply_to;

impl<T, P> Session<T, P> {
    /// Whether all agreed channel numbers are in use.
    pub(crate) fn is_full(&self) -> bool {
        self.channels.len() >= usize::from(self.limits.channel_max)
    }

    /// Opens a channel under the lowest free number.
    pub(crate) fn open_channel(&mut self, token: T) -> Result<u16, (Error, T)> {
        let free = (1..=self.limits.channel_max).find(|n| !self.channels.contains_key(n));
        let Some(number) = free else {
            let most = self.limits.channel_max;
            return Err((Error::Invalid(format!("all {most} agreed channels are in use")), token));
        };
        self.channels.insert(number, ChannelState::new());
        let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
        self.request(number, open, token).map(|()| number)
    }

    /// Queues a request on a channel, and sends it once the requests before it have their replies.
    ///
    /// [`Event::Replied`](super::event::Event::Replied) returns the token; an error returns it at
    /// once.
    pub(crate) fn request(
        &mut self,
        number: u16,
        method: AMQPClass,
        token: T,
    ) -> Result<(), (Error, T)> {
        let is_open = self.phase == Phase::Open;
        let channel = match self.channels.get_mut(&number) {
            Some(channel) if is_open && !channel.is_closing => channel,
            _ => return Err((Error::Closed, token)),
        };
        if let Some(Err(error)) = arguments(&method).map(check_table) {
            return Err((error, token));
        }
        let is_no_ack = matches!(&method, AMQPClass::Basic(basic::AMQPMethod::Get(g)) if g.no_ack);
        let request = PendingRequest { method: ids(&method), is_no_ack, token };
        let consumer = match &method {
            AMQPClass::Basic(basic::AMQPMethod::Consume(consume)) => {
                Some((consume.consumer_tag.clone(), consume.no_ack))
            }
            _ => None,
        };
        let mut bytes = Vec::new();
        let is_next = channel.pending.is_none();
        let to = if is_next { &mut self.output } else { &mut bytes };
        if is_next {
            channel.prepare(request.method, number, to);
        }
        if let Err(error) = wire::append_method(to, number, method, self.limits.frame_max) {
            return Err((error, request.token));
        }
        channel.consumers.extend(consumer);
        channel.is_closing = request.method == (20, 40);
        match is_next {
            true => channel.pending = Some(request),
            false => channel.queue.push_back(QueuedRequest { bytes, request }),
        }
        Ok(())
    }

    /// Sends the next queued request of a channel that has no pending one.
    pub(super) fn next_request(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if let Some(queued) = channel.queue.pop_front() {
            channel.prepare(queued.request.method, number, &mut self.output);
            self.output.extend_from_slice(&queued.bytes);
            channel.pending = Some(queued.request);
        }
    }

    /// Requests channel.close.
    pub(crate) fn close_channel(&mut self, number: u16, token: T) -> Result<(), (Error, T)> {
        let close = channel::Close {
            reply_code: 200,
            reply_text: "goodbye".into(),
            class_id: 0,
            method_id: 0,
        };
        self.request(number, AMQPClass::Channel(channel::AMQPMethod::Close(close)), token)
    }

    /// Puts the channel into confirm mode. Call this together with the request confirm.select: the
    /// broker counts messages published after that request, even before its reply.
    pub(crate) fn enable_confirms(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.confirms = true;
        }
    }

    /// Queues a message. The token comes back in an event in confirm mode, otherwise at once.
    pub(crate) fn publish(
        &mut self,
        number: u16,
        mut message: Box<Message>,
        token: P,
    ) -> Result<Option<P>, (Error, Box<Message>, P)> {
        let is_open = self.phase == Phase::Open;
        let channel = match self.channels.get_mut(&number) {
            Some(channel) if is_open && !channel.is_closing => channel,
            _ => return Err((Error::Closed, message, token)),
        };
        if let Err(error) = check(&message) {
            return Err((error, message, token));
        }
        let before = self.output.len();
        let frame_max = self.limits.frame_max;
        let publish = AMQPClass::Basic(basic::AMQPMethod::Publish(basic::Publish {
            exchange: message.exchange.clone(),
            routing_key: message.routing_key.clone(),
            mandatory: message.mandatory,
            immediate: false,
        }));
        let header = AMQPFrame::Header(
            number,
            AMQPContentHeader {
                class_id: publish.get_amqp_class_id(),
                body_size: message.body.len() as u64,
                properties: std::mem::take(&mut message.properties),
            },
        );
        let queued = wire::append_method(&mut self.output, number, publish, frame_max)
            .and_then(|()| wire::append(&mut self.output, &header, frame_max));
        if let AMQPFrame::Header(_, header) = header {
            message.properties = header.properties;
        }
        if let Err(error) = queued {
            self.output.truncate(before);
            return Err((error, message, token));
        }
        wire::append_body(&mut self.output, number, &message.body, frame_max);
        if channel.confirms {
            channel.add_unconfirmed(message, token);
            return Ok(None);
        }
        Ok(Some(token))
    }

    /// Whether the broker accepts messages on the channel, and the number of unconfirmed ones.
    /// `None` if there is no such channel.
    pub(crate) fn window(&self, number: u16) -> Option<(bool, usize)> {
        let channel = self.channels.get(&number).filter(|channel| !channel.is_closing)?;
        Some((!channel.is_paused, channel.unconfirmed()))
    }

    /// Takes the tokens of all unconfirmed messages: their confirms produce no event.
    pub(crate) fn abandon_unconfirmed(&mut self) -> Vec<P> {
        self.channels.values_mut().flat_map(ChannelState::abandon).collect()
    }

    /// Whether a delivery is unsettled and the session open: a closing broker ignores
    /// acknowledgements.
    pub(crate) fn can_settle(&self, number: u16, tag: u64) -> bool {
        let channel = self.channels.get(&number).filter(|_| self.phase == Phase::Open);
        channel.is_some_and(|channel| channel.is_unsettled(tag))
    }

    /// Acknowledges a delivery. `false` if the delivery was settled before, or is unknown.
    pub(crate) fn ack(&mut self, number: u16, tag: u64) -> bool {
        self.phase == Phase::Open
            && self.channels.get_mut(&number).is_some_and(|channel| channel.ack(tag))
    }

    /// Rejects a delivery. `false` if the delivery was settled before, or is unknown.
    pub(crate) fn nack(&mut self, number: u16, tag: u64, requeue: bool) -> bool {
        let Some(channel) = self.channels.get_mut(&number) else { return false };
        if self.phase != Phase::Open || !channel.settle(tag) {
            return false;
        }
        if channel.is_closing {
            // The broker requeues the delivery when it closes the channel.
            return true;
        }
        let reject = basic::Reject { delivery_tag: tag, requeue };
        let method = AMQPClass::Basic(basic::AMQPMethod::Reject(reject));
        let queued = wire::append_method(&mut self.output, number, method, self.limits.frame_max);
        debug_assert!(queued.is_ok(), "basic.reject fits into a frame");
        true
    }
}

/// The arguments of a request.
fn arguments(method: &AMQPClass) -> Option<&Table> {
    use exchange::AMQPMethod as X;
    use queue::AMQPMethod as Q;
    match method {
        AMQPClass::Queue(Q::Declare(queue::Declare { arguments, .. }))
        | AMQPClass::Queue(Q::Bind(queue::Bind { arguments, .. }))
        | AMQPClass::Queue(Q::Unbind(queue::Unbind { arguments, .. }))
        | AMQPClass::Exchange(X::Declare(exchange::Declare { arguments, .. }))
        | AMQPClass::Exchange(X::Bind(exchange::Bind { arguments, .. }))
        | AMQPClass::Exchange(X::Unbind(exchange::Unbind { arguments, .. }))
        | AMQPClass::Basic(basic::AMQPMethod::Consume(basic::Consume { arguments, .. })) => {
            Some(arguments)
        }
        _ => None,
    }
}

/// Refuses a message that would cost the channel or the connection. (Its properties are checked
/// when they are encoded. The broker does not tell which size it is set to take: an attempt shows
/// that.)
fn check(message: &Message) -> Result<(), Error> {
    message.properties.headers().as_ref().map_or(Ok(()), check_table)?;
    let size = message.body.len() as u64;
    if size > LARGEST_BODY {
        return Err(Error::Invalid(format!(
            "a body of {size} bytes, where brokers take {LARGEST_BODY} at most"
        )));
    }
    let key = message.routing_key.as_str();
    if message.exchange.as_str().is_empty() && is_malformed_reply_to(key) {
        return Err(Error::Invalid(format!(
            "`{key}` is a malformed direct reply-to name: the broker would close the connection"
        )));
    }
    Ok(())
}

/// Refuses values that RabbitMQ cannot read, and tables that receivers do not parse. RabbitMQ would
/// close the connection for the values, and again after each resend.
fn check_table(table: &Table) -> Result<(), Error> {
    check_values(table, 1)
}

/// Checks the values of a table. `level` is 1 for the outermost table.
fn check_values(table: &Table, level: usize) -> Result<(), Error> {
    table.inner().values().try_for_each(|value| check_value(value, level))
}

fn check_value(value: &Value, level: usize) -> Result<(), Error> {
    let why = match value {
        Value::FieldArray(_) | Value::FieldTable(_) if level == DEEPEST_TABLE => {
            format!("tables nested more than {DEEPEST_TABLE} deep: receivers reject the message")
        }
        Value::FieldArray(array) => {
            return array.as_slice().iter().try_for_each(|value| check_value(value, level + 1));
        }
        Value::FieldTable(table) => return check_values(table, level + 1),
        Value::Float(number) if !number.is_finite() => not_finite(value),
        Value::Double(number) if !number.is_finite() => not_finite(value),
        // AMQP 0-9-1 defines short strings in tables, but brokers do not read them.
        Value::ShortString(_) => "a short string in a table; use a long string".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Invalid(why))
}

fn not_finite(number: &Value) -> String {
    format!("{number:?} in a table: brokers accept finite numbers only")
}
