//! UDP sockets. A datagram arrives whole, twice, late, or not at all.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustix::io::Errno;

use crate::bytes::Room;
use crate::log::{EventKind, Loss};
use crate::net::Net;
use crate::ports::{Ports, Sharing};
use crate::socket::{DEFAULT_BUFFER, Key, Kind, Readiness, Socket};
use crate::wire::PendingEvent;

/// The largest datagram: a packet of IPv4 without its headers.
const MOST: usize = 65_507;

/// The system's overhead for a buffered datagram, roughly.
const DATAGRAM_OVERHEAD: usize = 256;

#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) local: SocketAddr,
    peer: Option<SocketAddr>,
    inbox: VecDeque<(Vec<u8>, SocketAddr)>,
    /// The bytes of the inbox, with the overhead of each datagram.
    kept: usize,
    /// Returned by the next attempt, once.
    error: Option<Errno>,
}

impl Datagram {
    pub(crate) fn readiness(&self) -> Readiness {
        let has_error = self.error.is_some();
        Readiness { read: has_error || !self.inbox.is_empty(), write: true, ..Readiness::default() }
    }
}

fn gone<T>() -> io::Result<T> {
    Err(Errno::NOTCONN.into())
}

impl Net {
    fn datagram_mut(&mut self, key: Key) -> Option<&mut Datagram> {
        match &mut self.sockets.get_mut(key)?.kind {
            Kind::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    pub(crate) fn datagram_open(&mut self, host: usize, address: SocketAddr) -> io::Result<Key> {
        let local = self.bind(host, Ports::Udp, address, Sharing::Alone)?;
        let datagram = Datagram { local, peer: None, inbox: VecDeque::new(), kept: 0, error: None };
        let key = self.sockets.insert(Socket::new(host, Kind::Datagram(datagram)));
        self.nodes[host].datagrams.insert(local, key);
        Ok(key)
    }

    pub(crate) fn datagram_connect(&mut self, key: Key, to: SocketAddr) -> io::Result<()> {
        let Some(host) = self.sockets.get(key).map(|socket| socket.host) else { return gone() };
        let (_, source, ip) = self.route(host, to.ip())?;
        let Some(datagram) = self.datagram_mut(key) else { return gone() };
        let before = datagram.local;
        datagram.peer = Some(SocketAddr::new(ip, to.port()));
        if before.ip().is_unspecified() {
            // `connect` binds an unspecified address to the source address.
            datagram.local.set_ip(source);
            let local = datagram.local;
            self.nodes[host].datagrams.remove(&before);
            self.nodes[host].datagrams.insert(local, key);
        }
        Ok(())
    }

    pub(crate) fn datagram_peer(&self, key: Key) -> io::Result<SocketAddr> {
        match self.sockets.get(key).map(|socket| &socket.kind) {
            Some(Kind::Datagram(Datagram { peer: Some(peer), .. })) => Ok(*peer),
            _ => gone(),
        }
    }

    pub(crate) fn datagram_send(
        &mut self,
        key: Key,
        data: &[u8],
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        let Some(host) = self.sockets.get(key).map(|socket| socket.host) else { return gone() };
        let Some(datagram) = self.datagram_mut(key) else { return gone() };
        if let Some(error) = datagram.error.take() {
            return Err(error.into());
        }
        let (local, to) = (datagram.local, to.or(datagram.peer).ok_or(Errno::DESTADDRREQ)?);
        if data.len() > MOST {
            return Err(Errno::MSGSIZE.into());
        }
        if to.port() == 0 {
            return Err(Errno::INVAL.into());
        }
        if to.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(Errno::ACCESS.into());
        }
        let (to_host, source, ip) = self.route(host, to.ip())?;
        if local.ip().is_loopback() && to_host != host {
            return Err(Errno::INVAL.into());
        }
        let source = match local.ip().is_unspecified() {
            true => SocketAddr::new(source, local.port()),
            false => local,
        };
        let (now, to) = (self.now, SocketAddr::new(ip, to.port()));
        let copies = self.link_state(host, to_host).datagram(now, data.len());
        if copies.iter().all(Option::is_none) {
            self.note(to_host, EventKind::Lost("a datagram", host, Loss::Chance));
        }
        for at in copies.into_iter().flatten() {
            let data = data.to_vec();
            self.queue
                .push(at, PendingEvent::Datagram { from: key, from_host: host, source, to, data });
        }
        Ok(data.len())
    }

    /// Delivers a datagram.
    pub(crate) fn datagram_arrives(
        &mut self,
        from: Key,
        from_host: usize,
        source: SocketAddr,
        to: SocketAddr,
        data: Vec<u8>,
    ) {
        let Ok((host, ..)) = self.route(from_host, to.ip()) else { return };
        if !self.is_open(from_host, host) {
            return self.note(host, EventKind::Lost("a datagram", from_host, Loss::Cut));
        }
        let receiver = self.datagram_at(host, to);
        let receiver = receiver.filter(|key| match self.sockets.get(*key).map(|one| &one.kind) {
            Some(Kind::Datagram(datagram)) => datagram.peer.is_none_or(|peer| peer == source),
            _ => false,
        });
        let Some(receiver) = receiver else {
            self.note(host, EventKind::Lost("a datagram", from_host, Loss::Nobody));
            let now = self.now;
            let at = self.link_state(host, from_host).arrival(now, 0);
            return self.queue.push(at, PendingEvent::Unwanted(from));
        };
        let length = data.len();
        let Some(datagram) = self.datagram_mut(receiver) else { return };
        if datagram.kept + length + DATAGRAM_OVERHEAD > DEFAULT_BUFFER {
            return self.note(host, EventKind::Lost("a datagram", from_host, Loss::Full));
        }
        datagram.kept += length + DATAGRAM_OVERHEAD;
        datagram.inbox.push_back((data, source));
        self.note(host, EventKind::Packet("a datagram", from_host, length));
        self.notify(receiver);
    }

    /// A datagram had no receiver. A socket with a peer gets an error.
    pub(crate) fn datagram_unwanted(&mut self, key: Key) {
        let Some(datagram) = self.datagram_mut(key) else { return };
        if datagram.peer.is_some() {
            datagram.error = Some(Errno::CONNREFUSED);
            self.notify(key);
        }
    }

    pub(crate) fn datagram_receive(
        &mut self,
        key: Key,
        to: Room<'_, '_>,
        takes: bool,
    ) -> io::Result<(usize, SocketAddr)> {
        let Some(datagram) = self.datagram_mut(key) else { return gone() };
        if let Some(error) = datagram.error.take() {
            return Err(error.into());
        }
        let Some((data, source)) = datagram.inbox.front() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let (whole, length, source) = (data.len(), data.len().min(to.len()), *source);
        to.copy((data, &[]), length);
        if takes {
            datagram.kept -= whole + DATAGRAM_OVERHEAD;
            datagram.inbox.pop_front();
        }
        Ok((length, source))
    }

    pub(crate) fn datagram_close(&mut self, key: Key) {
        if let Some(Socket { host, kind: Kind::Datagram(datagram), .. }) = self.sockets.remove(key)
        {
            self.nodes[host].datagrams.remove(&datagram.local);
        }
    }
}
