//! TCP connections: one end of one, and what segments do to it.
//!
//! ```text
//!                 (1)            (2)
//!   connecting ─────────▶ open ───────────▶ dead
//!        │                 ▲                  ▲
//!        └─────────────────┼──────────────────┘ (4)
//!   embryo ────────────────┘ (3)
//! ```
//!
//! (1) `Accepted` comes back from the listener's host. (2) `Reset`, or the other side was out of
//! reach for too long. (3) `Established` arrives; the end comes before its listener. (4) Refused, or
//! nobody answered.
//!
//! Each direction of an open connection ends by itself:
//!
//! ```text
//!          (5)           (6)          (7)
//!   going ─────▶ wanted ─────▶ sent ─────▶ arrived
//! ```
//!
//! (5) [`Net::stream_shutdown`], or the close of the socket. (6) Everything written before is on its
//! way. (7) The other side has it. A socket that was closed lives on as an *orphan* until both
//! directions have ended; data that still come for it are met with a reset, as on Linux.
//!
//! Segments of one direction arrive in order. Where the way is cut they are *held* by their sender
//! and sent again, at growing distances, until that gives up. What a stream may send is bounded by
//! the room at the other end, so that data which are not read fill first that, then the sender.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::bytes;
use crate::log::What;
use crate::net::Net;
use crate::ports::Ports;
use crate::resend::Resend;
use crate::socket::{Key, Kind, Readiness, Socket};
use crate::wire::{Later, Segment};

/// How long an attempt to connect is made, as on Linux.
const CONNECT_LIMIT: std::time::Duration = std::time::Duration::from_secs(127);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Connecting,
    /// Made by a listener that has not been told yet.
    Embryo(Key),
    Open,
    Dead,
}

/// How far the end of what this side sends has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fin {
    Going,
    Wanted,
    Sent,
    Arrived,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) remote_host: usize,
    /// The other end, once it is known.
    pub(crate) peer: Option<Key>,
    pub(crate) state: State,
    /// Arrived and not read.
    pub(crate) inbox: VecDeque<u8>,
    /// The other side's end has arrived.
    pub(crate) fin_in: bool,
    pub(crate) shut_read: bool,
    /// Written and not on its way.
    pub(crate) outbox: VecDeque<u8>,
    pub(crate) fin: Fin,
    /// How much the other end has room for.
    credit: usize,
    /// How much room the other end has not been told of.
    pub(crate) owed: usize,
    /// Told to the next attempt, once.
    pub(crate) error: Option<Errno>,
    /// The program has closed it.
    pub(crate) orphan: bool,
    /// It has its port to itself.
    has_port: bool,
    /// When the last segment that was sent arrives.
    pub(crate) last_arrival: u64,
    pub(crate) resend: Resend,
}

impl Stream {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, host: usize, state: State) -> Self {
        Self {
            local,
            remote,
            remote_host: host,
            peer: None,
            state,
            inbox: VecDeque::new(),
            fin_in: false,
            shut_read: false,
            outbox: VecDeque::new(),
            fin: Fin::Going,
            credit: 0,
            owed: 0,
            error: None,
            orphan: false,
            has_port: state == State::Connecting,
            last_arrival: 0,
            resend: Resend::default(),
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let is_over = self.state == State::Dead || self.error.is_some();
        let is_open = self.state == State::Open;
        let read_ended = self.fin_in || self.shut_read || is_over;
        let write_ended = is_over || is_open && self.fin != Fin::Going;
        Readiness {
            read: !self.inbox.is_empty() || read_ended,
            write: write_ended || is_open && self.outbox.is_empty(),
            read_ended,
            write_ended,
        }
    }

    /// Whether nothing of it is left to happen.
    fn is_over(&self) -> bool {
        self.orphan && (self.state == State::Dead || self.fin == Fin::Arrived && self.fin_in)
    }

    pub(crate) fn connected_state(&self) -> io::Result<()> {
        let has_ended = self.fin == Fin::Arrived && self.fin_in;
        match self.state {
            State::Open if !has_ended => Ok(()),
            _ => Err(Errno::NOTCONN.into()),
        }
    }
}

pub(crate) fn gone<T>() -> io::Result<T> {
    Err(Errno::NOTCONN.into())
}

pub(crate) fn would_block<T>() -> io::Result<T> {
    Err(io::ErrorKind::WouldBlock.into())
}

impl Net {
    pub(crate) fn stream(&self, key: Key) -> Option<&Stream> {
        match &self.sockets.get(key)?.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn stream_mut(&mut self, key: Key) -> Option<&mut Stream> {
        match &mut self.sockets.get_mut(key)?.kind {
            Kind::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Starts to connect.
    pub(crate) fn stream_connect(&mut self, host: usize, to: SocketAddr) -> io::Result<Key> {
        let (remote_host, source, ip) = self.route(host, to.ip())?;
        let to = SocketAddr::new(ip, to.port());
        let port = self.free_port(host, Ports::Tcp, source).map_err(|_| Errno::ADDRNOTAVAIL)?;
        self.nodes[host].connected.insert(port);
        let local = SocketAddr::new(source, port);
        let stream = Stream::new(local, to, remote_host, State::Connecting);
        let key = self.sockets.insert(Socket::new(host, Kind::Stream(stream)));
        let at = self.now;
        let at = self.way(host, remote_host).arrival(at, 0);
        self.queue.push(at, Later::Connect { from: key, to, tries: 0 });
        self.queue.push_after(self.now, CONNECT_LIMIT, Later::ConnectTimeout(key));
        Ok(key)
    }

    pub(crate) fn stream_connect_timeout(&mut self, key: Key) {
        if self.stream(key).is_some_and(|stream| stream.state == State::Connecting) {
            self.kill(key, Errno::TIMEDOUT);
        }
    }

    /// What became of the attempt to connect.
    pub(crate) fn stream_connected(&mut self, key: Key) -> io::Result<()> {
        let Some(stream) = self.stream_mut(key) else { return gone() };
        match stream.error.take() {
            Some(error) => Err(error.into()),
            None if stream.state == State::Connecting => would_block(),
            None => Ok(()),
        }
    }

    /// The connection has failed on this side.
    pub(crate) fn kill(&mut self, key: Key, error: Errno) {
        let Some(stream) = self.stream_mut(key) else { return };
        stream.state = State::Dead;
        stream.error = Some(error);
        stream.outbox.clear();
        stream.resend = Resend::default();
        self.notify(key);
        self.bury(key);
    }

    /// Forgets a connection that is over.
    pub(crate) fn bury(&mut self, key: Key) {
        if self.stream(key).is_some_and(Stream::is_over) {
            self.remove_stream(key);
        }
    }

    pub(crate) fn remove_stream(&mut self, key: Key) {
        let Some(Socket { host, kind: Kind::Stream(stream), .. }) = self.sockets.remove(key) else {
            return;
        };
        if stream.has_port {
            self.nodes[host].connected.remove(&stream.local.port());
        }
        if let State::Embryo(listener) = stream.state {
            self.forget_embryo(listener, key);
        }
    }

    // --- segments ------------------------------------------------------------------------------

    /// Sends off what the other end has room for.
    pub(crate) fn pump(&mut self, key: Key) {
        let most = self.settings.segment;
        while let Some(stream) = self.stream_mut(key)
            && stream.state == State::Open
        {
            let length = stream.outbox.len().min(stream.credit).min(most);
            if length > 0 {
                stream.credit -= length;
                let data = bytes::take(&mut stream.outbox, length);
                self.transmit(key, Segment::Data(data));
            } else if stream.fin == Fin::Wanted && stream.outbox.is_empty() {
                stream.fin = Fin::Sent;
                self.transmit(key, Segment::Fin);
            } else {
                break;
            }
        }
    }

    /// A segment came through.
    pub(crate) fn receive_segment(&mut self, from: Option<Key>, to: Key, segment: Segment) {
        let buffer = self.settings.stream_buffer;
        let host = self.sockets.get(to).map(|socket| socket.host);
        let Some(host) = host.filter(|_| self.stream(to).is_some()) else {
            return self.refuse_segment(from, &segment);
        };
        let remote = self.stream(to).map_or(host, |stream| stream.remote_host);
        self.note(host, What::Packet(segment.name(), remote, segment.len()));
        let Some(stream) = self.stream_mut(to) else { return };
        match segment {
            Segment::Accepted => {
                stream.state = State::Open;
                stream.peer = from;
                stream.credit = buffer;
                self.transmit(to, Segment::Established);
            }
            Segment::Established => {
                stream.credit = buffer;
                if let State::Embryo(listener) = stream.state {
                    stream.state = State::Open;
                    self.hatch(listener, to);
                }
            }
            Segment::Data(_) if stream.orphan || stream.state == State::Dead => {
                self.transmit(to, Segment::Reset);
                return self.remove_stream(to);
            }
            Segment::Data(data) => stream.inbox.extend(&data),
            Segment::Fin => {
                stream.fin_in = true;
                if let Some(sender) = from.and_then(|from| self.stream_mut(from)) {
                    sender.fin = Fin::Arrived;
                }
                if let Some(from) = from {
                    self.bury(from);
                }
            }
            Segment::Room(more) => {
                stream.credit += more;
                self.pump(to);
            }
            Segment::Reset => {
                let error = match stream.state {
                    State::Connecting => Errno::CONNREFUSED,
                    State::Embryo(_) => return self.remove_stream(to),
                    State::Dead => return,
                    State::Open if stream.fin_in => Errno::PIPE,
                    State::Open => Errno::CONNRESET,
                };
                return self.kill(to, error);
            }
        }
        self.notify(to);
        self.bury(to);
    }
}
