//! The sockets of the system: how they are opened, and the attempts on them.

#![deny(clippy::wildcard_enum_match_arm)]

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use pikake_traps::{
    Address, Attempt, Direction, OpenSocket, Opened, PeerCredentials, SocketOption, first_buffers,
};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, MsgHdr, SockAddr, Socket, Type};

use super::addresses::{from_address, from_any, to_address};

/// Without the flag, a write to a closed connection could end the process by a signal. Pipes have
/// no such flag. The standard library makes the process ignore the signal.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: SendFlags = SendFlags::NOSIGNAL;
/// An option of the socket instead, which socket2 sets.
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: SendFlags = SendFlags::empty();

/// A socket of the system.
#[derive(Debug)]
pub struct MioSocket {
    socket: Socket,
    /// A byte stream: a short transfer has emptied or filled the system's buffer.
    is_stream: bool,
    /// Duplicates of the descriptor may exist, so its close is not the end of the socket: it was
    /// adopted, or a program has [asked](Attempt::Descriptor) for it.
    is_shared: Cell<bool>,
    /// `false` for a pipe, a pidfd and other adopted descriptors that are no sockets.
    is_socket: bool,
}

impl MioSocket {
    fn new(socket: Socket, is_stream: bool) -> Self {
        Self { socket, is_stream, is_shared: Cell::new(false), is_socket: true }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn is_stream(&self) -> bool {
        self.is_stream
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.get()
    }

    pub(super) fn open(what: OpenSocket<'_>) -> io::Result<Opened<Self>> {
        let socket = match what {
            OpenSocket::UnixStreamPair => return pair(Type::STREAM),
            OpenSocket::UnixDatagramPair => return pair(Type::DGRAM),
            OpenSocket::Adopt(descriptor) => adopt(descriptor)?,
            OpenSocket::TcpListener(address, backlog) => tcp_listener(address, backlog, false)?,
            OpenSocket::SharedTcpListener(address, backlog) => {
                tcp_listener(address, backlog, true)?
            }
            OpenSocket::TcpStream(address) => {
                let socket = new_socket(Domain::for_address(address), Type::STREAM)?;
                start_connecting(&socket, &address.into())?;
                Self::new(socket, true)
            }
            OpenSocket::Udp(address) => {
                let socket = new_socket(Domain::for_address(address), Type::DGRAM)?;
                socket.bind(&address.into())?;
                Self::new(socket, false)
            }
            OpenSocket::UnixListener(path, backlog) => {
                let socket = new_socket(Domain::UNIX, Type::STREAM)?;
                socket.bind(&SockAddr::unix(path)?)?;
                listen(&socket, backlog)?;
                Self::new(socket, false)
            }
            OpenSocket::UnixStream(path) => {
                let socket = new_socket(Domain::UNIX, Type::STREAM)?;
                start_connecting(&socket, &SockAddr::unix(path)?)?;
                Self::new(socket, true)
            }
            OpenSocket::UnixDatagram(path) => {
                let socket = new_socket(Domain::UNIX, Type::DGRAM)?;
                if let Some(path) = path {
                    socket.bind(&SockAddr::unix(path)?)?;
                }
                Self::new(socket, false)
            }
        };
        Ok(Opened::One(socket))
    }

    /// Makes an attempt, and makes it again if a signal cuts it short.
    #[inline(always)]
    pub(super) fn attempt(&self, attempt: &mut Attempt<'_>) -> io::Result<usize> {
        let socket = &self.socket;
        #[expect(clippy::wildcard_enum_match_arm, reason = "`attempt_rare` names all others")]
        let moved = match attempt {
            Attempt::Read(to) if self.is_socket => {
                retry_on_intr(|| rustix::net::recv(socket, &mut **to, RecvFlags::empty()))?.0
            }
            // rustix refuses a vector without memory.
            Attempt::ReadBuf(to) if to.capacity() == 0 => 0,
            Attempt::ReadBuf(to) if self.is_socket => {
                let receive = || rustix::net::recv(socket, spare_capacity(to), RecvFlags::empty());
                retry_on_intr(receive)?.0
            }
            Attempt::ReadSpare(to) if self.is_socket => retry_on_intr(|| {
                to.fill_by(|to| Ok(rustix::net::recv(socket, to, RecvFlags::empty())?.0.0))
            })?,
            Attempt::Write(from) if self.is_socket => {
                retry_on_intr(|| rustix::net::send(socket, from, NO_SIGNAL))?
            }
            other => return self.attempt_rare(other),
        };
        Ok(moved)
    }

    /// Takes a connection from a listener.
    pub(super) fn accept(&self) -> io::Result<(Self, Address)> {
        let (accepted, address) = accept_nonblocking(&self.socket)?;
        Ok((Self::new(accepted, true), address))
    }

    /// Makes an attempt that is rare.
    #[inline(never)]
    fn attempt_rare(&self, attempt: &mut Attempt<'_>) -> io::Result<usize> {
        let socket = &self.socket;
        match attempt {
            Attempt::Read(to) => return Ok(retry_on_intr(|| rustix::io::read(socket, &mut **to))?),
            Attempt::ReadBuf(to) => {
                return Ok(retry_on_intr(|| rustix::io::read(socket, spare_capacity(to)))?);
            }
            Attempt::ReadSpare(to) => {
                let read = || to.fill_by(|to| Ok(rustix::io::read(socket, to)?.0));
                return Ok(retry_on_intr(read)?);
            }
            Attempt::Write(from) => return Ok(retry_on_intr(|| rustix::io::write(socket, from))?),
            Attempt::ReadVectored(buffers) => {
                return buffers.read_by(&mut |to: &mut [IoSliceMut<'_>]| {
                    Ok(retry_on_intr(|| rustix::io::readv(socket, &mut *to))?)
                });
            }
            Attempt::WriteVectored(from) if self.is_socket => {
                let message = MsgHdr::new().with_buffers(first_buffers(from));
                let flags = i32::try_from(NO_SIGNAL.bits()).expect("a small flag");
                return retry(|| socket.sendmsg(&message, flags));
            }
            Attempt::WriteVectored(from) => {
                return Ok(retry_on_intr(|| rustix::io::writev(socket, first_buffers(from)))?);
            }
            Attempt::Peek(to) => {
                let peek = || rustix::net::recv(socket, &mut **to, RecvFlags::PEEK);
                return Ok(retry_on_intr(peek)?.0);
            }
            Attempt::Receive(to, from) => {
                let receive = || rustix::net::recvfrom(socket, &mut **to, RecvFlags::empty());
                let (length, _, address) = retry_on_intr(receive)?;
                **from = Some(from_any(address)?);
                return Ok(length);
            }
            Attempt::Send(data, None) => {
                let send = || rustix::net::send(socket, data, NO_SIGNAL);
                return Ok(retry_on_intr(send)?);
            }
            Attempt::Send(data, Some(to)) => {
                let to = from_address(to)?;
                return retry(|| socket.send_to(data, &to));
            }
            Attempt::Poll(direction) => {
                let flags = match direction {
                    Direction::Read => PollFlags::IN,
                    Direction::Write => PollFlags::OUT,
                };
                let mut asked = [PollFd::new(socket, flags)];
                let poll = || rustix::event::poll(&mut asked, Some(&Timespec::default()));
                if retry_on_intr(poll)? == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
            }
            Attempt::Connected => {
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    Err(error) => return Err(error),
                }
            }
            Attempt::Connect(to) => socket.connect(&from_address(to)?)?,
            Attempt::Shutdown(how) => socket.shutdown(*how)?,
            Attempt::LocalAddress(to) => **to = Some(to_address(&socket.local_addr()?)?),
            Attempt::PeerAddress(to) => **to = Some(to_address(&socket.peer_addr()?)?),
            Attempt::PeerCredentials(to) => **to = Some(peer_credentials(socket)?),
            Attempt::Descriptor(to) => {
                self.is_shared.set(true);
                **to = Some(self.descriptor());
            }
            Attempt::SetOption(option) => set_option(socket, *option)?,
            Attempt::GetOption(to) => **to = option(socket, **to)?,
            // The kernel's own, and `accept`.
            Attempt::IsReady(_) | Attempt::Accept(_) | Attempt::Close => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
        Ok(0)
    }
}

#[cfg(not(all(feature = "peer-credentials", any(target_os = "linux", target_os = "android"))))]
fn peer_credentials(_: &Socket) -> io::Result<PeerCredentials> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(feature = "peer-credentials", any(target_os = "linux", target_os = "android")))]
fn peer_credentials(socket: &Socket) -> io::Result<PeerCredentials> {
    // Not rustix's `socket_peercred`, whose process is never 0.
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?;
    let pid = u32::try_from(peer.pid()).ok().filter(|&pid| pid != 0);
    Ok(PeerCredentials { uid: peer.uid(), gid: peer.gid(), pid })
}

/// Makes a call, and makes it again if a signal cuts it short.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn pair(kind: Type) -> io::Result<Opened<MioSocket>> {
    let (one, other) = Socket::pair(Domain::UNIX, kind, None)?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    let is_stream = kind == Type::STREAM;
    Ok(Opened::Pair(MioSocket::new(one, is_stream), MioSocket::new(other, is_stream)))
}

fn adopt(descriptor: OwnedFd) -> io::Result<MioSocket> {
    let socket = Socket::from(descriptor);
    socket.set_nonblocking(true)?;
    let (is_socket, is_stream) = match socket.r#type() {
        // A listener has no peer.
        Ok(kind) => (true, kind == Type::STREAM && socket.peer_addr().is_ok()),
        // A terminal gives a line at a time, so a short read has not emptied its buffer.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTSOCK) => (false, false),
        Err(error) => return Err(error),
    };
    Ok(MioSocket { socket, is_stream, is_shared: Cell::new(true), is_socket })
}

fn set_option(socket: &Socket, option: SocketOption) -> io::Result<()> {
    match option {
        SocketOption::NoDelay(on) => socket.set_tcp_nodelay(on),
        SocketOption::Broadcast(on) => socket.set_broadcast(on),
        SocketOption::Linger(time) => socket.set_linger(time),
        SocketOption::KeepAlive(on) => socket.set_keepalive(on),
        SocketOption::ReceiveBuffer(bytes) => socket.set_recv_buffer_size(bytes),
        SocketOption::SendBuffer(bytes) => socket.set_send_buffer_size(bytes),
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
    })
}

fn tcp_listener(address: SocketAddr, backlog: u32, is_shared: bool) -> io::Result<MioSocket> {
    let socket = new_socket(Domain::for_address(address), Type::STREAM)?;
    socket.set_reuse_address(true)?;
    if is_shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    listen(&socket, backlog)?;
    Ok(MioSocket::new(socket, false))
}

/// Makes a socket that does not block and that child processes do not inherit.
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

fn accept_nonblocking(listener: &Socket) -> io::Result<(Socket, Address)> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accept = || rustix::net::acceptfrom_with(listener, flags);
        let (accepted, address) = retry_on_intr(accept)?;
        Ok((Socket::from(accepted), from_any(address)?))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let (accepted, address) = retry(|| listener.accept())?;
        accepted.set_nonblocking(true)?;
        Ok((accepted, to_address(&address)?))
    }
}

fn listen(socket: &Socket, backlog: u32) -> io::Result<()> {
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))
}

/// Starts to connect. A connection that is still under way is no error.
fn start_connecting(socket: &Socket, to: &SockAddr) -> io::Result<()> {
    match socket.connect(to) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => Ok(()),
        result => result,
    }
}
