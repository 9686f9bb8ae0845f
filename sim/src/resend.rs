//! Transmission and retransmission of segments.
//!
//! Segments have numbers, and arrive in their order. A segment whose link is cut is *held* by its
//! sender, with all later segments, also with those that arrive before it was sent again. A timer
//! sends them again, at doubling intervals. A sender whose return link is cut gets no
//! acknowledgements, and gives up in the same time. Segments that wait for one of a sender that is
//! gone are lost.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::nanos;
use crate::log::{EventKind, Loss};
use crate::net::Net;
use crate::socket::Key;
use crate::stream::{State, Stream};
use crate::wire::{PendingEvent, Segment};

/// The first interval between retransmissions; that of Linux.
const FIRST_INTERVAL: Duration = Duration::from_millis(200);

/// The longest interval between retransmissions; that of Linux.
const LONGEST_INTERVAL: Duration = Duration::from_secs(120);

/// The number of retransmissions before the connection fails (`net.ipv4.tcp_retries2`), after about
/// a quarter of an hour.
const RESEND_LIMIT: u32 = 15;

/// The state of a sender's retransmissions.
#[derive(Default, Debug)]
pub(crate) struct Resend {
    /// The segments with their numbers, in order.
    held: VecDeque<(u64, Segment)>,
    /// The number of the next new segment.
    next: u64,
    /// A segment arrived, but its acknowledgement could not reach the sender.
    is_unacknowledged: bool,
    /// The number of the retransmission that the timer is set for.
    timer: Option<u32>,
}

impl Resend {
    /// Sends nothing again.
    pub(crate) fn stop(&mut self) {
        self.held.clear();
        (self.is_unacknowledged, self.timer) = (false, None);
    }
}

fn pause(tries: u32) -> Duration {
    FIRST_INTERVAL.saturating_mul(1 << tries.min(16)).min(LONGEST_INTERVAL)
}

impl Net {
    /// Transmits a segment.
    pub(crate) fn transmit(&mut self, from: Key, segment: Segment) {
        let Some(stream) = self.stream_mut(from).filter(|stream| stream.peer.is_some()) else {
            return;
        };
        let mut number = None;
        if !matches!(segment, Segment::Reset) {
            number = Some(stream.resend.next);
            stream.resend.next += 1;
        }
        self.transmit_numbered(from, number, segment);
    }

    fn transmit_numbered(&mut self, from: Key, number: Option<u64>, segment: Segment) {
        let Some(from_host) = self.sockets.get(from).map(|socket| socket.host) else { return };
        let Some(stream) = self.stream_mut(from) else { return };
        let (to_host, Some(to), earliest) = (stream.remote_host, stream.peer, stream.last_arrival)
        else {
            return;
        };
        if let Some(number) = number.filter(|_| !stream.resend.held.is_empty()) {
            stream.resend.held.push_back((number, segment));
            return;
        }
        let now = self.now;
        let link = self.link_state(from_host, to_host);
        let mut at = link.arrival(now, segment.len());
        let mut tries = 0;
        while tries < RESEND_LIMIT && link.loses() {
            at = at.saturating_add(nanos(pause(tries)));
            tries += 1;
        }
        let at = at.max(earliest);
        if let Some(stream) = self.stream_mut(from) {
            stream.last_arrival = at;
        }
        let from = Some(from);
        let arrival = PendingEvent::Segment { from, from_host, to, to_host, number, segment };
        self.queue.push(at, arrival);
    }

    /// Delivers a segment, or holds it for retransmission.
    pub(crate) fn segment_arrives(
        &mut self,
        from: Option<Key>,
        (from_host, to_host): (usize, usize),
        to: Key,
        number: Option<u64>,
        segment: Segment,
    ) {
        let receiver = self.stream(to).zip(number);
        let is_early = receiver.is_some_and(|(receiver, number)| number != receiver.arrived);
        let is_open = self.is_open(from_host, to_host);
        if !is_open || is_early {
            let why = if is_open { Loss::Early } else { Loss::Cut };
            self.note(to_host, EventKind::Lost(segment.name(), from_host, why));
            if let Some((from, number)) = from.zip(number) {
                self.hold(from, number, segment);
            }
            return;
        }
        if let Some(receiver) = self.stream_mut(to).filter(|_| number.is_some()) {
            receiver.arrived += 1;
        }
        let can_acknowledge = self.is_open(to_host, from_host);
        if let Some(from) = from {
            if !can_acknowledge {
                if let Some(sender) = self.stream_mut(from) {
                    sender.resend.is_unacknowledged = true;
                    self.send_again(from, 0);
                }
            }
            if matches!(segment, Segment::Data(_)) && self.link_state(from_host, to_host).resets() {
                self.reset_both(from, to);
                return;
            }
        }
        self.receive_segment(from, to, segment);
    }

    /// Resets a connection on both sides.
    pub(crate) fn reset_both(&mut self, one: Key, other: Key) {
        for key in [one, other] {
            self.receive_segment(None, key, Segment::Reset);
        }
    }

    /// Answers a segment for an unknown connection with a reset.
    pub(crate) fn refuse_segment(&mut self, from: Option<Key>, segment: &Segment) {
        let Some(from) = from.filter(|_| !matches!(segment, Segment::Reset)) else { return };
        if let (Some(stream), Some(socket)) = (self.stream(from), self.sockets.get(from)) {
            let (from_host, to_host) = (stream.remote_host, socket.host);
            let now = self.now;
            let at = self.link_state(from_host, to_host).arrival(now, 0);
            let reset = Segment::Reset;
            let later = PendingEvent::Segment {
                from: None,
                from_host,
                to: from,
                to_host,
                number: None,
                segment: reset,
            };
            self.queue.push(at, later);
        }
    }

    fn hold(&mut self, from: Key, number: u64, segment: Segment) {
        // What a connection that has failed has sent is lost.
        let is_alive = |stream: &&mut Stream| stream.state != State::Dead;
        if let Some(sender) = self.stream_mut(from).filter(is_alive) {
            let held = &mut sender.resend.held;
            let index = held.partition_point(|(other, _)| *other < number);
            held.insert(index, (number, segment));
            self.send_again(from, 0);
        }
    }

    /// Sets the timer, unless it runs.
    fn send_again(&mut self, key: Key, tries: u32) {
        let now = self.now;
        let Some(stream) = self.stream_mut(key) else { return };
        if stream.resend.timer.is_none() {
            stream.resend.timer = Some(tries);
            self.queue.push_after(now, pause(tries), PendingEvent::Resend(key));
        }
    }

    /// The timer has expired.
    pub(crate) fn resend(&mut self, key: Key) {
        let Some(host) = self.sockets.get(key).map(|socket| socket.host) else { return };
        let Some(stream) = self.stream_mut(key) else { return };
        let Some(tries) = stream.resend.timer.take() else { return };
        let remote = stream.remote_host;
        let (can_send, can_receive) = (self.is_open(host, remote), self.is_open(remote, host));
        let Some(stream) = self.stream_mut(key) else { return };
        stream.resend.is_unacknowledged &= !(can_send && can_receive);
        let held = match can_send {
            true => std::mem::take(&mut stream.resend.held),
            false => VecDeque::new(),
        };
        let is_waiting = stream.resend.is_unacknowledged || !stream.resend.held.is_empty();
        for (number, segment) in held {
            self.transmit_numbered(key, Some(number), segment);
        }
        if is_waiting {
            match tries < RESEND_LIMIT {
                true => self.send_again(key, tries + 1),
                false => self.fail(key, Errno::TIMEDOUT),
            }
        }
    }
}
