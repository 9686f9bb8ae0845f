//! Each type on the real kernel, and TCP in the simulator.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::process::{Command, Stdio};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use mio::unix::{SourceFd, pipe};
use mio::{Interest, Registered, Registry, Token};
use pikake_kernel::Kernel;
use pikake_traps::{AsAttempt, Attempt, SocketId, attempt, read_wait, socket_wait, write_wait};
use rustix::fs::OFlags;
use rustix::io::Errno;

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn registered(source: &mut impl Source) -> Registered {
    let registry = Registry::new();
    source.register(&registry, Token(0), Interest::READABLE | Interest::WRITABLE).unwrap();
    registry.take().unwrap()
}

fn id_of(source: &mut impl Source) -> SocketId {
    match registered(source) {
        Registered::Socket(id) | Registered::Connecting(id) | Registered::Descriptor(id) => id,
    }
}

/// Makes an attempt until it does not block. The kernel must have noted that it would.
async fn until_done<T>(socket: SocketId, mut call: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => read_wait(socket).await.unwrap(),
            result => return result.unwrap(),
        }
    }
}

struct Connected;

impl AsAttempt for Connected {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Connected
    }

    fn output(&mut self, _: usize) {}
}

/// Runs on a real kernel, which has no socket left in the end.
fn run<F: Future<Output = ()>>(test: F) {
    let kernel = Kernel::new().unwrap();
    kernel.run(test);
    assert_eq!((kernel.socket_count(), kernel.wait_count()), (0, 0));
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let mut listener = TcpListener::bind(LOOPBACK.into()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut one = TcpStream::connect(address).unwrap();
    let Registered::Connecting(id) = registered(&mut one) else { panic!("it is not connected") };
    let waiting = id_of(&mut listener);
    let (other, peer) = until_done(waiting, || listener.accept()).await;
    socket_wait(id, Connected).await.unwrap();
    assert_eq!((peer, other.peer_addr().unwrap()), (one.local_addr().unwrap(), peer));
    assert_eq!((other.local_addr().unwrap(), one.peer_addr().unwrap()), (address, address));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    (one, other)
}

/// A client and a server of TCP, on any kernel.
async fn use_tcp() {
    let (mut one, mut other) = tcp_pair().await;
    let waiting = id_of(&mut other);
    assert!(matches!(registered(&mut other), Registered::Socket(id) if id == waiting));
    other.reregister(&Registry::new(), Token(1), Interest::READABLE).unwrap();

    assert_eq!((&other).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(one.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cd")]).unwrap(), 4);
    let (mut first, mut rest) = ([0], [0; 8]);
    assert_eq!(until_done(waiting, || other.peek(&mut first)).await, 1);
    let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
    assert_eq!(other.read_vectored(&mut buffers).unwrap(), 4);
    assert_eq!((&first, &rest[..3]), (b"a", &b"bcd"[..]));

    one.set_nodelay(true).unwrap();
    assert!(one.nodelay().unwrap());
    assert!(one.take_error().unwrap().is_none());
    one.flush().unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    assert_eq!(until_done(waiting, || (&other).read(&mut first)).await, 0);
    one.deregister(&Registry::new()).unwrap();
}

#[test]
fn tcp_works() {
    run(async {
        use_tcp().await;
        let (one, mut other) = tcp_pair().await;
        one.set_ttl(7).unwrap();
        assert_eq!(one.ttl().unwrap(), 7);
        // Out of the kernel and back.
        let std = std::net::TcpStream::from(OwnedFd::from(std_of(one)));
        assert_eq!(std.ttl().unwrap(), 7);
        let mut one = TcpStream::from_std(std);
        let id = id_of(&mut one);
        (&other).write_all(b"x").unwrap();
        assert_eq!(until_done(id, || (&one).read(&mut [0; 2])).await, 1);

        let closed = other.local_addr().unwrap();
        drop(one);
        let waiting = id_of(&mut other);
        assert_eq!(until_done(waiting, || (&other).read(&mut [0])).await, 0);
        // A socket of one's own, which fails to connect.
        drop(other);
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let mut refused = TcpStream::connect_by(socket.unwrap().into(), closed).unwrap();
        let id = id_of(&mut refused);
        let error = socket_wait(id, Connected).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

fn std_of(socket: impl IntoRawFd) -> std::net::TcpStream {
    // SAFETY: `into_raw_fd` gives the descriptor away.
    unsafe { std::net::TcpStream::from_raw_fd(socket.into_raw_fd()) }
}

#[test]
fn tcp_works_in_the_simulator() {
    pikake_sim::example(async {
        use_tcp().await;
        let socket = || std::net::TcpStream::from(new_descriptor());
        // The system's socket is only a stand-in: the kernel opens another.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000));
        let mut listener = TcpListener::listen_by(socket().into(), address, 8).unwrap();
        let mut one = TcpStream::connect_by(socket().into(), address).unwrap();
        let (connecting, waiting) = (id_of(&mut one), id_of(&mut listener));
        let (_other, _) = until_done(waiting, || listener.accept()).await;
        socket_wait(connecting, Connected).await.unwrap();
        // It has none of the system's options, and takes no descriptor from outside.
        assert_eq!(one.ttl().unwrap_err().kind(), ErrorKind::Unsupported);
        let mut outside = TcpStream::from_std(socket());
        let error = outside.register(&Registry::new(), Token(0), Interest::READABLE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

fn new_descriptor() -> OwnedFd {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap().into()
}

#[test]
fn unix_streams_work() {
    let folder = std::env::temp_dir().join(format!("pikake-mio-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let at_path = unix::SocketAddr::from_pathname(folder.join("stream")).unwrap();
    let name = format!("pikake-mio-{}", std::process::id());
    let abstracted = unix::SocketAddr::from_abstract_name(name).unwrap();
    run(async {
        for address in [at_path, abstracted] {
            let mut listener = UnixListener::bind_addr(&address).unwrap();
            let mut one = UnixStream::connect_addr(&address).unwrap();
            let (connecting, waiting) = (id_of(&mut one), id_of(&mut listener));
            let (mut other, _) = until_done(waiting, || listener.accept()).await;
            socket_wait(connecting, Connected).await.unwrap();
            let seen = [listener.local_addr().unwrap(), one.peer_addr().unwrap()];
            for seen in seen {
                assert_eq!(seen.as_pathname(), address.as_pathname());
                assert_eq!(seen.as_abstract_name(), address.as_abstract_name());
            }
            let waiting = id_of(&mut other);
            assert_eq!((&other).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            one.write_all(b"x").unwrap();
            assert_eq!(until_done(waiting, || (&other).read(&mut [0])).await, 1);
        }
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let waiting = id_of(&mut other);
        id_of(&mut one);
        one.write_all(b"y").unwrap();
        drop(one);
        assert_eq!(until_done(waiting, || (&other).read(&mut [0; 2])).await, 1);
        assert_eq!(until_done(waiting, || (&other).read(&mut [0; 2])).await, 0);
        let std = unix::UnixStream::from(OwnedFd::from(std_of(other)));
        id_of(&mut UnixStream::from_std(std));
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn datagrams_work() {
    let folder = std::env::temp_dir().join(format!("pikake-mio-data-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("datagram");
    run(async {
        let mut one = UdpSocket::bind(LOOPBACK.into()).unwrap();
        let other = UdpSocket::bind(LOOPBACK.into()).unwrap();
        let (here, there) = (one.local_addr().unwrap(), other.local_addr().unwrap());
        let waiting = id_of(&mut one);
        let mut data = [0; 8];
        assert_eq!(one.recv(&mut data).unwrap_err().kind(), ErrorKind::WouldBlock);
        other.send_to(b"abc", here).unwrap();
        assert_eq!(until_done(waiting, || one.peek_from(&mut data)).await, (3, there));
        assert_eq!(one.peek(&mut data).unwrap(), 3);
        assert_eq!(one.recv_from(&mut data).unwrap(), (3, there));
        other.connect(here).unwrap();
        assert_eq!(other.peer_addr().unwrap(), here);
        other.send(b"de").unwrap();
        assert_eq!(until_done(waiting, || one.recv(&mut data)).await, 2);
        one.set_broadcast(true).unwrap();
        one.set_multicast_ttl_v4(3).unwrap();
        one.set_multicast_loop_v4(false).unwrap();
        assert!(one.broadcast().unwrap() && !one.multicast_loop_v4().unwrap());
        assert_eq!(one.multicast_ttl_v4().unwrap(), 3);

        let mut bound = UnixDatagram::bind(&path).unwrap();
        let unbound = UnixDatagram::unbound().unwrap();
        let waiting = id_of(&mut bound);
        unbound.send_to(b"abc", &path).unwrap();
        let (length, from) = until_done(waiting, || bound.recv_from(&mut data)).await;
        assert!(length == 3 && from.is_unnamed());
        unbound.connect(&path).unwrap();
        unbound.send(b"d").unwrap();
        assert_eq!(until_done(waiting, || bound.recv(&mut data)).await, 1);
        assert_eq!(unbound.peer_addr().unwrap().as_pathname(), Some(&*path));
        let (one, other) = UnixDatagram::pair().unwrap();
        one.send(b"ef").unwrap();
        assert_eq!(other.recv(&mut data).unwrap(), 2);
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn pipes_work() {
    run(async {
        let (mut sender, mut receiver) = pipe::new().unwrap();
        let (writing, waiting) = (id_of(&mut sender), id_of(&mut receiver));
        assert_eq!(receiver.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        write_wait(writing).await.unwrap();
        sender.write_all(b"abc").unwrap();
        assert_eq!(until_done(waiting, || (&receiver).read(&mut [0; 8])).await, 3);
        drop(sender);
        assert_eq!(until_done(waiting, || (&receiver).read(&mut [0; 8])).await, 0);

        let mut child = Command::new("cat");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut sender = pipe::Sender::from(child.stdin.take().unwrap());
        let mut receiver = pipe::Receiver::from(child.stdout.take().unwrap());
        sender.set_nonblocking(true).unwrap();
        id_of(&mut sender);
        let waiting = id_of(&mut receiver);
        sender.write_all(b"through").unwrap();
        drop(sender);
        assert_eq!(until_done(waiting, || (&receiver).read(&mut [0; 8])).await, 7);
        child.wait().unwrap();
    });
}

/// The registration has a duplicate of the descriptor, which it owns, and does not change how the
/// descriptor blocks. What epoll refuses is refused.
#[test]
fn descriptors_register_a_duplicate() {
    run(async {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let Registered::Descriptor(id) = registered(&mut SourceFd(&writer.as_raw_fd())) else {
            panic!("it is no socket");
        };
        attempt(id, Attempt::Close).unwrap();
        let number = reader.as_raw_fd();
        let mut source = SourceFd(&number);
        let Registered::Descriptor(id) = registered(&mut source) else { panic!("it is no socket") };
        let is_ready = || attempt(id, Attempt::Poll(pikake_traps::Direction::Read));
        assert_eq!(is_ready().unwrap_err().kind(), ErrorKind::WouldBlock);
        rustix::io::write(&writer, b"x").unwrap();
        read_wait(id).await.unwrap();
        is_ready().unwrap();
        source.deregister(&Registry::new()).unwrap();
        drop(reader);
        is_ready().unwrap();
        attempt(id, Attempt::Close).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));

        let file = std::fs::File::open("/proc/self/exe").unwrap();
        for (number, why) in [(-1, Errno::BADF), (file.as_raw_fd(), Errno::PERM)] {
            let refused =
                SourceFd(&number).register(&Registry::new(), Token(0), Interest::READABLE);
            assert_eq!(Errno::from_io_error(&refused.unwrap_err()), Some(why));
        }
    });
}

/// A socket is of its kernel: elsewhere it fails, and its drop closes it at home.
#[test]
fn sockets_stay_with_their_kernel() {
    let kernel = Kernel::new().unwrap();
    let socket = kernel.run(async { UdpSocket::bind(LOOPBACK.into()).unwrap() });
    let other = Kernel::new().unwrap();
    let fails = |socket: &UdpSocket| {
        let error = socket.recv(&mut [0]).unwrap_err();
        assert!(error.get_ref().unwrap().is::<mio::ElsewhereUsed>());
    };
    let socket = other.run(async move {
        fails(&socket);
        socket
    });
    std::thread::spawn(move || fails(&socket)).join().unwrap();
    kernel.run(async {});
    assert_eq!(kernel.socket_count(), 0);
}
