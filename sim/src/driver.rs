//! The driver of a simulated kernel, which answers from the world.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::time::{Duration, SystemTime};

use pikake_kernel::{BlockingCall, Driver, Event, HelperThreads, Life, Token};
use pikake_traps::{
    Address, Addresses, Attempt, Direction, OpenSocket, Opened, Reply, first_buffers,
};
use rustix::io::Errno;

use crate::bytes::Room;
use crate::net::Net;
use crate::outside::{Outside, SimSocket, ip, unix_address, unix_name};
use crate::ports::Sharing;
use crate::socket::{Key, Kind};

/// The driver of a kernel of a simulated host.
pub struct SimDriver(Outside);

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").field("kernel", &self.0.key).finish_non_exhaustive()
    }
}

impl SimDriver {
    pub(crate) fn new(outside: Outside) -> Self {
        Self(outside)
    }

    fn net<R>(&self, ask: impl FnOnce(&mut Net, usize) -> R) -> R {
        let Outside { net, clock, key, .. } = &self.0;
        let mut net = net.borrow_mut();
        net.now = clock.get();
        ask(&mut net, key.host)
    }

    fn socket(&self, key: Key) -> SimSocket {
        SimSocket { key, net: self.0.net.clone(), clock: self.0.clock.clone() }
    }
}

impl Driver for SimDriver {
    type Socket = SimSocket;

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let (woken, key) = (self.0.woken.clone(), self.0.key);
        Box::new(move || woken.push(key))
    }

    fn wait(&mut self, _: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let kernel = self.0.key.kernel;
        self.net(|net, host| events.append(&mut net.nodes[host].events[kernel]));
        Ok(())
    }

    fn register(&mut self, socket: &SimSocket, token: Token) -> io::Result<()> {
        self.net(|net, _| {
            if let Some(found) = net.sockets.get_mut(socket.key) {
                found.token = Some((self.0.key.kernel, token));
            }
            net.notify_registered(socket.key);
        });
        Ok(())
    }

    fn blocked(&mut self, _: &SimSocket, _: Token) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, socket: &SimSocket) {
        self.net(|net, _| {
            if let Some(found) = net.sockets.get_mut(socket.key) {
                found.token = None;
            }
        });
    }

    fn short_means_blocked(&self, _: &SimSocket) -> bool {
        false
    }

    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<SimSocket>> {
        let path = |path: &Path| path.as_os_str().to_owned();
        let pair = |(one, other)| Ok(Opened::Pair(one, other));
        let opened = self.net(|net, host| match what {
            OpenSocket::UnixStreamPair => pair(net.unix_pair(host)),
            OpenSocket::UnixDatagramPair => pair(net.unix_datagram_pair(host)),
            OpenSocket::TcpListener(address, backlog) => {
                net.listen(host, address, backlog, Sharing::Alone).map(Opened::One)
            }
            OpenSocket::SharedTcpListener(address, backlog) => {
                net.listen(host, address, backlog, Sharing::Shared).map(Opened::One)
            }
            OpenSocket::TcpStream(address) => net.stream_connect(host, address).map(Opened::One),
            OpenSocket::Udp(address) => net.datagram_open(host, address).map(Opened::One),
            OpenSocket::UnixListener(at, backlog) => {
                net.unix_listen(host, &path(at), backlog).map(Opened::One)
            }
            OpenSocket::UnixStream(at) => net.unix_connect(host, &path(at)).map(Opened::One),
            OpenSocket::UnixDatagram(at) => {
                let at = at.map(path);
                net.unix_datagram_open(host, at.as_deref()).map(Opened::One)
            }
            OpenSocket::Adopt(_) => Err(unsupported(
                "a simulation has no descriptors: a socket from outside cannot take part in it",
            )),
        });
        Ok(opened?.map(|key| self.socket(key)))
    }

    fn attempt(
        &mut self,
        socket: &SimSocket,
        attempt: &mut Attempt<'_>,
    ) -> Option<io::Result<usize>> {
        let direction = attempt.direction();
        let done = self.net(|net, _| {
            let done = make(net, socket.key, attempt);
            match direction {
                Some(direction) => net.attempted(socket.key, direction, done),
                None => done,
            }
        });
        unless_it_blocks(done)
    }

    fn accept(&mut self, listener: &SimSocket) -> Option<io::Result<(SimSocket, Address)>> {
        let accepted = self.net(|net, _| {
            let accepted = accept(net, listener.key);
            net.attempted(listener.key, Direction::Read, accepted)
        });
        unless_it_blocks(accepted.map(|(key, address)| (self.socket(key), address)))
    }

    fn limit_threads(&mut self, limit: usize, _: Duration) {
        self.net(|net, host| net.nodes[host].helpers = limit);
    }

    fn threads(&self) -> HelperThreads {
        self.net(|net, host| {
            let node = &net.nodes[host];
            let mut threads = HelperThreads::default();
            threads.limit = node.helpers;
            threads.busy = node.calls_running;
            threads.waiting = node.calls.iter().filter(|call| call.is_wanted()).count();
            threads
        })
    }

    fn start_thread(&mut self, _: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        let error = unsupported(
            "a simulation has no threads that await, nor threads for objects: the system would \
             determine their order; closures in helper threads are run inline",
        );
        Err((error, Some(life)))
    }

    fn system(&self) -> io::Result<()> {
        Err(unsupported(
            "a simulation has no files, processes, signals or terminals: objects of the system \
             cannot take part in it",
        ))
    }

    fn blocking(&mut self, call: BlockingCall) -> Result<(), BlockingCall> {
        self.net(|net, host| net.blocking(host, call));
        Ok(())
    }

    fn lookup(
        &mut self,
        host: &str,
        port: u16,
        reply: Reply<Addresses>,
    ) -> Result<(), BlockingCall> {
        self.net(|net, _| net.lookup(host, port, reply));
        Ok(())
    }

    fn wall_time(&self) -> SystemTime {
        let Outside { wall, clock, .. } = &self.0;
        wall.borrow().at(clock.get())
    }

    fn random(&mut self, to: &mut [u8]) {
        self.net(|net, host| net.nodes[host].program.fill(to));
    }
}

/// `None` for an attempt that would block.
fn unless_it_blocks<T>(done: io::Result<T>) -> Option<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        done => Some(done),
    }
}

/// Accepts a connection from a listener of the simulated network.
fn accept(net: &mut Net, key: Key) -> io::Result<(Key, Address)> {
    if let Kind::UnixListener(_) = net.kind(key)? {
        let (key, name) = net.unix_accept(key)?;
        Ok((key, unix_address(&name)?))
    } else {
        let (key, address) = net.accept(key)?;
        Ok((key, Address::Ip(address)))
    }
}

/// Makes an attempt in the simulated network.
fn make(net: &mut Net, key: Key, attempt: &mut Attempt<'_>) -> io::Result<usize> {
    let kind = net.kind(key)?;
    match (attempt, kind) {
        (Attempt::Read(to), _) => return read(net, key, Room::Bytes(to), true),
        (Attempt::ReadBuf(to), _) => return read(net, key, Room::Vector(to), true),
        (Attempt::ReadSpare(to), _) => return read(net, key, Room::Spare(to.reborrow()), true),
        (Attempt::ReadVectored(buffers), _) => {
            return buffers
                .read_by(&mut |to: &mut [IoSliceMut<'_>]| read(net, key, Room::Buffers(to), true));
        }
        (Attempt::Peek(to), _) => return read(net, key, Room::Bytes(to), false),
        (Attempt::Write(from), _) => return write(net, key, &[IoSlice::new(from)]),
        (Attempt::WriteVectored(from), _) => return write(net, key, first_buffers(from)),
        (Attempt::Receive(to, put), Kind::UnixDatagram(_)) => {
            let (length, from) = net.unix_receive(key, Room::Bytes(to), true)?;
            **put = Some(unix_address(&from)?);
            return Ok(length);
        }
        (Attempt::Receive(to, put), _) => {
            let (length, from) = net.datagram_receive(key, Room::Bytes(to), true)?;
            **put = Some(Address::Ip(from));
            return Ok(length);
        }
        (Attempt::Send(data, to), Kind::UnixDatagram(_)) => {
            let to = to.map(unix_name).transpose()?;
            return net.unix_send(key, data, to.as_deref());
        }
        (Attempt::Send(data, to), _) => {
            return net.datagram_send(key, data, to.map(ip).transpose()?);
        }
        (Attempt::Connected, Kind::UnixStream(_)) => {}
        (Attempt::Connected, _) => net.stream_connected(key)?,
        (Attempt::Connect(to), Kind::UnixDatagram(_)) => {
            net.unix_datagram_connect(key, &unix_name(to)?)?;
        }
        (Attempt::Connect(to), _) => net.datagram_connect(key, ip(to)?)?,
        (Attempt::Shutdown(how), Kind::UnixStream(_)) => net.unix_shutdown(key, *how)?,
        (Attempt::Shutdown(how), _) => net.stream_shutdown(key, *how)?,
        (Attempt::LocalAddress(put), kind) => {
            **put = Some(match kind {
                Kind::Listener(listener) => Address::Ip(listener.address),
                Kind::Stream(stream) => Address::Ip(stream.local),
                Kind::Datagram(datagram) => Address::Ip(datagram.local),
                Kind::UnixListener(listener) => unix_address(&listener.path)?,
                Kind::UnixStream(stream) => unix_address(&stream.name)?,
                Kind::UnixDatagram(datagram) => unix_address(&datagram.name)?,
            });
        }
        (Attempt::PeerAddress(put), kind) => {
            **put = Some(match kind {
                Kind::Stream(_) => Address::Ip(net.stream_peer(key)?),
                Kind::Datagram(_) => Address::Ip(net.datagram_peer(key)?),
                _ => unix_address(&net.unix_peer_name(key)?)?,
            });
        }
        (Attempt::SetOption(option), _) => {
            net.sockets.get_mut(key).ok_or(Errno::NOTCONN)?.set_option(*option)?;
        }
        (Attempt::GetOption(put), _) => {
            **put = net.sockets.get(key).ok_or(Errno::NOTCONN)?.option(**put)?;
        }
        (
            Attempt::IsReady(_)
            | Attempt::Poll(_)
            | Attempt::Accept(_)
            | Attempt::PeerCredentials(_)
            | Attempt::Descriptor(_)
            | Attempt::Close,
            _,
        ) => return Err(io::ErrorKind::Unsupported.into()),
    }
    Ok(0)
}

fn read(net: &mut Net, key: Key, to: Room<'_, '_>, take: bool) -> io::Result<usize> {
    match net.kind(key)? {
        Kind::UnixStream(_) => net.unix_read(key, to, take),
        Kind::UnixDatagram(_) => Ok(net.unix_receive(key, to, take)?.0),
        Kind::Datagram(_) => Ok(net.datagram_receive(key, to, take)?.0),
        _ => net.stream_read(key, to, take),
    }
}

fn write(net: &mut Net, key: Key, from: &[IoSlice<'_>]) -> io::Result<usize> {
    match net.kind(key)? {
        Kind::UnixStream(_) => net.unix_write(key, from),
        _ => net.stream_write(key, from),
    }
}

fn unsupported(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}
