//! Unix datagram sockets: in order, without loss, and a sender waits for room at its receiver.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;

use rustix::io::Errno;

use super::{gone, would_block};
use crate::bytes::Room;
use crate::net::Net;
use crate::socket::{Key, Kind, Readiness, Socket};

/// The capacity of a socket, in datagrams (`net.unix.max_dgram_qlen`).
const DATAGRAMS: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct UnixDatagram {
    pub(crate) name: OsString,
    pub(crate) peer: Option<Key>,
    inbox: VecDeque<(Vec<u8>, OsString)>,
    /// The senders that wait for room at this socket.
    pub(crate) waiting: Vec<Key>,
    /// The receiver at which this socket waits for room.
    blocked_on: Option<Key>,
}

impl Net {
    pub(crate) fn unix_datagram(&self, key: Key) -> Option<&UnixDatagram> {
        match &self.sockets.get(key)?.kind {
            Kind::UnixDatagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    fn unix_datagram_mut(&mut self, key: Key) -> Option<&mut UnixDatagram> {
        match &mut self.sockets.get_mut(key)?.kind {
            Kind::UnixDatagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    pub(crate) fn unix_datagram_readiness(&self, datagram: &UnixDatagram) -> Readiness {
        let receiver = datagram.blocked_on.and_then(|key| self.unix_datagram(key));
        let write = receiver.is_none_or(|receiver| receiver.inbox.len() < DATAGRAMS);
        Readiness { read: !datagram.inbox.is_empty(), write, ..Readiness::default() }
    }

    pub(crate) fn unix_datagram_open(
        &mut self,
        host: usize,
        path: Option<&OsStr>,
    ) -> io::Result<Key> {
        let name = path.unwrap_or_default().to_owned();
        let datagram = UnixDatagram { name, ..UnixDatagram::default() };
        let key = self.sockets.insert(Socket::new(host, Kind::UnixDatagram(datagram)));
        if let Some(path) = path {
            self.unix_bind(host, path, key)?;
        }
        Ok(key)
    }

    pub(crate) fn unix_datagram_pair(&mut self, host: usize) -> (Key, Key) {
        let mut open =
            || self.sockets.insert(Socket::new(host, Kind::UnixDatagram(UnixDatagram::default())));
        let (one, other) = (open(), open());
        for (key, peer) in [(one, other), (other, one)] {
            if let Some(datagram) = self.unix_datagram_mut(key) {
                datagram.peer = Some(peer);
            }
        }
        (one, other)
    }

    fn unix_datagram_at(&self, host: usize, path: &OsStr) -> Result<Key, Errno> {
        match self.unix_bound(host, path)? {
            (key, Kind::UnixDatagram(_)) => Ok(key),
            _ => Err(Errno::PROTOTYPE),
        }
    }

    pub(crate) fn unix_datagram_connect(&mut self, key: Key, path: &OsStr) -> io::Result<()> {
        let Some(host) = self.sockets.get(key).map(|socket| socket.host) else { return gone() };
        let peer = self.unix_datagram_at(host, path)?;
        let Some(datagram) = self.unix_datagram_mut(key) else { return gone() };
        datagram.peer = Some(peer);
        Ok(())
    }

    pub(crate) fn unix_send(
        &mut self,
        key: Key,
        data: &[u8],
        to: Option<&OsStr>,
    ) -> io::Result<usize> {
        let Some(socket) = self.sockets.get(key) else { return gone() };
        let (host, most) = (socket.host, socket.options.send_buffer);
        let Some(sender) = self.unix_datagram(key) else { return gone() };
        let name = sender.name.clone();
        let receiver = match to {
            Some(path) => self.unix_datagram_at(host, path)?,
            None => sender.peer.ok_or(Errno::NOTCONN)?,
        };
        if data.len() > most {
            return Err(Errno::MSGSIZE.into());
        }
        let Some(found) = self.unix_datagram_mut(receiver) else {
            if let Some(sender) = self.unix_datagram_mut(key) {
                sender.peer = None;
            }
            return Err(Errno::CONNREFUSED.into());
        };
        if found.peer.is_some_and(|peer| peer != key) {
            return Err(Errno::PERM.into());
        }
        if found.inbox.len() >= DATAGRAMS {
            found.waiting.push(key);
            if let Some(sender) = self.unix_datagram_mut(key) {
                sender.blocked_on = Some(receiver);
            }
            return would_block();
        }
        found.inbox.push_back((data.to_vec(), name));
        if let Some(sender) = self.unix_datagram_mut(key) {
            sender.blocked_on = None;
        }
        self.notify(receiver);
        Ok(data.len())
    }

    pub(crate) fn unix_receive(
        &mut self,
        key: Key,
        to: Room<'_, '_>,
        takes: bool,
    ) -> io::Result<(usize, OsString)> {
        let Some(datagram) = self.unix_datagram_mut(key) else { return gone() };
        let Some((data, from)) = datagram.inbox.front() else { return would_block() };
        let (length, from) = (data.len().min(to.len()), from.clone());
        to.copy((data, &[]), length);
        if takes {
            datagram.inbox.pop_front();
            for sender in std::mem::take(&mut datagram.waiting) {
                self.notify(sender);
            }
        }
        Ok((length, from))
    }
}
