//! TCP connections: the state of one end, and its transitions by segments.
//!
//! ```text
//!                 (1)            (2)
//!   connecting ─────────▶ open ───────────▶ dead
//!        │                 ▲                  ▲
//!        └─────────────────┼──────────────────┘ (4)
//!   half open ─────────────┘ (3)
//! ```
//!
//! (1) `Accepted` arrives from the listener's host. (2) `Reset`, or the peer was unreachable for
//! too long. (3) `Established` arrives, and the listener can accept this end. (4) The attempt was
//! refused or timed out.
//!
//! Each direction of an open connection ends separately:
//!
//! ```text
//!          (5)           (6)          (7)
//!   open ─────▶ requested ─────▶ sent ─────▶ arrived
//! ```
//!
//! (5) [`Net::stream_shutdown`], or the close of the socket. (6) All data written before were sent.
//! (7) The peer received the end. A closed socket remains as an *orphan* until both directions have
//! ended; data that arrive for it cause a reset, as on Linux.
//!
//! Segments of one direction arrive in order. If the link is cut, their sender *holds* them and
//! sends them again, at growing intervals, until it gives up. The room at the receiver limits a
//! sender, so unread data fill first the receiver's buffer, then the sender's.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::bytes;
use crate::log::EventKind;
use crate::net::Net;
use crate::ports::Ports;
use crate::resend::Resend;
use crate::socket::{Key, Kind, Readiness, Socket};
use crate::wire::{PendingEvent, Segment};

/// The timeout of an attempt to connect, as on Linux.
const CONNECT_LIMIT: std::time::Duration = std::time::Duration::from_secs(127);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Connecting,
    /// The handshake with a client of this listener is not complete.
    HalfOpen(Key),
    Open,
    Dead,
}

/// The progress of this side's end of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fin {
    Open,
    Requested,
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
    /// Bytes that arrived and were not read.
    pub(crate) inbox: VecDeque<u8>,
    /// The peer's end of data has arrived.
    pub(crate) fin_in: bool,
    pub(crate) shut_read: bool,
    /// Bytes that were written and not sent.
    pub(crate) outbox: VecDeque<u8>,
    pub(crate) fin: Fin,
    /// The room at the peer, in bytes.
    credit: usize,
    /// The room that was not announced to the peer yet, in bytes.
    pub(crate) owed: usize,
    /// Returned by the next attempt, once.
    pub(crate) error: Option<Errno>,
    /// The program has closed the socket.
    pub(crate) orphan: bool,
    /// The socket has a port of its own, as a client.
    has_port: bool,
    /// The arrival of the last segment that was sent.
    pub(crate) last_arrival: u64,
    pub(crate) resend: Resend,
    /// The number of the peer's segments that have arrived, which the next one has.
    pub(crate) arrived: u64,
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
            fin: Fin::Open,
            credit: 0,
            owed: 0,
            error: None,
            orphan: false,
            has_port: state == State::Connecting,
            last_arrival: 0,
            resend: Resend::default(),
            arrived: 0,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let is_over = self.state == State::Dead || self.error.is_some();
        let is_open = self.state == State::Open;
        let read_ended = self.fin_in || self.shut_read || is_over;
        let write_ended = is_over || is_open && self.fin != Fin::Open;
        Readiness {
            read: !self.inbox.is_empty() || read_ended,
            write: write_ended || is_open && self.outbox.is_empty(),
            read_ended,
            write_ended,
        }
    }

    /// Whether the connection can be removed.
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

    /// Begins an attempt to connect.
    pub(crate) fn stream_connect(&mut self, host: usize, to: SocketAddr) -> io::Result<Key> {
        let (remote_host, source, ip) = self.route(host, to.ip())?;
        let to = SocketAddr::new(ip, to.port());
        let port = self.free_port(host, Ports::Tcp, source).map_err(|_| Errno::ADDRNOTAVAIL)?;
        self.nodes[host].connected.insert(port);
        let local = SocketAddr::new(source, port);
        let stream = Stream::new(local, to, remote_host, State::Connecting);
        let key = self.sockets.insert(Socket::new(host, Kind::Stream(stream)));
        let at = self.now;
        let at = self.link_state(host, remote_host).arrival(at, 0);
        self.queue.push(at, PendingEvent::Connect { from: key, to, tries: 0 });
        self.queue.push_after(self.now, CONNECT_LIMIT, PendingEvent::ConnectTimeout(key));
        Ok(key)
    }

    pub(crate) fn stream_connect_timeout(&mut self, key: Key) {
        if self.stream(key).is_some_and(|stream| stream.state == State::Connecting) {
            self.fail(key, Errno::TIMEDOUT);
        }
    }

    /// The result of the attempt to connect.
    pub(crate) fn stream_connected(&mut self, key: Key) -> io::Result<()> {
        let Some(stream) = self.stream_mut(key) else { return gone() };
        match stream.error.take() {
            Some(error) => Err(error.into()),
            None if stream.state == State::Connecting => would_block(),
            None => Ok(()),
        }
    }

    /// The connection fails on this side.
    pub(crate) fn fail(&mut self, key: Key, error: Errno) {
        let Some(stream) = self.stream_mut(key) else { return };
        stream.state = State::Dead;
        stream.error = Some(error);
        stream.outbox.clear();
        stream.resend.stop();
        self.notify(key);
        self.remove_if_over(key);
    }

    /// Removes a connection that is over.
    pub(crate) fn remove_if_over(&mut self, key: Key) {
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
        if let State::HalfOpen(listener) = stream.state {
            self.forget_half_open(listener, key);
        }
    }

    // --- segments ------------------------------------------------------------------------------

    /// Sends the data for which the peer has room.
    pub(crate) fn pump(&mut self, key: Key) {
        let most = self.settings.segment;
        while let Some(stream) = self.stream_mut(key) {
            if stream.state != State::Open {
                break;
            }
            let length = stream.outbox.len().min(stream.credit).min(most);
            if length > 0 {
                stream.credit -= length;
                let data = bytes::take(&mut stream.outbox, length);
                self.transmit(key, Segment::Data(data));
            } else if stream.fin == Fin::Requested && stream.outbox.is_empty() {
                stream.fin = Fin::Sent;
                self.transmit(key, Segment::Fin);
            } else {
                break;
            }
        }
    }

    /// Processes a segment that arrived.
    pub(crate) fn receive_segment(&mut self, from: Option<Key>, to: Key, segment: Segment) {
        let buffer = self.settings.stream_buffer;
        let host = self.sockets.get(to).map(|socket| socket.host);
        let Some(host) = host.filter(|_| self.stream(to).is_some()) else {
            return self.refuse_segment(from, &segment);
        };
        let remote = self.stream(to).map_or(host, |stream| stream.remote_host);
        self.note(host, EventKind::Packet(segment.name(), remote, segment.len()));
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
                if let State::HalfOpen(listener) = stream.state {
                    stream.state = State::Open;
                    self.established(listener, to);
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
                    self.remove_if_over(from);
                }
            }
            Segment::Room(more) => {
                stream.credit += more;
                self.pump(to);
            }
            Segment::Reset => {
                let error = match stream.state {
                    State::Connecting => Errno::CONNREFUSED,
                    State::HalfOpen(_) => return self.remove_stream(to),
                    State::Dead => return,
                    State::Open if stream.fin_in => Errno::PIPE,
                    State::Open => Errno::CONNRESET,
                };
                return self.fail(to, error);
            }
        }
        self.notify(to);
        self.remove_if_over(to);
    }
}
