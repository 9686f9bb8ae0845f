//! TCP listeners: their backlog and their handshakes.
//!
//! A request to a listener with room creates a *half-open* connection, which becomes established
//! when the client's answer arrives, and then waits to be accepted. When half-open and waiting
//! connections together exceed the backlog, a request is dropped, as on Linux, and its sender tries
//! again.
//!
//! Shared listeners have one address, and a backlog each. The seed selects the listener of each
//! request. The close of one resets the connections in its backlog, and leaves the others.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::log::{EventKind, Loss};
use crate::net::Net;
use crate::ports::{Ports, Sharing};
use crate::socket::{Key, Kind, Readiness, Socket};
use crate::stream::{State, Stream};
use crate::wire::{PendingEvent, Segment};

/// The delay of the first retry of a request to connect; each further delay doubles.
const FIRST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    sharing: Sharing,
    backlog: usize,
    half_open: Vec<Key>,
    waiting: VecDeque<Key>,
}

impl Listener {
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness { read: !self.waiting.is_empty(), ..Readiness::default() }
    }

    fn is_full(&self) -> bool {
        self.half_open.len() + self.waiting.len() > self.backlog
    }
}

impl Net {
    fn listener_mut(&mut self, key: Key) -> Option<&mut Listener> {
        match &mut self.sockets.get_mut(key)?.kind {
            Kind::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    pub(crate) fn listen(
        &mut self,
        host: usize,
        address: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> io::Result<Key> {
        let address = self.bind(host, Ports::Tcp, address, sharing)?;
        let backlog = backlog as usize;
        let (half_open, waiting) = (Vec::new(), VecDeque::new());
        let listener = Listener { address, sharing, backlog, half_open, waiting };
        let key = self.sockets.insert(Socket::new(host, Kind::Listener(listener)));
        let node = &mut self.nodes[host];
        match sharing {
            Sharing::Alone => drop(node.listeners.insert(address, key)),
            Sharing::Shared => node.shared.entry(address).or_default().push(key),
        }
        Ok(key)
    }

    /// A request to connect arrives.
    pub(crate) fn connect_request(&mut self, from: Key, to: SocketAddr, tries: u32) {
        let Some(from_host) = self.sockets.get(from).map(|socket| socket.host) else { return };
        let Some(client) = self.stream(from).filter(|one| one.state == State::Connecting) else {
            return;
        };
        let (host, remote) = (client.remote_host, client.local);
        if !self.is_open(from_host, host) {
            return self.connect_again(from, to, tries, host, Loss::Cut);
        }
        if self.link_state(from_host, host).loses() {
            return self.connect_again(from, to, tries, host, Loss::Chance);
        }
        let is_refused = self.nodes[host].refuses || self.link_state(from_host, host).refuses();
        let listener = if is_refused { None } else { self.listener_at(host, to) };
        let Some(listener) = listener else {
            self.note(host, EventKind::Lost("connect", from_host, Loss::Nobody));
            return self.refuse_segment(Some(from), &Segment::Accepted);
        };
        if self.listener_mut(listener).is_some_and(|listener| listener.is_full()) {
            return self.connect_again(from, to, tries, host, Loss::Full);
        }
        self.note(host, EventKind::Packet("connect", from_host, 0));
        let mut stream = Stream::new(to, remote, from_host, State::HalfOpen(listener));
        stream.peer = Some(from);
        let key = self.sockets.insert(Socket::new(host, Kind::Stream(stream)));
        if let Some(listener) = self.listener_mut(listener) {
            listener.half_open.push(key);
        }
        self.transmit(key, Segment::Accepted);
    }

    fn connect_again(&mut self, from: Key, to: SocketAddr, tries: u32, host: usize, why: Loss) {
        let from_host = self.sockets.get(from).map_or(host, |socket| socket.host);
        self.note(host, EventKind::Lost("connect", from_host, why));
        // `ConnectTimeout` ends the attempt; a later retry then finds no socket.
        let pause = FIRST_RETRY.saturating_mul(1 << tries.min(16));
        self.queue.push_after(
            self.now,
            pause,
            PendingEvent::Connect { from, to, tries: tries + 1 },
        );
    }

    /// A connection is established. It can be accepted at once, or after the host's delay.
    pub(crate) fn established(&mut self, listener: Key, stream: Key) {
        let Some(host) = self.sockets.get(listener).map(|socket| socket.host) else { return };
        let slow = self.nodes[host].slow_accept;
        match slow.is_zero() {
            true => self.make_acceptable(listener, stream),
            false => {
                self.queue.push_after(self.now, slow, PendingEvent::ToAccept { listener, stream })
            }
        }
    }

    pub(crate) fn make_acceptable(&mut self, listener: Key, stream: Key) {
        let is_there = self.sockets.get(stream).is_some();
        let Some(found) = self.listener_mut(listener) else { return };
        found.half_open.retain(|key| *key != stream);
        if is_there {
            found.waiting.push_back(stream);
        }
        self.notify(listener);
    }

    pub(crate) fn forget_half_open(&mut self, listener: Key, stream: Key) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.half_open.retain(|key| *key != stream);
        }
    }

    pub(crate) fn accept(&mut self, key: Key) -> io::Result<(Key, SocketAddr)> {
        loop {
            let Some(listener) = self.listener_mut(key) else {
                return Err(Errno::INVAL.into());
            };
            let Some(stream) = listener.waiting.pop_front() else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            if let Some(found) = self.stream(stream) {
                return Ok((stream, found.remote));
            }
        }
    }

    /// The program has closed a listener: connections that were not accepted are reset.
    pub(crate) fn listener_close(&mut self, key: Key) {
        let Some(Socket { host, kind: Kind::Listener(listener), .. }) = self.sockets.remove(key)
        else {
            return;
        };
        let node = &mut self.nodes[host];
        match (listener.sharing, node.shared.get_mut(&listener.address)) {
            (Sharing::Shared, Some(sharing)) if sharing.len() > 1 => {
                sharing.retain(|other| *other != key);
            }
            (Sharing::Shared, _) => drop(node.shared.remove(&listener.address)),
            (Sharing::Alone, _) => drop(node.listeners.remove(&listener.address)),
        }
        for stream in listener.half_open.into_iter().chain(listener.waiting) {
            self.stream_close(stream, true);
        }
    }
}
