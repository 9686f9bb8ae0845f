//! One AMQP connection without a socket, a clock or a task: bytes in, events out; requests in, bytes
//! out; and the time told with each.
//!
//! ```text
//!  input(bytes, now) ──▶ ┌───────────┐ ──▶ next_event()
//!  request(…), publish() │  Session  │
//!  tick(now) ──────────▶ └───────────┘ ──▶ take_output(now)
//!
//!  Greeting ─1─▶ Tuning ─2─▶ Opening ─3─▶ Open ─4─▶ Closing ─5─▶ Over
//! ```
//!
//! 1 the broker's start (`Greeter::start_ok`), 2 its tune (`Greeter::agree`), 3 open-ok,
//! 4 [`close`](Session::close), 5 close-ok. A close of the broker, silence, and what is not AMQP lead
//! from everywhere to `Over` (`end`). Of a request the expectation is there before its bytes can leave,
//! and what cannot be encoded leaves neither.
//!
//! What the broker sends is handled in `input`, what the client asks in `requests`; `channel` has the
//! state of one channel, `handshake` the answers of the handshake, and `wire` the frames.

mod channel;
pub(crate) mod event;
pub(crate) mod handshake;
mod input;
mod requests;
#[cfg(test)]
mod script;
pub(crate) mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, connection};

use self::channel::ChannelState;
use self::event::{Ended, Event, Remains};
use self::handshake::{Greeter, Limits};
use crate::error::Error;

/// Frames may be that large before another size is agreed.
const FRAME_MIN: usize = 4096;
/// Hangs up when nothing came for so many heartbeats.
const HEARTBEATS_MISSED: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    Tuning,
    Opening,
    Open,
    Closing,
    Over,
}

/// See the top of this file. `T` names a request, `P` a published message.
#[derive(Debug)]
pub(crate) struct Session<T, P> {
    greeter: Greeter,
    phase: Phase,
    pub(crate) limits: Limits,
    output: Vec<u8>,
    /// A frame that is not there as a whole.
    rest: Vec<u8>,
    channels: BTreeMap<u16, ChannelState<T, P>>,
    events: VecDeque<Event<T, P>>,
    /// How much of the output answers the broker.
    answers: usize,
    last_sent: Duration,
    last_received: Duration,
}

impl<T, P> Session<T, P> {
    /// A session that has greeted the broker. Times are counted from any moment.
    pub(crate) fn new(greeter: Greeter, now: Duration) -> Self {
        let wanted = greeter.wanted;
        Self {
            greeter,
            phase: Phase::Greeting,
            limits: Limits { frame_max: wanted.frame_max.max(FRAME_MIN), ..wanted },
            output: wire::PROTOCOL_HEADER.to_vec(),
            rest: Vec::new(),
            channels: BTreeMap::new(),
            events: VecDeque::new(),
            answers: 0,
            last_sent: now,
            last_received: now,
        }
    }

    pub(crate) fn queue_connection(&mut self, method: connection::AMQPMethod) -> Result<(), Error> {
        let method = AMQPClass::Connection(method);
        wire::append_method(&mut self.output, 0, method, self.limits.frame_max)
    }

    /// Says goodbye. What is queued leaves before.
    pub(crate) fn close(&mut self) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        self.flush_acks();
        self.phase = Phase::Closing;
        let close = connection::Close {
            reply_code: 200,
            reply_text: "goodbye".into(),
            class_id: 0,
            method_id: 0,
        };
        let queued = self.queue_connection(connection::AMQPMethod::Close(close));
        debug_assert!(queued.is_ok(), "a farewell fits into a frame");
    }

    fn end(&mut self, why: Ended) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.events.push_back(Event::Ended(why));
        }
    }

    /// The broker does what it must not.
    pub(crate) fn fail(&mut self, error: Error) {
        self.end(Ended::Protocol(error));
    }

    /// What happened, oldest first.
    pub(crate) fn next_event(&mut self) -> Option<Event<T, P>> {
        self.events.pop_front()
    }

    /// Bytes that wait to be sent, without acknowledgements.
    pub(crate) fn queued(&self) -> usize {
        self.output.len()
    }

    /// Moves all that is to be sent into an empty buffer, whose room is used again.
    pub(crate) fn take_output(&mut self, into: &mut Vec<u8>, now: Duration) {
        self.flush_acks();
        self.answers = 0;
        into.clear();
        std::mem::swap(&mut self.output, into);
        if !into.is_empty() {
            self.last_sent = now;
        }
    }

    /// Sends what is known to be acknowledged.
    fn flush_acks(&mut self) {
        for (&number, channel) in &mut self.channels {
            channel.flush_acks(number, &mut self.output);
        }
    }

    /// Looks at the time: queues a heartbeat, or finds the broker dead.
    pub(crate) fn tick(&mut self, now: Duration) {
        let heartbeat = self.limits.heartbeat;
        if heartbeat.is_zero() || !matches!(self.phase, Phase::Open | Phase::Closing) {
            return;
        }
        if now.saturating_sub(self.last_received) >= heartbeat * HEARTBEATS_MISSED {
            self.end(Ended::Silent);
        } else if now.saturating_sub(self.last_sent) >= heartbeat / 2 {
            // Counted from here: until it is really written, another would not help.
            self.last_sent = now;
            let frame = AMQPFrame::Heartbeat;
            let queued = wire::append(&mut self.output, &frame, self.limits.frame_max);
            debug_assert!(queued.is_ok(), "a heartbeat fits into a frame");
        }
    }

    /// When to look at the time again.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        let heartbeat = self.limits.heartbeat;
        let is_up = matches!(self.phase, Phase::Open | Phase::Closing);
        (is_up && !heartbeat.is_zero()).then(|| {
            let dead = self.last_received + heartbeat * HEARTBEATS_MISSED;
            dead.min(self.last_sent + heartbeat / 2)
        })
    }

    /// Gives up: what is left without an answer.
    pub(crate) fn dismantle(&mut self) -> Remains<T, P> {
        self.phase = Phase::Over;
        let mut remains = Remains { requests: Vec::new(), unconfirmed: Vec::new() };
        for (number, channel) in std::mem::take(&mut self.channels) {
            let (requests, unconfirmed) = channel.dismantle();
            remains.requests.extend(requests);
            let unconfirmed = unconfirmed.into_iter().map(|(message, p)| (number, message, p));
            remains.unconfirmed.extend(unconfirmed);
        }
        remains
    }
}

#[cfg(test)]
mod tests;
