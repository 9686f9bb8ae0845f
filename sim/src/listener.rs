//! TCP listeners: who may come in, and who waits to be accepted.
//!
//! A request to connect that finds a listener with room makes an *embryo*, which becomes a
//! connection when the other side has heard of it, and then waits in the listener's line. When
//! embryos and line together are more than the backlog, a request is dropped, as on Linux, and its
//! sender tries again.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::log::What;
use crate::net::Net;
use crate::ports::Ports;
use crate::socket::{Key, Kind, Readiness, Socket};
use crate::stream::{State, Stream};
use crate::wire::{Later, Segment};

/// After how long a request to connect is made again for the first time; the distance doubles.
const FIRST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    backlog: usize,
    embryos: Vec<Key>,
    line: VecDeque<Key>,
}

impl Listener {
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness { read: !self.line.is_empty(), ..Readiness::default() }
    }

    fn is_full(&self) -> bool {
        self.embryos.len() + self.line.len() > self.backlog
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
    ) -> io::Result<Key> {
        let address = self.bind(host, Ports::Tcp, address)?;
        let backlog = backlog as usize;
        let listener = Listener { address, backlog, embryos: Vec::new(), line: VecDeque::new() };
        let key = self.sockets.insert(Socket::new(host, Kind::Listener(listener)));
        self.nodes[host].listeners.insert(address, key);
        Ok(key)
    }

    /// A request to connect arrives.
    pub(crate) fn connect_request(&mut self, from: Key, to: SocketAddr, tries: u32) {
        let Some(from_host) = self.sockets.get(from).map(|socket| socket.host) else { return };
        let Some(client) = self.stream(from).filter(|one| one.state == State::Connecting) else {
            return;
        };
        let (host, remote) = (client.remote_host, client.local);
        let way_is_open = self.is_open(from_host, host);
        if !way_is_open || self.way(from_host, host).loses() {
            return self.connect_again(from, to, tries, host);
        }
        let is_refused = self.nodes[host].refuses || self.way(from_host, host).refuses();
        let listener = self.bound_at(host, Ports::Tcp, to).filter(|_| !is_refused);
        let Some(listener) = listener else {
            self.note(host, What::Lost("connect", from_host));
            return self.refuse_segment(Some(from), &Segment::Accepted);
        };
        if self.listener_mut(listener).is_some_and(|listener| listener.is_full()) {
            return self.connect_again(from, to, tries, host);
        }
        self.note(host, What::Packet("connect", from_host, 0));
        let mut stream = Stream::new(to, remote, from_host, State::Embryo(listener));
        stream.peer = Some(from);
        let key = self.sockets.insert(Socket::new(host, Kind::Stream(stream)));
        if let Some(listener) = self.listener_mut(listener) {
            listener.embryos.push(key);
        }
        self.transmit(key, Segment::Accepted);
    }

    fn connect_again(&mut self, from: Key, to: SocketAddr, tries: u32, host: usize) {
        self.note(host, What::Lost("connect", self.sockets.get(from).map_or(host, |s| s.host)));
        // The attempt as a whole has a limit, after which this one finds nobody.
        let pause = FIRST_RETRY.saturating_mul(1 << tries.min(16));
        self.queue.push_after(self.now, pause, Later::Connect { from, to, tries: tries + 1 });
    }

    /// A connection was made; it comes before its listener, at once or later.
    pub(crate) fn hatch(&mut self, listener: Key, stream: Key) {
        let Some(host) = self.sockets.get(listener).map(|socket| socket.host) else { return };
        let slow = self.nodes[host].slow_accept;
        match slow.is_zero() {
            true => self.bring_before(listener, stream),
            false => self.queue.push_after(self.now, slow, Later::ToAccept { listener, stream }),
        }
    }

    pub(crate) fn bring_before(&mut self, listener: Key, stream: Key) {
        let is_there = self.sockets.get(stream).is_some();
        let Some(found) = self.listener_mut(listener) else { return };
        found.embryos.retain(|embryo| *embryo != stream);
        if is_there {
            found.line.push_back(stream);
        }
        self.notify(listener);
    }

    pub(crate) fn forget_embryo(&mut self, listener: Key, stream: Key) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.embryos.retain(|embryo| *embryo != stream);
        }
    }

    pub(crate) fn accept(&mut self, key: Key) -> io::Result<(Key, SocketAddr)> {
        loop {
            let Some(listener) = self.listener_mut(key) else {
                return Err(Errno::INVAL.into());
            };
            let Some(stream) = listener.line.pop_front() else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            if let Some(found) = self.stream(stream) {
                return Ok((stream, found.remote));
            }
        }
    }

    /// The program has closed a listener: who was not accepted yet is reset.
    pub(crate) fn listener_close(&mut self, key: Key) {
        let Some(Socket { host, kind: Kind::Listener(listener), .. }) = self.sockets.remove(key)
        else {
            return;
        };
        self.nodes[host].listeners.remove(&listener.address);
        for stream in listener.embryos.into_iter().chain(listener.line) {
            self.stream_close(stream, true);
        }
    }
}
