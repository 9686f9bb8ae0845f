//! The driver of a simulated host: what its kernel asks of the outside, answered from the world.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use pikake_kernel::{Driver, Event, HelperThreads, Job, Life, Token};
use pikake_traps::{Address, Addresses, Direction, OpenSocket, Reply, SocketOption};
use rustix::io::Errno;

use crate::net::Net;
use crate::outside::{Outside, SimSocket, ip, unix_address, unix_name};
use crate::socket::{Key, Kind};

/// The driver of a simulated host.
pub struct SimDriver(Outside);

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").field("host", &self.0.host).finish_non_exhaustive()
    }
}

impl SimDriver {
    pub(crate) fn new(outside: Outside) -> Self {
        Self(outside)
    }

    fn net<R>(&self, ask: impl FnOnce(&mut Net, usize) -> R) -> R {
        let Outside { net, clock, host, .. } = &self.0;
        let mut net = net.borrow_mut();
        net.now = clock.get();
        ask(&mut net, *host)
    }

    fn socket(&self, key: Key) -> SimSocket {
        SimSocket { key, net: self.0.net.clone(), clock: self.0.clock.clone() }
    }

    fn open(&self, open: impl FnOnce(&mut Net, usize) -> io::Result<Key>) -> io::Result<SimSocket> {
        self.net(open).map(|key| self.socket(key))
    }

    fn attempt<R>(
        &self,
        socket: &SimSocket,
        direction: Direction,
        make: impl FnOnce(&mut Net, Key) -> io::Result<R>,
    ) -> io::Result<R> {
        self.net(|net, _| {
            let result = make(net, socket.key);
            net.attempted(socket.key, direction, result)
        })
    }
}

impl Driver for SimDriver {
    type Socket = SimSocket;

    fn waker(&self) -> Box<dyn Fn() + Send + Sync> {
        let (woken, host) = (self.0.woken.clone(), self.0.host);
        Box::new(move || woken.push(host))
    }

    fn wait(&mut self, _: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.net(|net, host| events.append(&mut net.nodes[host].events));
        Ok(())
    }

    fn register(&mut self, socket: &SimSocket, token: Token) -> io::Result<()> {
        self.net(|net, _| {
            if let Some(found) = net.sockets.get_mut(socket.key) {
                found.token = Some(token);
            }
            net.rouse_registered(socket.key);
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

    fn open(&mut self, what: &OpenSocket<'_>) -> io::Result<SimSocket> {
        let path = |path: &Path| path.as_os_str().to_owned();
        match what {
            OpenSocket::TcpListener(address, backlog) => {
                SimDriver::open(self, |net, host| net.listen(host, *address, *backlog))
            }
            OpenSocket::TcpStream(address) => {
                SimDriver::open(self, |net, host| net.stream_connect(host, *address))
            }
            OpenSocket::Udp(address) => {
                SimDriver::open(self, |net, host| net.datagram_open(host, *address))
            }
            OpenSocket::UnixListener(at, backlog) => {
                SimDriver::open(self, |net, host| net.unix_listen(host, &path(at), *backlog))
            }
            OpenSocket::UnixStream(at) => {
                SimDriver::open(self, |net, host| net.unix_connect(host, &path(at)))
            }
            OpenSocket::UnixDatagram(at) => {
                let at = at.map(path);
                SimDriver::open(self, |net, host| net.unix_datagram_open(host, at.as_deref()))
            }
            _ => Err(unsupported(&format!("a simulation does not know how to open {what:?}"))),
        }
    }

    fn pair(&mut self, datagram: bool) -> io::Result<(SimSocket, SimSocket)> {
        let (one, other) = self.net(|net, host| match datagram {
            true => net.unix_datagram_pair(host),
            false => net.unix_pair(host),
        });
        Ok((self.socket(one), self.socket(other)))
    }

    fn adopt(&mut self, _: OwnedFd) -> io::Result<SimSocket> {
        Err(unsupported(
            "a simulation has no descriptors: a socket from outside cannot take part in it",
        ))
    }

    fn accept(&mut self, socket: &SimSocket) -> io::Result<(SimSocket, Address)> {
        let (key, address) =
            self.attempt(socket, Direction::Read, |net, key| match net.kind(key)? {
                Kind::UnixListener(_) => {
                    let (key, name) = net.unix_accept(key)?;
                    Ok((key, unix_address(&name)?))
                }
                _ => net.accept(key).map(|(key, address)| (key, Address::Ip(address))),
            })?;
        Ok((self.socket(key), address))
    }

    fn connected(&mut self, socket: &SimSocket) -> io::Result<()> {
        self.attempt(socket, Direction::Write, |net, key| match net.kind(key)? {
            Kind::UnixStream(_) => Ok(()),
            _ => net.stream_connected(key),
        })
    }

    fn read(&mut self, socket: &SimSocket, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.attempt(socket, Direction::Read, |net, key| match (net.kind(key)?, to) {
            (Kind::UnixStream(_), to) => net.unix_read(key, to, true),
            (Kind::UnixDatagram(_), [to, ..]) => Ok(net.unix_receive(key, to, true)?.0),
            (Kind::Datagram(_), [to, ..]) => Ok(net.datagram_receive(key, to, true)?.0),
            (_, to) => net.stream_read(key, to, true),
        })
    }

    fn peek(&mut self, socket: &SimSocket, to: &mut [u8]) -> io::Result<usize> {
        self.attempt(socket, Direction::Read, |net, key| match net.kind(key)? {
            Kind::UnixStream(_) => net.unix_read(key, &mut [IoSliceMut::new(to)], false),
            Kind::UnixDatagram(_) => Ok(net.unix_receive(key, to, false)?.0),
            Kind::Datagram(_) => Ok(net.datagram_receive(key, to, false)?.0),
            _ => net.stream_read(key, &mut [IoSliceMut::new(to)], false),
        })
    }

    fn write(&mut self, socket: &SimSocket, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.attempt(socket, Direction::Write, |net, key| match net.kind(key)? {
            Kind::UnixStream(_) => net.unix_write(key, from),
            _ => net.stream_write(key, from),
        })
    }

    fn receive(&mut self, socket: &SimSocket, to: &mut [u8]) -> io::Result<(usize, Address)> {
        self.attempt(socket, Direction::Read, |net, key| match net.kind(key)? {
            Kind::UnixDatagram(_) => {
                let (length, from) = net.unix_receive(key, to, true)?;
                Ok((length, unix_address(&from)?))
            }
            _ => net
                .datagram_receive(key, to, true)
                .map(|(length, from)| (length, Address::Ip(from))),
        })
    }

    fn send(&mut self, socket: &SimSocket, data: &[u8], to: Option<&Address>) -> io::Result<usize> {
        self.attempt(socket, Direction::Write, |net, key| match net.kind(key)? {
            Kind::UnixDatagram(_) => {
                let to = to.map(unix_name).transpose()?;
                net.unix_send(key, data, to.as_deref())
            }
            _ => net.datagram_send(key, data, to.map(ip).transpose()?),
        })
    }

    fn connect(&mut self, socket: &SimSocket, to: &Address) -> io::Result<()> {
        self.net(|net, _| match net.kind(socket.key)? {
            Kind::UnixDatagram(_) => net.unix_datagram_connect(socket.key, &unix_name(to)?),
            _ => net.datagram_connect(socket.key, ip(to)?),
        })
    }

    fn shutdown(&mut self, socket: &SimSocket, how: Shutdown) -> io::Result<()> {
        self.net(|net, _| match net.kind(socket.key)? {
            Kind::UnixStream(_) => net.unix_shutdown(socket.key, how),
            _ => net.stream_shutdown(socket.key, how),
        })
    }

    fn local_address(&self, socket: &SimSocket) -> io::Result<Address> {
        self.net(|net, _| match net.kind(socket.key)? {
            Kind::Listener(listener) => Ok(Address::Ip(listener.address)),
            Kind::Stream(stream) => Ok(Address::Ip(stream.local)),
            Kind::Datagram(datagram) => Ok(Address::Ip(datagram.local)),
            Kind::UnixListener(listener) => unix_address(&listener.path),
            Kind::UnixStream(stream) => unix_address(&stream.name),
            Kind::UnixDatagram(datagram) => unix_address(&datagram.name),
        })
    }

    fn peer_address(&self, socket: &SimSocket) -> io::Result<Address> {
        self.net(|net, _| match net.kind(socket.key)? {
            Kind::Stream(_) => net.stream_peer(socket.key).map(Address::Ip),
            Kind::Datagram(_) => net.datagram_peer(socket.key).map(Address::Ip),
            _ => unix_address(&net.unix_peer_name(socket.key)?),
        })
    }

    fn set_option(&mut self, socket: &SimSocket, option: SocketOption) -> io::Result<()> {
        self.net(|net, _| match net.sockets.get_mut(socket.key) {
            Some(found) => found.set_option(option),
            None => Err(Errno::NOTCONN.into()),
        })
    }

    fn option(&self, socket: &SimSocket, which: SocketOption) -> io::Result<SocketOption> {
        self.net(|net, _| match net.sockets.get(socket.key) {
            Some(found) => found.option(which),
            None => Err(Errno::NOTCONN.into()),
        })
    }

    fn limit_threads(&mut self, limit: usize, _: Duration) {
        self.net(|net, host| net.nodes[host].helpers = limit);
    }

    fn threads(&self) -> HelperThreads {
        self.net(|net, host| {
            let node = &net.nodes[host];
            let mut threads = HelperThreads::default();
            threads.limit = node.helpers;
            threads.busy = node.jobs_running;
            threads.waiting = node.jobs.iter().filter(|job| job.is_wanted()).count();
            threads
        })
    }

    fn start_thread(&mut self, _: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        let error = unsupported(
            "a simulation has no threads that await, nor threads for objects: their order would be \
             the system's; closures in helper threads are run inline",
        );
        Err((error, Some(life)))
    }

    fn system(&self) -> io::Result<()> {
        Err(unsupported(
            "a simulation has no files, processes, signals or terminals: what the system has \
             cannot take part in it",
        ))
    }

    fn blocking(&mut self, job: Job) -> Result<(), Job> {
        self.net(|net, host| net.blocking(host, job));
        Ok(())
    }

    fn lookup(&mut self, host: &str, port: u16, reply: Reply<Addresses>) -> Result<(), Job> {
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

fn unsupported(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}
