//! The real outside: sockets of the system, readiness from epoll or kqueue through mio.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
#[cfg(not(mio_unsupported_force_poll_poll))]
use std::os::fd::RawFd;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Waker};
use pikake_traps::{
    Addresses, Attempt, Direction, Done, OpenSocket, Opened, Reply, SocketOption, first_buffers,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, MsgHdr, SockAddr, Socket, Type};

use crate::addresses::{from_address, from_any, to_address};
use crate::alarm::Alarm;
use crate::driver::{Driver, Event, Job, Token};
use crate::helpers::{HelperThreads, Helpers};

/// How many events one call takes from the system; the rest come with the next.
const EVENTS_PER_WAIT: usize = 1024;

/// The token of the waker; no socket has it, since a generation starts at zero and counts up.
const WAKER: mio::Token = mio::Token(usize::MAX);

/// The token of the alarm, in the same way.
const ALARM: mio::Token = mio::Token(usize::MAX - 1);

/// mio's poll(2) back end emulates edges: it reports a socket once and must be told to go on.
const EMULATED_EDGES: bool = cfg!(mio_unsupported_force_poll_poll);

/// Sockets of the operating system.
pub struct MioDriver {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    helpers: Helpers,
    alarm: Alarm,
}

impl MioDriver {
    /// Opens the system's readiness queue.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let events = Events::with_capacity(EVENTS_PER_WAIT);
        Ok(Self { poll, events, waker, helpers: Helpers::default(), alarm: Alarm::default() })
    }
}

impl fmt::Debug for MioDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MioDriver").field("threads", &self.helpers.count()).finish_non_exhaustive()
    }
}

/// Readable whenever the driver has events, so that a foreign loop can watch it. mio's poll(2) back
/// end has no descriptor.
#[cfg(not(mio_unsupported_force_poll_poll))]
impl AsRawFd for MioDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

/// A socket of the system.
#[derive(Debug)]
pub struct MioSocket {
    socket: Socket,
    /// A byte stream: a short transfer has emptied or filled the system's buffer.
    stream: bool,
    /// Others may hold duplicates of the descriptor, so closing it is not the end of the socket.
    adopted: bool,
    /// Something else can be waited for, too: a pipe, a process.
    is_socket: bool,
}

impl MioSocket {
    fn new(socket: Socket, stream: bool) -> Self {
        Self { socket, stream, adopted: false, is_socket: true }
    }
}

const INTEREST: Interest = Interest::READABLE.add(Interest::WRITABLE);

const TOKEN_GENERATION_SHIFT: u32 = 32;

fn to_mio(token: Token) -> mio::Token {
    let bits = u64::from(token.generation) << TOKEN_GENERATION_SHIFT | u64::from(token.index);
    mio::Token(usize::try_from(bits).expect("descriptors are polled on 64-bit systems"))
}

fn from_mio(token: mio::Token) -> Token {
    let bits = token.0 as u64;
    Token { index: bits as u32, generation: (bits >> TOKEN_GENERATION_SHIFT) as u32 }
}

impl Driver for MioDriver {
    type Socket = MioSocket;

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let waker = self.waker.clone();
        Box::new(move || {
            if let Err(error) = waker.wake() {
                tracing::error!(%error, "the driver could not be woken");
            }
        })
    }

    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let limit = match limit {
            Some(limit) if !limit.is_zero() => {
                Some(self.alarm.limit(limit, self.poll.registry(), ALARM))
            }
            limit => limit,
        };
        match self.poll.poll(&mut self.events, limit) {
            Ok(()) => {}
            // A signal arrived. The kernel looks at its clock and waits again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        let of_sockets =
            self.events.iter().filter(|event| ![WAKER, ALARM].contains(&event.token()));
        events.extend(of_sockets.map(|event| {
            // Errors and hang-ups wake whoever waits, for whichever direction: the next attempt
            // reports what happened.
            let ended = event.is_error() || (event.is_read_closed() && event.is_write_closed());
            let (read_ended, write_ended) =
                (ended || event.is_read_closed(), ended || event.is_write_closed());
            Event {
                token: from_mio(event.token()),
                readable: event.is_readable() || read_ended,
                writable: event.is_writable() || write_ended,
                read_ended,
                write_ended,
            }
        }));
        Ok(())
    }

    fn register(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        let descriptor = socket.socket.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&descriptor), to_mio(token), INTEREST)
    }

    fn blocked(&mut self, socket: &MioSocket, token: Token) -> io::Result<()> {
        if !EMULATED_EDGES {
            return Ok(());
        }
        let descriptor = socket.socket.as_raw_fd();
        self.poll.registry().reregister(&mut SourceFd(&descriptor), to_mio(token), INTEREST)
    }

    fn deregister(&mut self, socket: &MioSocket) {
        // Closing a descriptor takes it out of epoll and kqueue, unless it has duplicates.
        if socket.adopted || EMULATED_EDGES {
            let descriptor = socket.socket.as_raw_fd();
            // It was registered, so this does not fail; and if it did, the socket would be closed
            // all the same.
            let _ = self.poll.registry().deregister(&mut SourceFd(&descriptor));
        }
    }

    fn short_means_blocked(&self, socket: &MioSocket) -> bool {
        socket.stream && !EMULATED_EDGES
    }

    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<MioSocket>> {
        let socket = match what {
            OpenSocket::UnixStreamPair => return pair(Type::STREAM),
            OpenSocket::UnixDatagramPair => return pair(Type::DGRAM),
            OpenSocket::Adopt(descriptor) => adopt(descriptor)?,
            OpenSocket::TcpListener(address, backlog) => {
                let socket = ip_socket(address, Type::STREAM)?;
                socket.set_reuse_address(true)?;
                socket.bind(&address.into())?;
                listen(&socket, backlog)?;
                MioSocket::new(socket, false)
            }
            OpenSocket::SharedTcpListener(address, backlog) => {
                let socket = ip_socket(address, Type::STREAM)?;
                socket.set_reuse_address(true)?;
                socket.set_reuse_port(true)?;
                socket.bind(&address.into())?;
                listen(&socket, backlog)?;
                MioSocket::new(socket, false)
            }
            OpenSocket::TcpStream(address) => {
                let socket = ip_socket(address, Type::STREAM)?;
                start_connecting(&socket, &address.into())?;
                MioSocket::new(socket, true)
            }
            OpenSocket::Udp(address) => {
                let socket = ip_socket(address, Type::DGRAM)?;
                socket.bind(&address.into())?;
                MioSocket::new(socket, false)
            }
            OpenSocket::UnixListener(path, backlog) => {
                let socket = unix_socket(Type::STREAM)?;
                socket.bind(&SockAddr::unix(path)?)?;
                listen(&socket, backlog)?;
                MioSocket::new(socket, false)
            }
            OpenSocket::UnixStream(path) => {
                let socket = unix_socket(Type::STREAM)?;
                start_connecting(&socket, &SockAddr::unix(path)?)?;
                MioSocket::new(socket, true)
            }
            OpenSocket::UnixDatagram(path) => {
                let socket = unix_socket(Type::DGRAM)?;
                if let Some(path) = path {
                    socket.bind(&SockAddr::unix(path)?)?;
                }
                MioSocket::new(socket, false)
            }
            what => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("this kernel does not know how to open {what:?}"),
                ));
            }
        };
        Ok(Opened::One(socket))
    }

    #[inline]
    fn attempt(
        &mut self,
        socket: &MioSocket,
        attempt: Attempt<'_>,
    ) -> Option<io::Result<Done<MioSocket>>> {
        match socket.attempt(attempt) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            done => Some(done),
        }
    }

    fn limit_threads(&mut self, limit: usize, idle_exit: Duration) {
        self.helpers.limit(limit, idle_exit);
    }

    fn threads(&self) -> HelperThreads {
        self.helpers.count()
    }

    fn blocking(&mut self, job: Job) -> Result<(), Job> {
        self.helpers.run(job)
    }

    fn lookup(&mut self, host: &str, port: u16, reply: Reply<Addresses>) -> Result<(), Job> {
        let host = host.to_owned();
        self.helpers.run(Job::new(reply, move |()| {
            let found = (host.as_str(), port).to_socket_addrs();
            found.map(Iterator::collect::<Vec<SocketAddr>>)
        }))
    }
}

impl MioSocket {
    /// Makes an attempt; one that a signal cuts short is made again.
    #[inline]
    fn attempt(&self, attempt: Attempt<'_>) -> io::Result<Done<Self>> {
        let socket = &self.socket;
        Ok(match attempt {
            Attempt::Read(to) if self.is_socket => Done::Bytes(
                retry_on_intr(|| rustix::net::recv(socket, &mut *to, RecvFlags::empty()))?.0,
            ),
            Attempt::Write(from) if self.is_socket => {
                // Without the flag, writing to a closed connection could end the process by a signal.
                // A pipe knows none; there it is the standard library that has such signals ignored.
                Done::Bytes(retry_on_intr(|| rustix::net::send(socket, from, SendFlags::NOSIGNAL))?)
            }
            Attempt::Accept => accept_nonblocking(socket)?,
            other => self.attempt_otherwise(other)?,
        })
    }

    /// What is seldom attempted.
    #[inline(never)]
    fn attempt_otherwise(&self, attempt: Attempt<'_>) -> io::Result<Done<Self>> {
        let socket = &self.socket;
        Ok(match attempt {
            Attempt::Read(to) => Done::Bytes(retry_on_intr(|| rustix::io::read(socket, &mut *to))?),
            Attempt::Write(from) => Done::Bytes(retry_on_intr(|| rustix::io::write(socket, from))?),
            Attempt::ReadVectored(buffers) => {
                Done::Bytes(buffers.read_by(&mut |to: &mut [IoSliceMut<'_>]| {
                    Ok(retry_on_intr(|| rustix::io::readv(socket, &mut *to))?)
                })?)
            }
            Attempt::WriteVectored(from) if self.is_socket => {
                let message = MsgHdr::new().with_buffers(first_buffers(from));
                let flags = i32::try_from(SendFlags::NOSIGNAL.bits()).expect("a small flag");
                Done::Bytes(retry(|| socket.sendmsg(&message, flags))?)
            }
            Attempt::WriteVectored(from) => {
                Done::Bytes(retry_on_intr(|| rustix::io::writev(socket, first_buffers(from)))?)
            }
            Attempt::Peek(to) => Done::Bytes(
                retry_on_intr(|| rustix::net::recv(socket, &mut *to, RecvFlags::PEEK))?.0,
            ),
            Attempt::Receive(to) => {
                let received =
                    retry_on_intr(|| rustix::net::recvfrom(socket, &mut *to, RecvFlags::empty()))?;
                Done::Received(received.0, from_any(received.2)?)
            }
            Attempt::Send(data, None) => {
                Done::Bytes(retry_on_intr(|| rustix::net::send(socket, data, SendFlags::NOSIGNAL))?)
            }
            Attempt::Send(data, Some(to)) => {
                let to = from_address(to)?;
                Done::Bytes(retry(|| socket.send_to(data, &to))?)
            }
            Attempt::Poll(direction) => {
                let flags = match direction {
                    Direction::Read => PollFlags::IN,
                    Direction::Write => PollFlags::OUT,
                };
                let mut asked = [PollFd::new(socket, flags)];
                match retry_on_intr(|| rustix::event::poll(&mut asked, Some(&Timespec::default())))?
                {
                    0 => return Err(io::ErrorKind::WouldBlock.into()),
                    _ => Done::Nothing,
                }
            }
            Attempt::Connected => {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    Ok(_) => Done::Nothing,
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Err(error) => return Err(error),
                }
            }
            Attempt::Connect(to) => {
                socket.connect(&from_address(to)?)?;
                Done::Nothing
            }
            Attempt::Shutdown(how) => {
                socket.shutdown(how)?;
                Done::Nothing
            }
            Attempt::LocalAddress => Done::Address(to_address(&socket.local_addr()?)?),
            Attempt::PeerAddress => Done::Address(to_address(&socket.peer_addr()?)?),
            Attempt::SetOption(option) => {
                set_option(socket, option)?;
                Done::Nothing
            }
            Attempt::GetOption(which) => Done::Option(option(socket, which)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        })
    }
}

/// Makes a call again that a signal has cut short.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn pair(kind: Type) -> io::Result<Opened<MioSocket>> {
    let (one, other) = Socket::pair(Domain::UNIX, kind.nonblocking(), None)?;
    let is_stream = kind == Type::STREAM;
    Ok(Opened::Pair(MioSocket::new(one, is_stream), MioSocket::new(other, is_stream)))
}

fn adopt(descriptor: OwnedFd) -> io::Result<MioSocket> {
    let socket = Socket::from(descriptor);
    socket.set_nonblocking(true)?;
    let (is_socket, stream) = match socket.r#type() {
        Ok(kind) => (true, kind == Type::STREAM && !socket.is_listener()?),
        // A terminal gives a line at a time, however much there is: no stream in that sense.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTSOCK) => (false, false),
        Err(error) => return Err(error),
    };
    Ok(MioSocket { socket, stream, adopted: true, is_socket })
}

fn set_option(socket: &Socket, option: SocketOption) -> io::Result<()> {
    match option {
        SocketOption::NoDelay(on) => socket.set_tcp_nodelay(on),
        SocketOption::Broadcast(on) => socket.set_broadcast(on),
        SocketOption::Linger(time) => socket.set_linger(time),
        SocketOption::KeepAlive(on) => socket.set_keepalive(on),
        SocketOption::ReceiveBuffer(bytes) => socket.set_recv_buffer_size(bytes),
        SocketOption::SendBuffer(bytes) => socket.set_send_buffer_size(bytes),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn option(socket: &Socket, which: SocketOption) -> io::Result<SocketOption> {
    Ok(match which {
        SocketOption::NoDelay(_) => SocketOption::NoDelay(socket.tcp_nodelay()?),
        SocketOption::Broadcast(_) => SocketOption::Broadcast(socket.broadcast()?),
        SocketOption::Linger(_) => SocketOption::Linger(socket.linger()?),
        SocketOption::KeepAlive(_) => SocketOption::KeepAlive(socket.keepalive()?),
        SocketOption::ReceiveBuffer(_) => SocketOption::ReceiveBuffer(socket.recv_buffer_size()?),
        SocketOption::SendBuffer(_) => SocketOption::SendBuffer(socket.send_buffer_size()?),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    })
}

fn ip_socket(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    new_socket(Domain::for_address(address), kind)
}

fn unix_socket(kind: Type) -> io::Result<Socket> {
    new_socket(Domain::UNIX, kind)
}

/// A socket that does not block and is not inherited by child processes.
fn new_socket(domain: Domain, kind: Type) -> io::Result<Socket> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return Socket::new(domain, kind.nonblocking(), None);
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let socket = Socket::new(domain, kind, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

fn accept_nonblocking(listener: &Socket) -> io::Result<Done<MioSocket>> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accept = || rustix::net::acceptfrom_with(listener, flags);
        let (accepted, address) = retry_on_intr(accept)?;
        Ok(Done::Accepted(MioSocket::new(Socket::from(accepted), true), from_any(address)?))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let (accepted, address) = retry(|| listener.accept())?;
        accepted.set_nonblocking(true)?;
        Ok(Done::Accepted(MioSocket::new(accepted, true), to_address(&address)?))
    }
}

fn listen(socket: &Socket, backlog: u32) -> io::Result<()> {
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))
}

/// Starts a connection. That it is not made yet is no error.
fn start_connecting(socket: &Socket, to: &SockAddr) -> io::Result<()> {
    match socket.connect(to) {
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
        {
            Ok(())
        }
        result => result,
    }
}
