//! The sockets of simulated hosts, of all kinds.
//!
//! # Readiness
//!
//! ```text
//!            (1)               (2)                 (3)
//!   quiet ────────▶ registered ────────▶ armed ────────────▶ reported ──▶ registered
//! ```
//!
//! (1) The kernel registers the socket; directions that are ready are reported. (2) An attempt
//! would have blocked. (3) The direction became ready: one event, and no other until the next
//! attempt would have blocked. Each direction is armed separately.
//! [`Driver`](pikake_kernel::Driver) guarantees no more than this, so a test finds a kernel that
//! relies on more.

use std::io;
use std::time::Duration;

use pikake_kernel::Token;
use pikake_traps::{Direction, SocketOption};
use rustix::io::Errno;
use slab::Slab;

use crate::datagram::Datagram;
use crate::listener::Listener;
use crate::stream::Stream;
use crate::unix::{UnixDatagram, UnixListener, UnixStream};

/// The key of a socket of the world. Numbers are not reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    index: usize,
    number: u64,
}

/// The kind of a socket, with its state.
#[derive(Debug)]
pub(crate) enum Kind {
    Listener(Listener),
    Stream(Stream),
    Datagram(Datagram),
    UnixListener(UnixListener),
    UnixStream(UnixStream),
    UnixDatagram(UnixDatagram),
}

/// The readiness of a socket, and which directions have ended.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Readiness {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) read_ended: bool,
    pub(crate) write_ended: bool,
}

#[derive(Debug)]
pub(crate) struct Socket {
    /// The socket's host.
    pub(crate) host: usize,
    /// The number of the kernel that has registered the socket, and its token.
    pub(crate) token: Option<(usize, Token)>,
    /// An attempt to read would have blocked.
    pub(crate) read_armed: bool,
    /// An attempt to write would have blocked.
    pub(crate) write_armed: bool,
    pub(crate) options: Options,
    pub(crate) kind: Kind,
}

impl Socket {
    pub(crate) fn new(host: usize, kind: Kind) -> Self {
        let options = Options::default();
        Self { host, token: None, read_armed: false, write_armed: false, options, kind }
    }

    pub(crate) fn arm(&mut self, direction: Direction) {
        match direction {
            Direction::Read => self.read_armed = true,
            Direction::Write => self.write_armed = true,
        }
    }
}

/// The sockets of the world.
#[derive(Default, Debug)]
pub(crate) struct Sockets {
    slots: Slab<(u64, Socket)>,
    last: u64,
}

impl Sockets {
    pub(crate) fn insert(&mut self, socket: Socket) -> Key {
        self.last += 1;
        Key { index: self.slots.insert((self.last, socket)), number: self.last }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Socket> {
        let (number, socket) = self.slots.get(key.index)?;
        (*number == key.number).then_some(socket)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Socket> {
        let (number, socket) = self.slots.get_mut(key.index)?;
        (*number == key.number).then_some(socket)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Socket> {
        self.get(key)?;
        Some(self.slots.remove(key.index).1)
    }

    /// The sockets of a host, in the order in which they were opened.
    pub(crate) fn of_host(&self, host: usize) -> Vec<Key> {
        let mut keys: Vec<Key> = self
            .slots
            .iter()
            .filter(|(_, (_, socket))| socket.host == host)
            .map(|(index, (number, _))| Key { index, number: *number })
            .collect();
        keys.sort_unstable_by_key(|key| key.number);
        keys
    }
}

/// The options of a socket. Only the linger time and the send buffer have an effect.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    no_delay: bool,
    broadcast: bool,
    keep_alive: bool,
    pub(crate) linger: Option<Duration>,
    receive_buffer: usize,
    pub(crate) send_buffer: usize,
}

/// The default size of a buffer, as on Linux (`net.core.rmem_default`).
pub(crate) const DEFAULT_BUFFER: usize = 212_992;

impl Default for Options {
    fn default() -> Self {
        Self {
            no_delay: false,
            broadcast: false,
            keep_alive: false,
            linger: None,
            receive_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
        }
    }
}

impl Socket {
    /// Whether the socket's kind supports an option.
    fn supports(&self, option: SocketOption) -> bool {
        match option {
            SocketOption::NoDelay(_) => matches!(self.kind, Kind::Listener(_) | Kind::Stream(_)),
            _ => true,
        }
    }

    pub(crate) fn set_option(&mut self, option: SocketOption) -> io::Result<()> {
        if !self.supports(option) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let options = &mut self.options;
        match option {
            SocketOption::NoDelay(on) => options.no_delay = on,
            SocketOption::Broadcast(on) => options.broadcast = on,
            SocketOption::KeepAlive(on) => options.keep_alive = on,
            SocketOption::Linger(time) => options.linger = time,
            // As Linux, which uses half for its own data.
            SocketOption::ReceiveBuffer(bytes) => options.receive_buffer = 2 * bytes,
            SocketOption::SendBuffer(bytes) => options.send_buffer = 2 * bytes,
        }
        Ok(())
    }

    pub(crate) fn option(&self, which: SocketOption) -> io::Result<SocketOption> {
        if !self.supports(which) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let options = &self.options;
        Ok(match which {
            SocketOption::NoDelay(_) => SocketOption::NoDelay(options.no_delay),
            SocketOption::Broadcast(_) => SocketOption::Broadcast(options.broadcast),
            SocketOption::KeepAlive(_) => SocketOption::KeepAlive(options.keep_alive),
            SocketOption::Linger(_) => SocketOption::Linger(options.linger),
            SocketOption::ReceiveBuffer(_) => SocketOption::ReceiveBuffer(options.receive_buffer),
            SocketOption::SendBuffer(_) => SocketOption::SendBuffer(options.send_buffer),
        })
    }
}
