//! The network of the world: hosts, addresses, ports, and links.
//!
//! All drivers share one network. This file has the common part of all sockets; each kind of socket
//! has its own file. The network runs no user code and calls no waker: it stores events with their
//! host, and the world turns that host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pikake_kernel::{BlockingCall, Event};
use pikake_traps::Direction;

use crate::latency::Latency;
use crate::log::{EventKind, KernelKey, Log};
use crate::ports::EPHEMERAL;
use crate::rng::Rng;
use crate::socket::{Key, Kind, Readiness, Socket, Sockets};
use crate::stream::State;
use crate::wire::{Link, LinkState, PendingEvent, Queue};

/// The default duration of a name lookup.
const LOOKUP: Duration = Duration::from_micros(300);

/// The default size of a stream's send buffer, and of its receive buffer.
const STREAM_BUFFER: usize = 65_536;

/// The default size of the largest segment.
const SEGMENT: usize = 16_384;

/// The settings of the network.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Network {
    /// The links between two hosts.
    pub link: Link,
    /// The latency from a host to itself.
    pub loopback: Latency,
    /// The size of a stream's send buffer, and of its receive buffer, in bytes.
    pub stream_buffer: usize,
    /// The size of the largest segment, in bytes.
    pub segment: usize,
    /// The probability that an attempt on a stream between two hosts moves fewer bytes than
    /// possible. Within a host it is zero.
    pub short: f64,
    /// The duration of a name lookup.
    pub lookup: Latency,
    /// The duration of a closure on a helper thread.
    pub blocking: Latency,
}

impl Default for Network {
    /// A network without faults: latencies of 0.5 to 5 ms between hosts, and up to 50 µs within
    /// one.
    fn default() -> Self {
        let (least, most) = (Duration::from_micros(500), Duration::from_millis(5));
        Self {
            link: Link::new(Latency::Uniform(least, most)),
            loopback: Latency::Uniform(Duration::from_micros(5), Duration::from_micros(50)),
            stream_buffer: STREAM_BUFFER,
            segment: SEGMENT,
            short: 0.1,
            lookup: Latency::Fixed(LOOKUP),
            blocking: Latency::Uniform(Duration::from_micros(50), Duration::from_millis(2)),
        }
    }
}

/// A host as the network sees it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// The machine runs, so packets reach it.
    pub(crate) is_up: bool,
    /// How often the host was started.
    pub(crate) life: u32,
    /// Events that each of its kernels has not polled yet.
    pub(crate) events: Vec<Vec<Event>>,
    pub(crate) listeners: BTreeMap<SocketAddr, Key>,
    /// Listeners that share their address.
    pub(crate) shared: BTreeMap<SocketAddr, Vec<Key>>,
    pub(crate) datagrams: BTreeMap<SocketAddr, Key>,
    /// Ports of streams that connected from here.
    pub(crate) connected: BTreeSet<u16>,
    pub(crate) next_port: u16,
    /// Unix sockets by path.
    pub(crate) paths: BTreeMap<OsString, Key>,
    pub(crate) refuses: bool,
    pub(crate) slow_accept: Duration,
    /// Closures that wait for a helper thread.
    pub(crate) calls: VecDeque<BlockingCall>,
    /// The number of running closures.
    pub(crate) calls_running: usize,
    /// The number of helper threads.
    pub(crate) helpers: usize,
    pub(crate) blocking: Rng,
    /// Spreads connections over shared listeners.
    pub(crate) spread: Rng,
    short: Rng,
    /// The random numbers of the program.
    pub(crate) program: Rng,
}

#[derive(Debug)]
pub(crate) struct Net {
    /// The time of the current operation: of the host that makes it, or of the world.
    pub(crate) now: u64,
    pub(crate) seed: u64,
    pub(crate) settings: Network,
    pub(crate) nodes: Vec<Node>,
    pub(crate) sockets: Sockets,
    pub(crate) queue: Queue,
    links: BTreeMap<(usize, usize), LinkState>,
    /// The links that lose all packets.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Kernels to be turned.
    pub(crate) notified: Vec<KernelKey>,
    pub(crate) log: Log,
    pub(crate) lookups: Rng,
    /// The host of each address.
    pub(crate) addresses: BTreeMap<IpAddr, usize>,
}

impl Net {
    pub(crate) fn new(seed: u64, settings: Network, log: Log) -> Self {
        Self {
            now: 0,
            seed,
            settings,
            nodes: Vec::new(),
            sockets: Sockets::default(),
            queue: Queue::default(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            notified: Vec::new(),
            log,
            lookups: Rng::split(seed, "", "lookup"),
            addresses: BTreeMap::new(),
        }
    }

    pub(crate) fn add_node(&mut self, name: &str, addresses: Vec<IpAddr>, kernels: usize) -> usize {
        let stream = |purpose| Rng::split(self.seed, name, purpose);
        let node = Node {
            name: name.to_owned(),
            addresses,
            is_up: false,
            life: 0,
            events: vec![Vec::new(); kernels],
            listeners: BTreeMap::new(),
            shared: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            connected: BTreeSet::new(),
            next_port: EPHEMERAL.start,
            paths: BTreeMap::new(),
            refuses: false,
            slow_accept: Duration::ZERO,
            calls: VecDeque::new(),
            calls_running: 0,
            helpers: usize::MAX,
            blocking: stream("blocking"),
            spread: stream("spread"),
            short: stream("short"),
            program: stream("program"),
        };
        let host = self.nodes.len();
        self.addresses.extend(node.addresses.iter().map(|address| (*address, host)));
        self.nodes.push(node);
        host
    }

    /// The link from one host to another, with its state.
    pub(crate) fn link_state(&mut self, from: usize, to: usize) -> &mut LinkState {
        let Self { links, nodes, settings, seed, .. } = self;
        links.entry((from, to)).or_insert_with(|| {
            let link = match from == to {
                true => Link::new(settings.loopback),
                false => settings.link.clone(),
            };
            LinkState::new(link, *seed, &format!("{}>{}", nodes[from].name, nodes[to].name))
        })
    }

    pub(crate) fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to)) && self.nodes[to].is_up
    }

    pub(crate) fn note(&self, host: usize, kind: EventKind) {
        self.log.note(self.now, KernelKey::main_of(host), kind);
    }

    /// The time of the next event. Removes obsolete events: no run waits for the timeout of a
    /// connection that was made.
    pub(crate) fn next_moment(&mut self) -> Option<u64> {
        loop {
            let (at, what) = self.queue.peek()?;
            let is_obsolete = match what {
                PendingEvent::ConnectTimeout(key) => {
                    self.stream(*key).is_none_or(|stream| stream.state != State::Connecting)
                }
                _ => false,
            };
            if !is_obsolete {
                return Some(at);
            }
            self.queue.pop_due(at);
        }
    }

    // --- readiness -----------------------------------------------------------------------------

    pub(crate) fn readiness(&self, key: Key) -> Readiness {
        let Some(socket) = self.sockets.get(key) else { return Readiness::default() };
        match &socket.kind {
            Kind::Listener(listener) => listener.readiness(),
            Kind::Stream(stream) => stream.readiness(),
            Kind::Datagram(datagram) => datagram.readiness(),
            Kind::UnixListener(listener) => listener.readiness(),
            Kind::UnixStream(stream) => self.unix_stream_readiness(stream),
            Kind::UnixDatagram(datagram) => self.unix_datagram_readiness(datagram),
        }
    }

    /// Reports the armed directions that became ready.
    pub(crate) fn notify(&mut self, key: Key) {
        let Some(socket) = self.sockets.get(key) else { return };
        if socket.token.is_none() || !(socket.read_armed || socket.write_armed) {
            return;
        }
        let is = self.readiness(key);
        self.report(key, |socket| (is.read && socket.read_armed, is.write && socket.write_armed));
    }

    /// Reports the ready directions of a socket that was just registered, armed or not.
    pub(crate) fn notify_registered(&mut self, key: Key) {
        let is = self.readiness(key);
        self.report(key, |_| (is.read, is.write));
    }

    fn report(&mut self, key: Key, which: impl FnOnce(&Socket) -> (bool, bool)) {
        let Readiness { read_ended, write_ended, .. } = self.readiness(key);
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let (readable, writable) = which(socket);
        let Some((kernel, token)) = socket.token.filter(|_| readable || writable) else { return };
        socket.read_armed &= !readable;
        socket.write_armed &= !writable;
        let host = socket.host;
        let event = Event { token, readable, writable, read_ended, write_ended };
        self.nodes[host].events[kernel].push(event);
        self.notified.push(KernelKey { host, kernel });
    }

    /// Arms the direction of an attempt that would have blocked.
    pub(crate) fn attempted<R>(
        &mut self,
        key: Key,
        direction: Direction,
        result: io::Result<R>,
    ) -> io::Result<R> {
        match &result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(socket) = self.sockets.get_mut(key) {
                    socket.arm(direction);
                }
            }
            _ => {}
        }
        result
    }

    /// The number of bytes that an attempt on a stream moves, of the `most` possible.
    pub(crate) fn shortened(&mut self, (host, remote): (usize, usize), most: usize) -> usize {
        let short = &mut self.nodes[host].short;
        match host != remote && most > 1 && short.chance(self.settings.short) {
            true => 1 + short.index(most - 1),
            false => most,
        }
    }
}
