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
//! 1 the broker's start (`on_start`), 2 its tune (`on_tune`), 3 open-ok, 4 [`close`](Session::close),
//! 5 close-ok. A close of the broker, silence, and what is not AMQP lead from everywhere to `Over`
//! (`end`). Of a request the expectation is there before its bytes can leave, and what cannot be
//! encoded leaves neither.
//!
//! Channels are in `session_channel`, the handshake in `session_handshake`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, channel, connection};

use crate::error::{CloseReason, Error};
use crate::event::{Ended, Event, Remains};
use crate::session_channel::{ChannelState, ids};
use crate::session_handshake::Greeter;
use crate::wire::{self, Frame, append_method};

/// Frames may be that large before another size is agreed.
const FRAME_MIN: usize = 4096;
/// Hangs up when nothing came for so many heartbeats.
const HEARTBEATS_MISSED: u32 = 2;

/// What was agreed with the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) frame_max: usize,
    pub(crate) channel_max: u16,
    /// Zero: none.
    pub(crate) heartbeat: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
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
    pub(crate) greeter: Greeter,
    pub(crate) phase: Phase,
    pub(crate) limits: Limits,
    pub(crate) output: Vec<u8>,
    /// A frame that is not there as a whole.
    rest: Vec<u8>,
    pub(crate) channels: BTreeMap<u16, ChannelState<T, P>>,
    pub(crate) events: VecDeque<Event<T, P>>,
    /// How much of the output answers the broker.
    pub(crate) answers: usize,
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

    /// Takes what came from the broker.
    pub(crate) fn input(&mut self, bytes: &[u8], now: Duration) {
        self.last_received = now;
        if self.rest.is_empty() {
            let used = self.frames(bytes);
            self.rest.extend_from_slice(&bytes[used..]);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
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
            (Phase::Greeting, M::Start(start)) => self.on_start(&start),
            (Phase::Tuning, M::Tune(tune)) => self.on_tune(&tune),
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

    pub(crate) fn queue_connection(&mut self, method: connection::AMQPMethod) -> Result<(), Error> {
        let method = AMQPClass::Connection(method);
        append_method(&mut self.output, 0, method, self.limits.frame_max)
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

    /// There are as many channels as there may be.
    pub(crate) fn is_full(&self) -> bool {
        self.channels.len() >= usize::from(self.limits.channel_max)
    }

    /// Opens a channel, under the lowest number that is free.
    pub(crate) fn open_channel(&mut self, token: T) -> Result<u16, (Error, T)> {
        let free = (1..=self.limits.channel_max).find(|n| !self.channels.contains_key(n));
        let Some(number) = free else {
            let most = self.limits.channel_max;
            return Err((
                Error::Invalid(format!("one channel more than the {most} agreed")),
                token,
            ));
        };
        self.channels.insert(number, ChannelState::new());
        let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
        self.request(number, open, token).map(|()| number)
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
#[path = "session_tests.rs"]
mod tests;
