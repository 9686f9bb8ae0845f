//! Datagrams: UDP over the real loopback, and Unix datagrams.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use futures::join;
use pikake::net::{UdpSocket, UnixDatagram};
use pikake::traps::Closed;
use pikake::{spawn, yield_now};

use crate::support::scratch::Scratch;

async fn udp() -> UdpSocket {
    UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap()
}

#[pikake::test]
async fn udp_echo() {
    let (server, client) = (udp().await, udp().await);
    let address = server.local_addr().unwrap();
    let echo = async {
        let mut buffer = [0; 64];
        let (length, from) = server.recv_from(&mut buffer).await.unwrap();
        assert_eq!(server.send_to(&buffer[..length], from).await.unwrap(), length);
        from
    };
    let call = async {
        client.send_to(b"ping", address).await.unwrap();
        let mut buffer = [0; 64];
        let (length, from) = client.recv_from(&mut buffer).await.unwrap();
        (buffer[..length].to_vec(), from)
    };
    let (from, answer) = join!(echo, call);
    assert_eq!(answer, (b"ping".to_vec(), address));
    assert_eq!(from, client.local_addr().unwrap());
}

#[pikake::test]
async fn udp_with_a_peer() {
    let (one, other, stranger) = (udp().await, udp().await, udp().await);
    assert_eq!(one.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    one.connect(other.local_addr().unwrap()).await.unwrap();
    other.connect(one.local_addr().unwrap()).await.unwrap();
    assert_eq!(one.peer_addr().unwrap(), other.local_addr().unwrap());
    stranger.send_to(b"not for you", one.local_addr().unwrap()).await.unwrap();
    other.send(b"hello").await.unwrap();
    let mut buffer = [0; 64];
    assert_eq!(one.peek(&mut buffer).await.unwrap(), 5);
    assert_eq!(one.recv(&mut buffer).await.unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
}

#[pikake::test]
async fn udp_receive_reports_a_missing_peer() {
    let (one, gone) = (udp().await, udp().await);
    one.connect(gone.local_addr().unwrap()).await.unwrap();
    drop(gone);
    one.send(b"anybody?").await.unwrap();
    let error = one.recv(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[pikake::test]
async fn udp_broadcast_must_be_allowed() {
    let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
    assert!(!socket.broadcast().unwrap());
    let everybody = SocketAddr::from((Ipv4Addr::BROADCAST, 9));
    let error = socket.send_to(b"x", everybody).await.unwrap_err();
    // A machine without a network has no route to anybody, and says that first.
    if error.kind() == ErrorKind::PermissionDenied {
        assert!(error.to_string().starts_with("send to 255.255.255.255:9: "), "{error}");
    }
    socket.set_broadcast(true).unwrap();
    assert!(socket.broadcast().unwrap());
}

#[pikake::test]
async fn datagram_longer_than_the_buffer_is_cut() {
    let (one, other) = UnixDatagram::pair().unwrap();
    one.send(b"long").await.unwrap();
    one.send(b"next").await.unwrap();
    let mut buffer = [0; 2];
    assert_eq!(other.recv(&mut buffer).await.unwrap(), 2);
    assert_eq!(other.recv(&mut buffer).await.unwrap(), 2);
    assert_eq!(&buffer, b"ne");
}

#[pikake::test]
async fn closing_wakes_a_receiver() {
    let socket = Rc::new(udp().await);
    let receiver = spawn({
        let socket = socket.clone();
        async move { socket.recv(&mut [0; 8]).await }
    });
    yield_now().await.unwrap();
    socket.close();
    let error = receiver.await.unwrap().unwrap_err();
    assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()));
    let error = socket.send_to(b"x", SocketAddr::from((Ipv4Addr::LOCALHOST, 9))).await.unwrap_err();
    assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()));
}

#[pikake::test]
async fn unix_pair() {
    let (one, other) = UnixDatagram::pair().unwrap();
    let mut buffer = [0; 8];
    let (received, sent) = join!(other.recv_from(&mut buffer), one.send(b"hi"));
    let (length, from) = received.unwrap();
    assert!(from.is_unnamed());
    assert_eq!((sent.unwrap(), &buffer[..length]), (2, &b"hi"[..]));
}

#[pikake::test]
async fn unix_by_path() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.path("here"), scratch.path("there"));
    let (one, other) = (UnixDatagram::bind(&here).unwrap(), UnixDatagram::bind(&there).unwrap());
    one.send_to(b"hello", &there).await.unwrap();
    let mut buffer = [0; 8];
    let (length, from) = other.recv_from(&mut buffer).await.unwrap();
    assert_eq!(from.as_pathname(), Some(&*here));
    other.connect(from.as_pathname().unwrap()).unwrap();
    assert_eq!(other.peer_addr().unwrap().as_pathname(), Some(&*here));
    other.send(&buffer[..length]).await.unwrap();
    assert_eq!(one.recv(&mut buffer).await.unwrap(), 5);

    let unbound = UnixDatagram::unbound().unwrap();
    assert!(unbound.local_addr().unwrap().is_unnamed());
    unbound.send_to(b"?", &here).await.unwrap();
    assert!(one.recv_from(&mut buffer).await.unwrap().1.is_unnamed());
    let error = unbound.connect(scratch.path("nowhere")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("connect to ") && error.to_string().contains("/nowhere: "));
}

#[pikake::test]
async fn full_receiver_blocks_the_sender() {
    let (one, other) = UnixDatagram::pair().unwrap();
    const COUNT: u32 = 2000;
    let sending = async {
        for number in 0..COUNT {
            one.send(&number.to_be_bytes()).await.unwrap();
        }
    };
    let receiving = async {
        for number in 0..COUNT {
            let mut buffer = [0; 4];
            other.recv(&mut buffer).await.unwrap();
            assert_eq!(u32::from_be_bytes(buffer), number);
        }
    };
    join!(sending, receiving);
}
