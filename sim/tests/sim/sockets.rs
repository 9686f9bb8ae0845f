//! The behaviour of sockets: each case runs on the system's loopback and in a simulation, with the
//! same result.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use pikake::{sleep, spawn, timed, timeout_after};

use crate::support::scratch::Scratch;

const LOOPBACK: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// More than either keeps for a connection.
const MUCH: usize = 8 << 20;

/// Long enough for whatever is under way on the loopback of a machine that has other things to do.
const MOMENT: Duration = Duration::from_millis(30);

macro_rules! on_both {
    ($($case:ident)*) => {
        mod real {
            $(#[pikake::test] async fn $case() { super::$case().await; })*
        }
        mod simulated {
            $(#[pikake::sim(seeds = 20)] async fn $case() { super::$case().await; })*
        }
    };
}

on_both! {
    a_connection_knows_both_its_ends
    a_port_where_nobody_listens_refuses
    an_address_in_use_is_refused_and_a_foreign_one_too
    the_end_of_a_stream_comes_after_its_data
    half_of_a_connection_can_be_closed
    closing_with_unread_data_resets
    a_reset_is_told_once
    a_listener_that_is_closed_resets_who_was_not_accepted
    shared_listeners_share_with_their_like_alone
    shared_listener_that_closes_leaves_the_others
    what_nobody_reads_stops_the_writer
    data_come_in_order_and_complete
    connections_wait_to_be_accepted
    a_full_backlog_keeps_newcomers_waiting
    datagrams_keep_their_bounds_and_are_cut
    a_datagram_for_nobody_is_told_to_a_socket_with_a_peer
    a_peer_filters_datagrams
    unix_streams_end_and_reset
    a_unix_path_is_found_or_not
    unix_datagrams_wait_for_room
    names_and_numbers
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

async fn read_all(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65_536]);
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(all),
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

async fn udp() -> UdpSocket {
    UdpSocket::bind(LOOPBACK).await.unwrap()
}

async fn a_connection_knows_both_its_ends() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(server.peer_addr().unwrap(), peer);
    assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
}

async fn a_port_where_nobody_listens_refuses() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(error.to_string().contains("os error 111"), "{error}");
}

async fn an_address_in_use_is_refused_and_a_foreign_one_too() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "0.0.0.0"] {
        let error = TcpListener::bind((host, port)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    let error = TcpListener::bind("192.0.2.1:0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    drop(listener);
    TcpListener::bind(("127.0.0.1", port)).await.unwrap();
}

async fn the_end_of_a_stream_comes_after_its_data() {
    let (client, server) = pair().await;
    server.write_all(b"abc").await.unwrap();
    drop(server);
    assert_eq!(read_all(&client).await.unwrap(), b"abc");
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
}

async fn half_of_a_connection_can_be_closed() {
    let (client, server) = pair().await;
    client.write_all(b"question").await.unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&server).await.unwrap(), b"question");
    server.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer");
    let error = client.write_all(b"more").await.unwrap_err();
    assert_eq!((error.written, error.source.kind()), (0, ErrorKind::BrokenPipe));
}

async fn closing_with_unread_data_resets() {
    let (client, server) = pair().await;
    client.write_all(b"unread").await.unwrap();
    server.readable().await.unwrap();
    server.peek(&mut [0; 1]).await.unwrap();
    drop(server);
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn a_reset_is_told_once() {
    let (client, server) = pair().await;
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    let error = client.write(b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(client.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    let error = client.shutdown(Shutdown::Both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
}

async fn a_listener_that_is_closed_resets_who_was_not_accepted() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    sleep(MOMENT).await.unwrap();
    drop(listener);
    let error = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn shared_listeners_share_with_their_like_alone() {
    let in_use = |bound: io::Result<TcpListener>| bound.unwrap_err().kind();
    let one = TcpListener::bind_shared(LOOPBACK).await.unwrap();
    let address = one.local_addr().unwrap();
    let other = TcpListener::bind_shared(address).await.unwrap();
    assert_eq!(other.local_addr().unwrap(), address);
    assert_eq!(in_use(TcpListener::bind(address).await), ErrorKind::AddrInUse);
    let at_any = TcpListener::bind_shared(("0.0.0.0", address.port())).await.unwrap();
    // The listener at the address itself goes before the one at any address.
    drop(other);
    let client = TcpStream::connect(address).await.unwrap();
    let (_, peer) = one.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    drop(one);
    let client = TcpStream::connect(address).await.unwrap();
    let (_, peer) = at_any.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    drop(at_any);

    let alone = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = alone.local_addr().unwrap();
    assert_eq!(in_use(TcpListener::bind_shared(address).await), ErrorKind::AddrInUse);
}

async fn shared_listener_that_closes_leaves_the_others() {
    let one = TcpListener::bind_shared(LOOPBACK).await.unwrap();
    let address = one.local_addr().unwrap();
    let waiting = TcpStream::connect(address).await.unwrap();
    sleep(MOMENT).await.unwrap();
    let other = TcpListener::bind_shared(address).await.unwrap();
    drop(one);
    let error = waiting.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    for _ in 0..5 {
        let client = TcpStream::connect(address).await.unwrap();
        let (_, peer) = other.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }
}

async fn what_nobody_reads_stops_the_writer() {
    let (client, server) = pair().await;
    let written = timed(MOMENT, client.write_all(&vec![7; MUCH])).await.output.unwrap();
    let error = written.unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::TimedOut);
    assert!(error.written > 0 && error.written < MUCH);
    drop(client);
    assert_eq!(read_all(&server).await.unwrap().len(), error.written);
}

async fn data_come_in_order_and_complete() {
    let (client, server) = pair().await;
    let sent: Vec<u8> = (0..MUCH / 8).map(|index| (index / 7) as u8).collect();
    let expected = sent.clone();
    let writer = spawn(async move {
        client.write_all(&sent).await.unwrap();
    });
    assert!(read_all(&server).await.unwrap() == expected);
    writer.await.unwrap();
}

async fn connections_wait_to_be_accepted() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    for number in 0..5_u8 {
        let client = TcpStream::connect(address).await.unwrap();
        client.write_all(&[number]).await.unwrap();
        clients.push(client);
    }
    let mut numbers = Vec::new();
    for _ in 0..5 {
        let (server, _) = listener.accept().await.unwrap();
        let mut first = [0];
        server.read_exact(&mut first).await.unwrap();
        numbers.push(first[0]);
    }
    // The last step of making a connection may overtake that of another.
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}

async fn a_full_backlog_keeps_newcomers_waiting() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    // As many as it has room for, and then one at a time until one has to wait.
    for _ in 0..2_000 {
        match timeout_after(MOMENT * 3, TcpStream::connect(address)).await {
            Ok(connected) => clients.push(connected.unwrap()),
            Err(_) => break,
        }
    }
    assert_eq!(clients.len(), 1_025, "one more than its backlog");
    let newcomer = spawn(async move { TcpStream::connect(address).await });
    sleep(MOMENT).await.unwrap();
    assert!(!newcomer.is_finished());
    for _ in 0..clients.len() {
        tasks.push(listener.accept().await.unwrap());
    }
    newcomer.await.unwrap().unwrap();
}

async fn datagrams_keep_their_bounds_and_are_cut() {
    let (one, other) = (udp().await, udp().await);
    let to = other.local_addr().unwrap();
    one.send_to(b"a long one", to).await.unwrap();
    let mut buffer = [0; 6];
    assert_eq!(other.recv_from(&mut buffer).await.unwrap(), (6, one.local_addr().unwrap()));
    assert_eq!(&buffer, b"a long");
    one.send_to(b"", to).await.unwrap();
    assert_eq!(other.recv_from(&mut buffer).await.unwrap().0, 0);
    let error = one.send_to(&vec![0; 70_000], to).await.unwrap_err();
    assert!(error.to_string().contains("os error 90"), "{error}");
    let error = one.send(b"to whom?").await.unwrap_err();
    assert!(error.to_string().contains("os error 89"), "{error}");
}

async fn a_datagram_for_nobody_is_told_to_a_socket_with_a_peer() {
    let (one, gone) = (udp().await, udp().await);
    one.connect(gone.local_addr().unwrap()).await.unwrap();
    drop(gone);
    one.send(b"anybody?").await.unwrap();
    let error = one.recv(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn a_peer_filters_datagrams() {
    let (one, other, stranger) = (udp().await, udp().await, udp().await);
    one.connect(other.local_addr().unwrap()).await.unwrap();
    stranger.send_to(b"not for you", one.local_addr().unwrap()).await.unwrap();
    other.send_to(b"for you", one.local_addr().unwrap()).await.unwrap();
    let mut buffer = [0; 32];
    let length = one.recv(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..length], b"for you");
}

async fn unix_streams_end_and_reset() {
    let (one, other) = UnixStream::pair().unwrap();
    one.write_all(b"abc").await.unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(other.read(&mut buffer).await.unwrap(), 3);
    assert_eq!(other.read(&mut buffer).await.unwrap(), 0);
    other.write_all(b"def").await.unwrap();
    drop(one);
    let error = other.write_all(b"ghi").await.unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::BrokenPipe);

    let (one, other) = UnixStream::pair().unwrap();
    one.write_all(b"unread").await.unwrap();
    drop(other);
    let error = one.read(&mut buffer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(one.read(&mut buffer).await.unwrap(), 0);
}

async fn a_unix_path_is_found_or_not() {
    let scratch = Scratch::new();
    let path = scratch.path("listener");
    let error = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(UnixListener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    let client = UnixStream::connect(&path).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert!(peer.is_unnamed() && client.local_addr().unwrap().is_unnamed());
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(&*path));
    drop(listener);
    let error = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn unix_datagrams_wait_for_room() {
    const COUNT: u16 = 2_000;
    let (one, other) = UnixDatagram::pair().unwrap();
    let one = Rc::new(one);
    let sender = spawn({
        let one = one.clone();
        async move {
            for number in 0..COUNT {
                one.send(&number.to_be_bytes()).await.unwrap();
            }
        }
    });
    sleep(MOMENT).await.unwrap();
    assert!(!sender.is_finished());
    for number in 0..COUNT {
        let mut buffer = [0; 2];
        assert_eq!(other.recv(&mut buffer).await.unwrap(), 2);
        assert_eq!(buffer, number.to_be_bytes());
    }
    sender.await.unwrap();
    drop(other);
    let error = one.send(b"anybody?").await.unwrap_err();
    assert!([ErrorKind::ConnectionRefused, ErrorKind::NotConnected].contains(&error.kind()));
}

async fn names_and_numbers() {
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect(("localhost", port)).await.unwrap();
    let error = TcpStream::connect("no-such-host.invalid:80").await.unwrap_err();
    assert!(error.to_string().contains("lookup"), "{error}");
}
