//! Unix sockets, their names and streams: within a host, in order, and without delay.
//!
//! A path is bound in the world's own table, without a file. On a real system the file stays when
//! its socket is closed, and binding the path again fails until the file is removed. A simulated
//! program cannot remove it, so a path whose socket is closed can be bound again. Connecting to
//! such a path is refused, as on a real system.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::net::Shutdown;

use rustix::io::Errno;

use crate::bytes::{self, Room};
use crate::net::Net;
use crate::socket::{Key, Kind, Readiness, Socket};

mod datagram;

pub(crate) use datagram::UnixDatagram;

#[derive(Debug)]
pub(crate) struct UnixListener {
    pub(crate) path: OsString,
    backlog: usize,
    waiting: VecDeque<Key>,
}

#[derive(Debug, Default)]
pub(crate) struct UnixStream {
    /// The other end, while it is open.
    peer: Option<Key>,
    /// The listener's path, at the accepted end; otherwise empty.
    pub(crate) name: OsString,
    pub(crate) peer_name: OsString,
    inbox: VecDeque<u8>,
    /// The other end has ended its writing direction.
    ended: bool,
    shut_read: bool,
    shut_write: bool,
    /// Returned by the next read without data, once.
    error: Option<Errno>,
}

impl UnixListener {
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness { read: !self.waiting.is_empty(), ..Readiness::default() }
    }
}

pub(crate) fn gone<T>() -> io::Result<T> {
    Err(Errno::NOTCONN.into())
}

pub(crate) fn would_block<T>() -> io::Result<T> {
    Err(io::ErrorKind::WouldBlock.into())
}

impl Net {
    fn unix_stream(&self, key: Key) -> Option<&UnixStream> {
        match &self.sockets.get(key)?.kind {
            Kind::UnixStream(stream) => Some(stream),
            _ => None,
        }
    }

    fn unix_stream_mut(&mut self, key: Key) -> Option<&mut UnixStream> {
        match &mut self.sockets.get_mut(key)?.kind {
            Kind::UnixStream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn unix_stream_readiness(&self, stream: &UnixStream) -> Readiness {
        let read_ended = stream.ended || stream.shut_read;
        let peer = stream.peer.and_then(|peer| self.unix_stream(peer));
        let write_ended = stream.shut_write || peer.is_none_or(|peer| peer.shut_read);
        let room = peer.map_or(0, |peer| self.unix_room(peer));
        Readiness {
            read: read_ended || !stream.inbox.is_empty(),
            write: write_ended || room > 0,
            read_ended,
            write_ended,
        }
    }

    fn unix_room(&self, receiver: &UnixStream) -> usize {
        self.settings.stream_buffer.saturating_sub(receiver.inbox.len())
    }

    // --- names ---------------------------------------------------------------------------------

    pub(crate) fn unix_bind(&mut self, host: usize, path: &OsStr, key: Key) -> io::Result<()> {
        let bound = self.nodes[host].paths.get(path).copied();
        if bound.is_some_and(|bound| self.sockets.get(bound).is_some()) {
            self.sockets.remove(key);
            return Err(Errno::ADDRINUSE.into());
        }
        self.nodes[host].paths.insert(path.to_owned(), key);
        Ok(())
    }

    pub(crate) fn unix_bound(&self, host: usize, path: &OsStr) -> Result<(Key, &Kind), Errno> {
        let key = *self.nodes[host].paths.get(path).ok_or(Errno::NOENT)?;
        let socket = self.sockets.get(key).ok_or(Errno::CONNREFUSED)?;
        Ok((key, &socket.kind))
    }

    pub(crate) fn unix_listen(&mut self, host: usize, path: &OsStr, most: u32) -> io::Result<Key> {
        let waiting = VecDeque::new();
        let listener = UnixListener { path: path.to_owned(), backlog: most as usize, waiting };
        let key = self.sockets.insert(Socket::new(host, Kind::UnixListener(listener)));
        self.unix_bind(host, path, key)?;
        Ok(key)
    }

    pub(crate) fn unix_connect(&mut self, host: usize, path: &OsStr) -> io::Result<Key> {
        let listener = match self.unix_bound(host, path)? {
            (key, Kind::UnixListener(listener)) if listener.waiting.len() <= listener.backlog => {
                key
            }
            (_, Kind::UnixListener(_)) => return would_block(),
            (_, Kind::UnixStream(_) | Kind::UnixDatagram(_)) => {
                return Err(Errno::PROTOTYPE.into());
            }
            _ => return Err(Errno::CONNREFUSED.into()),
        };
        let (one, other) = self.unix_pair(host);
        if let Some(stream) = self.unix_stream_mut(one) {
            stream.peer_name = path.to_owned();
        }
        if let Some(stream) = self.unix_stream_mut(other) {
            stream.name = path.to_owned();
        }
        if let Some(Kind::UnixListener(found)) =
            self.sockets.get_mut(listener).map(|socket| &mut socket.kind)
        {
            found.waiting.push_back(other);
        }
        self.notify(listener);
        Ok(one)
    }

    pub(crate) fn unix_accept(&mut self, key: Key) -> io::Result<(Key, OsString)> {
        match self.sockets.get_mut(key).map(|socket| &mut socket.kind) {
            Some(Kind::UnixListener(listener)) => match listener.waiting.pop_front() {
                Some(stream) => Ok((stream, OsString::new())),
                None => would_block(),
            },
            _ => Err(Errno::INVAL.into()),
        }
    }

    pub(crate) fn unix_pair(&mut self, host: usize) -> (Key, Key) {
        let mut open =
            || self.sockets.insert(Socket::new(host, Kind::UnixStream(UnixStream::default())));
        let (one, other) = (open(), open());
        for (key, peer) in [(one, other), (other, one)] {
            if let Some(stream) = self.unix_stream_mut(key) {
                stream.peer = Some(peer);
            }
        }
        (one, other)
    }

    // --- streams -------------------------------------------------------------------------------

    pub(crate) fn unix_read(
        &mut self,
        key: Key,
        to: Room<'_, '_>,
        takes: bool,
    ) -> io::Result<usize> {
        let Some(stream) = self.unix_stream_mut(key) else { return gone() };
        let most = to.len();
        if stream.inbox.is_empty() || most == 0 {
            return match stream.error.take() {
                Some(error) => Err(error.into()),
                None if most == 0 || stream.ended || stream.shut_read => Ok(0),
                None => would_block(),
            };
        }
        let length = most.min(stream.inbox.len());
        to.copy(stream.inbox.as_slices(), length);
        if takes {
            stream.inbox.drain(..length);
            if let Some(peer) = stream.peer {
                self.notify(peer);
            }
        }
        Ok(length)
    }

    pub(crate) fn unix_write(&mut self, key: Key, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(stream) = self.unix_stream(key) else { return gone() };
        let peer = stream.peer.filter(|_| !stream.shut_write).ok_or(Errno::PIPE)?;
        let receiver = self.unix_stream(peer).filter(|peer| !peer.shut_read).ok_or(Errno::PIPE)?;
        let room = self.unix_room(receiver);
        let most: usize = from.iter().map(|buffer| buffer.len()).sum();
        if most == 0 {
            return Ok(0);
        }
        if room == 0 {
            return would_block();
        }
        let length = most.min(room);
        if let Some(receiver) = self.unix_stream_mut(peer) {
            bytes::put(&mut receiver.inbox, from, length);
        }
        self.notify(peer);
        Ok(length)
    }

    pub(crate) fn unix_shutdown(&mut self, key: Key, how: Shutdown) -> io::Result<()> {
        let Some(stream) = self.unix_stream_mut(key) else { return gone() };
        stream.shut_read |= how != Shutdown::Write;
        stream.shut_write |= how != Shutdown::Read;
        let peer = stream.peer;
        if let Some(peer) = peer {
            if how != Shutdown::Read {
                if let Some(other) = self.unix_stream_mut(peer) {
                    other.ended = true;
                }
            }
            self.notify(peer);
        }
        self.notify(key);
        Ok(())
    }

    pub(crate) fn unix_peer_name(&self, key: Key) -> io::Result<OsString> {
        match self.sockets.get(key).map(|socket| &socket.kind) {
            Some(Kind::UnixStream(stream)) => Ok(stream.peer_name.clone()),
            Some(Kind::UnixDatagram(UnixDatagram { peer: Some(peer), .. })) => {
                Ok(self.unix_datagram(*peer).map(|peer| peer.name.clone()).unwrap_or_default())
            }
            _ => gone(),
        }
    }

    // --- the end -------------------------------------------------------------------------------

    /// The program has closed a Unix socket of any kind.
    pub(crate) fn unix_close(&mut self, key: Key) {
        let Some(Socket { kind, .. }) = self.sockets.remove(key) else { return };
        match kind {
            Kind::UnixListener(listener) => {
                for stream in listener.waiting {
                    self.unix_close(stream);
                }
            }
            Kind::UnixStream(UnixStream { peer: Some(peer), inbox, .. }) => {
                if let Some(other) = self.unix_stream_mut(peer) {
                    other.peer = None;
                    other.ended = true;
                    other.error = (!inbox.is_empty()).then_some(Errno::CONNRESET);
                }
                self.notify(peer);
            }
            Kind::UnixDatagram(datagram) => {
                for sender in datagram.waiting {
                    self.notify(sender);
                }
            }
            _ => {}
        }
    }
}
