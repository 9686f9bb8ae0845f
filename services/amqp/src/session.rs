//! One AMQP connection as a state machine without a socket, a clock or a task. Callers pass in
//! bytes, requests and the time, and take out events and bytes.
//!
//! ```text
//!  input(bytes, now) ──▶ ┌───────────┐ ──▶ next_event()
//!  request(…), publish() │  Session  │
//!  tick(now) ──────────▶ └───────────┘ ──▶ take_output(now)
//!
//!  Greeting ─1─▶ Tuning ─2─▶ Opening ─3─▶ Open ─4─▶ Closing ─5─▶ Over
//! ```
//!
//! 1 start (`HandshakeConfig::start_ok`), 2 tune (`HandshakeConfig::agreed_limits`), 3 open-ok,
//! 4 [`close`](Session::close), 5 close-ok. The broker's close and a protocol error lead from every
//! phase to `Over`, missed heartbeats from `Open` and `Closing` (`end`). A request is registered as
//! pending before its bytes can be taken; a request that cannot be encoded leaves neither.
//!
//! `input` handles the broker's bytes, `requests` the client's requests; `channel` has the state of
//! one channel, `handshake` the client's replies in the handshake, and `wire` the frames.

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
use self::event::{Ended, Event, Unanswered};
use self::handshake::{HandshakeConfig, Limits};
use crate::error::Error;

/// The frame size that every peer must accept, in octets (AMQP 0-9-1, frame-min-size).
const FRAME_MIN: usize = 4096;
/// Heartbeat intervals without input after which the broker counts as dead.
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

/// The state machine. `T` identifies a request, `P` a published message.
#[derive(Debug)]
pub(crate) struct Session<T, P> {
    handshake_config: HandshakeConfig,
    phase: Phase,
    pub(crate) limits: Limits,
    /// The version that the broker says of itself.
    pub(crate) server_version: Option<String>,
    output: Vec<u8>,
    /// The received beginning of the next frame.
    partial_frame: Vec<u8>,
    channels: BTreeMap<u16, ChannelState<T, P>>,
    events: VecDeque<Event<T, P>>,
    /// Octets of the output that reply to the broker.
    reply_bytes: usize,
    last_sent: Duration,
    last_received: Duration,
}

impl<T, P> Session<T, P> {
    /// A session whose first output is the protocol header. All times count from one arbitrary
    /// moment.
    pub(crate) fn new(handshake_config: HandshakeConfig, now: Duration) -> Self {
        let wanted = handshake_config.wanted;
        Self {
            handshake_config,
            phase: Phase::Greeting,
            limits: Limits { frame_max: wanted.frame_max.max(FRAME_MIN), ..wanted },
            server_version: None,
            output: wire::PROTOCOL_HEADER.to_vec(),
            partial_frame: Vec::new(),
            channels: BTreeMap::new(),
            events: VecDeque::new(),
            reply_bytes: 0,
            last_sent: now,
            last_received: now,
        }
    }

    pub(crate) fn queue_connection(&mut self, method: connection::AMQPMethod) -> Result<(), Error> {
        let method = AMQPClass::Connection(method);
        wire::append_method(&mut self.output, 0, method, self.limits.frame_max)
    }

    /// Queues connection.close behind all other output.
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
        debug_assert!(queued.is_ok(), "connection.close fits into a frame");
    }

    fn end(&mut self, why: Ended) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.events.push_back(Event::Ended(why));
        }
    }

    /// Ends the session because the broker broke the protocol.
    pub(crate) fn fail(&mut self, error: Error) {
        self.end(Ended::Protocol(error));
    }

    /// The oldest event that was not taken yet.
    pub(crate) fn next_event(&mut self) -> Option<Event<T, P>> {
        self.events.pop_front()
    }

    /// Octets of queued output, without acknowledgements.
    pub(crate) fn queued(&self) -> usize {
        self.output.len()
    }

    /// Moves all output into `into`, whose old content is dropped and whose allocation is reused.
    pub(crate) fn take_output(&mut self, into: &mut Vec<u8>, now: Duration) {
        self.flush_acks();
        self.reply_bytes = 0;
        into.clear();
        std::mem::swap(&mut self.output, into);
        if !into.is_empty() {
            self.last_sent = now;
        }
    }

    /// Queues the acknowledgements of all channels.
    fn flush_acks(&mut self) {
        for (&number, channel) in &mut self.channels {
            channel.flush_acks(number, &mut self.output);
        }
    }

    /// Queues a heartbeat if one is due, or ends the session if the broker missed too many.
    pub(crate) fn tick(&mut self, now: Duration) {
        let heartbeat = self.limits.heartbeat;
        if heartbeat.is_zero() || !matches!(self.phase, Phase::Open | Phase::Closing) {
            return;
        }
        if now.saturating_sub(self.last_received) >= heartbeat * HEARTBEATS_MISSED {
            self.end(Ended::Silent);
        } else if now.saturating_sub(self.last_sent) >= heartbeat / 2 {
            // A second heartbeat would not help before the first is written.
            self.last_sent = now;
            let frame = AMQPFrame::Heartbeat;
            let queued = wire::append(&mut self.output, &frame, self.limits.frame_max);
            debug_assert!(queued.is_ok(), "a heartbeat fits into a frame");
        }
    }

    /// When [`tick`](Self::tick) has to be called next.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        let heartbeat = self.limits.heartbeat;
        let is_up = matches!(self.phase, Phase::Open | Phase::Closing);
        (is_up && !heartbeat.is_zero()).then(|| {
            let dead = self.last_received + heartbeat * HEARTBEATS_MISSED;
            dead.min(self.last_sent + heartbeat / 2)
        })
    }

    /// Ends the session without an event, and returns all unanswered requests and messages.
    pub(crate) fn take_unanswered(&mut self) -> Unanswered<T, P> {
        self.phase = Phase::Over;
        let mut unanswered = Unanswered { requests: Vec::new(), unconfirmed: Vec::new() };
        for (number, channel) in std::mem::take(&mut self.channels) {
            let (requests, unconfirmed) = channel.into_unanswered();
            unanswered.requests.extend(requests);
            let unconfirmed = unconfirmed.into_iter().map(|(message, p)| (number, message, p));
            unanswered.unconfirmed.extend(unconfirmed);
        }
        unanswered
    }
}

#[cfg(test)]
mod tests;
