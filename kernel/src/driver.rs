//! What the kernel asks of the outside: readiness, sockets, helper threads, names.
//!
//! A driver knows nothing of tasks. The real one is [`MioDriver`](crate::MioDriver); a simulator
//! brings its own.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

pub use pikake_traps::Job;
use pikake_traps::{
    Address, Addresses, Direction, OpenSocket, Reply, SocketOption, system_random, system_thread,
};

use crate::helpers::HelperThreads;

/// The kernel's number for a registered socket. A driver gives it back unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// Where the kernel keeps the socket.
    pub index: u32,
    /// Tells it from the sockets that were kept there before.
    pub generation: u32,
}

/// Something became of a registered socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Which socket.
    pub token: Token,
    /// An attempt to read is worthwhile.
    pub readable: bool,
    /// An attempt to write is worthwhile.
    pub writable: bool,
    /// No more will come to read: every further attempt succeeds or fails at once.
    pub read_ended: bool,
    /// Nothing can be written any more: every further attempt fails at once.
    pub write_ended: bool,
}

/// What a thread does.
pub type Life = Box<dyn FnOnce() + Send>;

/// The outside of a kernel. See [`Sockets`](pikake_traps::Sockets) for what each attempt means.
///
/// Readiness is edge-triggered: after a socket is registered, an event is reported if it is ready
/// at that time, and another one each time it becomes ready again after an attempt would have
/// blocked.
#[expect(clippy::missing_errors_doc, reason = "they are the system's, passed on")]
pub trait Driver {
    /// What a socket is. Dropping it closes it.
    type Socket;

    /// Something that brings the driver out of [`wait`](Self::wait), called on any thread.
    fn waker(&self) -> Box<dyn Fn() + Send + Sync>;

    /// Waits for events, at most so long (`None`: without limit), and appends them.
    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;

    /// Starts to report events of a socket.
    fn register(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Tells that an attempt on a registered socket would have blocked.
    fn blocked(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Stops to report events of a socket that is about to be dropped.
    fn deregister(&mut self, socket: &Self::Socket);

    /// Whether a transfer shorter than asked for says that the next one would block.
    fn short_means_blocked(&self, socket: &Self::Socket) -> bool;

    /// Opens a socket.
    fn open(&mut self, what: &OpenSocket<'_>) -> io::Result<Self::Socket>;

    /// Opens two Unix sockets that are connected to each other.
    fn pair(&mut self, datagram: bool) -> io::Result<(Self::Socket, Self::Socket)>;

    /// Takes over a descriptor.
    fn adopt(&mut self, descriptor: OwnedFd) -> io::Result<Self::Socket>;

    /// Attempts to accept.
    fn accept(&mut self, socket: &Self::Socket) -> io::Result<(Self::Socket, Address)>;

    /// The outcome of making a connection.
    fn connected(&mut self, socket: &Self::Socket) -> io::Result<()>;

    /// Attempts to read.
    fn read(&mut self, socket: &Self::Socket, to: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Whether a descriptor is ready, without moving anything.
    fn poll(&mut self, socket: &Self::Socket, direction: Direction) -> io::Result<()> {
        let _ = (socket, direction);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Attempts to peek.
    fn peek(&mut self, socket: &Self::Socket, to: &mut [u8]) -> io::Result<usize>;

    /// Attempts to write.
    fn write(&mut self, socket: &Self::Socket, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Attempts to receive a datagram.
    fn receive(&mut self, socket: &Self::Socket, to: &mut [u8]) -> io::Result<(usize, Address)>;

    /// Attempts to send a datagram.
    fn send(
        &mut self,
        socket: &Self::Socket,
        data: &[u8],
        to: Option<&Address>,
    ) -> io::Result<usize>;

    /// Gives a datagram socket a peer.
    fn connect(&mut self, socket: &Self::Socket, to: &Address) -> io::Result<()>;

    /// Ends one or both directions.
    fn shutdown(&mut self, socket: &Self::Socket, how: Shutdown) -> io::Result<()>;

    /// The socket's own address.
    fn local_address(&self, socket: &Self::Socket) -> io::Result<Address>;

    /// The address at the other end.
    fn peer_address(&self, socket: &Self::Socket) -> io::Result<Address>;

    /// Changes a property.
    fn set_option(&mut self, socket: &Self::Socket, option: SocketOption) -> io::Result<()>;

    /// Reads a property.
    fn option(&self, socket: &Self::Socket, which: SocketOption) -> io::Result<SocketOption>;

    /// Says how many closures may run at the same time, and how long a thread that has nothing to do
    /// is kept. Called once, before the first of them. A driver without threads has no use for it.
    fn limit_threads(&mut self, limit: usize, idle_exit: Duration) {
        let _ = (limit, idle_exit);
    }

    /// What the helper threads are doing.
    fn threads(&self) -> HelperThreads {
        HelperThreads::default()
    }

    /// Starts a thread of the program's own. A closure that is not run comes back, as far as it is
    /// there still.
    fn start_thread(&mut self, name: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        system_thread(name, life).map_err(|error| (error, None))
    }

    /// Runs a job on a helper thread, or has it wait its turn. One that cannot be run comes back.
    fn blocking(&mut self, job: Job) -> Result<(), Job>;

    /// Looks a name up and replies, from any thread. What cannot be started comes back as a job
    /// that the caller drops.
    fn lookup(&mut self, host: &str, port: u16, reply: Reply<Addresses>) -> Result<(), Job>;

    /// Whether the system is the outside; a driver that simulates one refuses.
    fn system(&self) -> io::Result<()> {
        Ok(())
    }

    /// What the wall clock shows.
    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Fills a buffer with random bytes.
    fn random(&mut self, to: &mut [u8]) {
        system_random(to);
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}
