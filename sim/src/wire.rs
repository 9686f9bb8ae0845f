//! Links between hosts, and the queue of pending events.
//!
//! All pending events are in one queue, ordered by virtual time and, at one time, by the order of
//! insertion. A *link* is one direction between two hosts, with its own streams of random numbers.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use pikake_kernel::BlockingCall;
use pikake_traps::{Addresses, Reply};

use crate::clock::nanos;
use crate::latency::Latency;
use crate::rng::Rng;
use crate::socket::Key;

/// One direction between two hosts.
///
/// Losses delay a TCP connection, which sends lost segments again. Lost datagrams are not sent
/// again.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Link {
    /// How long a packet takes.
    pub latency: Latency,
    /// The probability that a packet is lost.
    pub loss: f64,
    /// The probability that a datagram arrives twice.
    pub duplicate: f64,
    /// The probability that a datagram is delayed, so later ones overtake it.
    pub reorder: f64,
    /// Bytes per second; `None`: unlimited.
    pub bandwidth: Option<u64>,
    /// The probability that a segment of a TCP stream causes a reset.
    pub reset: f64,
    /// The probability that an attempt to connect is refused.
    pub refuse: f64,
}

impl Link {
    /// Creates a link without faults.
    pub fn new(latency: Latency) -> Self {
        Self {
            latency,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            bandwidth: None,
            reset: 0.0,
            refuse: 0.0,
        }
    }
}

/// The delay of a reordered datagram, in latencies.
const REORDER_LATENCIES: u64 = 4;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A link with its streams of random numbers.
#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) link: Link,
    /// The time at which the last byte leaves, with a limited bandwidth.
    free_at: u64,
    latency: Rng,
    loss: Rng,
    duplicate: Rng,
    reorder: Rng,
    reset: Rng,
    refuse: Rng,
}

impl LinkState {
    pub(crate) fn new(link: Link, seed: u64, name: &str) -> Self {
        let stream = |purpose| Rng::split(seed, name, purpose);
        Self {
            link,
            free_at: 0,
            latency: stream("latency"),
            loss: stream("loss"),
            duplicate: stream("duplicate"),
            reorder: stream("reorder"),
            reset: stream("reset"),
            refuse: stream("refuse"),
        }
    }

    /// The arrival of a packet that is sent now.
    pub(crate) fn arrival(&mut self, now: u64, bytes: usize) -> u64 {
        let departure = match self.link.bandwidth {
            None => now,
            Some(rate) => {
                let takes = bytes as u128 * NANOS_PER_SECOND / u128::from(rate.max(1));
                self.free_at = self.free_at.max(now).saturating_add(takes as u64);
                self.free_at
            }
        };
        departure.saturating_add(self.link.latency.draw(&mut self.latency))
    }

    pub(crate) fn loses(&mut self) -> bool {
        self.loss.chance(self.link.loss)
    }

    pub(crate) fn resets(&mut self) -> bool {
        self.reset.chance(self.link.reset)
    }

    pub(crate) fn refuses(&mut self) -> bool {
        self.refuse.chance(self.link.refuse)
    }

    /// The arrivals of the copies of a datagram: none, one, or two.
    pub(crate) fn datagram(&mut self, now: u64, bytes: usize) -> [Option<u64>; 2] {
        let mut first = self.arrival(now, bytes);
        if self.reorder.chance(self.link.reorder) {
            first += (0..REORDER_LATENCIES)
                .map(|_| self.link.latency.draw(&mut self.reorder))
                .sum::<u64>();
        }
        let second = match self.duplicate.chance(self.link.duplicate) {
            true => Some(now + self.link.latency.draw(&mut self.duplicate)),
            false => None,
        };
        [(!self.loses()).then_some(first), second]
    }
}

/// A segment of a TCP connection.
#[derive(Debug)]
pub(crate) enum Segment {
    /// The listener's host accepts the request.
    Accepted,
    /// The client has received `Accepted`.
    Established,
    Data(Vec<u8>),
    /// The end of the data.
    Fin,
    /// The receiver has room for this number of further bytes.
    Room(usize),
    Reset,
}

impl Segment {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Established => "established",
            Self::Data(_) => "data",
            Self::Fin => "fin",
            Self::Room(_) => "room",
            Self::Reset => "reset",
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            _ => 0,
        }
    }
}

/// A pending event.
#[derive(Debug)]
pub(crate) enum PendingEvent {
    /// A request to connect arrives, after `tries` earlier ones.
    Connect { from: Key, to: SocketAddr, tries: u32 },
    /// An attempt to connect times out.
    ConnectTimeout(Key),
    /// A segment arrives. A reset by a host without such a connection has no sender. Resets have no
    /// number.
    Segment {
        from: Option<Key>,
        from_host: usize,
        to: Key,
        to_host: usize,
        number: Option<u64>,
        segment: Segment,
    },
    /// A connection can be accepted, after the host's delay.
    ToAccept { listener: Key, stream: Key },
    /// The retransmission timer of a sender expires.
    Resend(Key),
    /// A datagram arrives.
    Datagram { from: Key, from_host: usize, source: SocketAddr, to: SocketAddr, data: Vec<u8> },
    /// A datagram of this socket had no receiver.
    Unwanted(Key),
    /// A closure on a helper thread ends.
    BlockingCall { host: usize, life: u32, call: BlockingCall },
    /// A name lookup ends.
    Lookup { reply: Reply<Addresses>, found: Addresses },
}

#[derive(Debug)]
struct Entry {
    at: u64,
    number: u64,
    what: PendingEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed, since the heap returns its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The pending events, earliest first.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    entries: BinaryHeap<Entry>,
    last: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: u64, what: PendingEvent) {
        self.last += 1;
        self.entries.push(Entry { at, number: self.last, what });
    }

    pub(crate) fn push_after(&mut self, now: u64, length: std::time::Duration, what: PendingEvent) {
        self.push(now.saturating_add(nanos(length)), what);
    }

    pub(crate) fn peek(&self) -> Option<(u64, &PendingEvent)> {
        self.entries.peek().map(|entry| (entry.at, &entry.what))
    }

    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u64, PendingEvent)> {
        if self.peek()?.0 > now {
            return None;
        }
        self.entries.pop().map(|entry| (entry.at, entry.what))
    }
}
