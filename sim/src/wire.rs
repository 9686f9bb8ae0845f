//! What is under way between hosts, and what the ways are like.
//!
//! Everything that happens later is an entry in one queue, ordered by virtual time and, at one
//! time, by when it was sent off. A *link* is one direction between two hosts, with its own streams
//! of chance.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use pikake_kernel::BlockingCall;
use pikake_traps::{Addresses, Reply};

use crate::clock::nanos;
use crate::latency::Latency;
use crate::rng::Rng;
use crate::socket::Key;

/// A way between two hosts, in one direction.
///
/// What is lost on the way makes a TCP connection slower, since it is sent again; datagrams are
/// gone.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Link {
    /// How long a packet takes.
    pub latency: Latency,
    /// How likely a packet is lost.
    pub loss: f64,
    /// How likely a datagram arrives twice.
    pub duplicate: f64,
    /// How likely a datagram is held up, so that later ones overtake it.
    pub reorder: f64,
    /// Bytes a second; `None`: without limit.
    pub bandwidth: Option<u64>,
    /// How likely a segment of a TCP stream meets a reset instead of its receiver.
    pub reset: f64,
    /// How likely an attempt to connect is refused.
    pub refuse: f64,
}

impl Link {
    /// A link without faults.
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

/// By how many latencies a datagram is held up that is to be overtaken.
const HELD_UP: u64 = 4;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A link and its streams of chance.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) link: Link,
    /// When the last byte that was sent off leaves.
    free_at: u64,
    latency: Rng,
    loss: Rng,
    duplicate: Rng,
    reorder: Rng,
    reset: Rng,
    refuse: Rng,
}

impl Way {
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

    /// When something that is sent off now arrives.
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

    /// When the copies of a datagram arrive: never, once, or twice.
    pub(crate) fn datagram(&mut self, now: u64, bytes: usize) -> [Option<u64>; 2] {
        let mut first = self.arrival(now, bytes);
        if self.reorder.chance(self.link.reorder) {
            first += (0..HELD_UP).map(|_| self.link.latency.draw(&mut self.reorder)).sum::<u64>();
        }
        let second = match self.duplicate.chance(self.link.duplicate) {
            true => Some(now + self.link.latency.draw(&mut self.duplicate)),
            false => None,
        };
        [(!self.loses()).then_some(first), second]
    }
}

/// A part of a TCP stream, or what is said beside it.
#[derive(Debug)]
pub(crate) enum Segment {
    /// The other side took the connection on.
    Accepted,
    /// The side that connected has heard of it.
    Established,
    Data(Vec<u8>),
    /// No more data will come.
    Fin,
    /// The receiver has room for so many more bytes.
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

/// Something that happens later.
#[derive(Debug)]
pub(crate) enum Later {
    /// A request to connect arrives; so many were sent before.
    Connect { from: Key, to: SocketAddr, tries: u32 },
    /// A connection that is still being made is given up.
    ConnectTimeout(Key),
    /// A segment arrives; one that a host made up has no sender.
    Segment { from: Option<Key>, from_host: usize, to: Key, to_host: usize, segment: Segment },
    /// A connection that waited long enough comes before its listener.
    ToAccept { listener: Key, stream: Key },
    /// What did not get through is sent again.
    Again(Key),
    /// A datagram arrives.
    Datagram { from: Key, from_host: usize, source: SocketAddr, to: SocketAddr, data: Vec<u8> },
    /// Nobody had wanted a datagram of this socket.
    Unwanted(Key),
    /// A closure on a helper thread is done.
    BlockingCall { host: usize, life: u32, call: BlockingCall },
    /// A name was looked up.
    Lookup { reply: Reply<Addresses>, found: Addresses },
}

#[derive(Debug)]
struct Entry {
    at: u64,
    number: u64,
    what: Later,
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
    /// The earliest is the greatest, for the heap has that on top.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Everything that happens later, earliest first.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    entries: BinaryHeap<Entry>,
    last: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: u64, what: Later) {
        self.last += 1;
        self.entries.push(Entry { at, number: self.last, what });
    }

    pub(crate) fn push_after(&mut self, now: u64, length: std::time::Duration, what: Later) {
        self.push(now.saturating_add(nanos(length)), what);
    }

    pub(crate) fn peek(&self) -> Option<(u64, &Later)> {
        self.entries.peek().map(|entry| (entry.at, &entry.what))
    }

    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u64, Later)> {
        if self.peek()?.0 > now {
            return None;
        }
        self.entries.pop().map(|entry| (entry.at, entry.what))
    }
}
