//! Unix stream sockets.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use futures::join;
use pikake::net::{UnixListener, UnixStream};
use pikake::traps::Closed;
use pikake::{TimedOut, spawn, timeout_after, yield_now};
#[cfg(target_os = "linux")]
use rustix::process::{getegid, geteuid};

use crate::support::scratch::Scratch;

const MUCH: usize = 8 << 20;

fn is_closed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inside| inside.is::<Closed>())
}

#[pikake::test]
async fn a_pair_in_both_directions_at_once() {
    let (one, other) = UnixStream::pair().unwrap();
    assert!(one.local_addr().unwrap().is_unnamed() && one.peer_addr().unwrap().is_unnamed());
    let data: Vec<u8> = (0..MUCH).map(|index| (index / 7) as u8).collect();
    let (mut there, mut back) = (vec![0; MUCH], vec![0; MUCH]);
    let ((one_read, one_write), (other_read, other_write)) = (one.split(), other.split());
    let (a, b, c, d) = join!(
        one_write.write_all(&data),
        other_read.read_exact(&mut there),
        other_write.write_all(&data),
        one_read.read_exact(&mut back),
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    d.unwrap();
    assert!(there == data && back == data);
}

#[pikake::test]
async fn listener_at_a_path_accepts_connections() {
    let scratch = Scratch::new();
    let path = scratch.path("listener");
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
    let (client, accepted) = join!(UnixStream::connect(&path), listener.accept());
    let (client, (server, peer)) = (client.unwrap(), accepted.unwrap());
    assert!(peer.is_unnamed(), "{peer:?}");
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
    client.write_all(b"hello").await.unwrap();
    let mut buffer = [0; 8];
    assert_eq!(server.read(&mut buffer).await.unwrap(), 5);
    drop(server);
    assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
}

#[cfg(target_os = "linux")]
#[pikake::test]
async fn peers_of_a_stream_are_known() {
    let scratch = Scratch::new();
    let path = scratch.path("listener");
    let listener = UnixListener::bind(&path).unwrap();
    let (client, accepted) = join!(UnixStream::connect(&path), listener.accept());
    let (client, (server, _)) = (client.unwrap(), accepted.unwrap());
    for stream in [&client, &server] {
        let peer = stream.peer_credentials().unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        let own = (geteuid().as_raw(), getegid().as_raw());
        assert_eq!((peer.uid, peer.gid), own);
    }
    server.close();
    assert!(is_closed(&server.peer_credentials().unwrap_err()));
}

#[test]
fn a_simulation_knows_no_users() {
    pikake::sim::example(async {
        let (one, _other) = UnixStream::pair().unwrap();
        let error = one.peer_credentials().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

#[pikake::test]
async fn path_in_use_is_refused_and_kept() {
    let scratch = Scratch::new();
    let path = scratch.path("twice");
    let listener = UnixListener::bind(&path).unwrap();
    drop(listener);
    let error = UnixListener::bind(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let text = error.to_string();
    assert!(text.starts_with(&format!("bind {} (the file exists", path.display())), "{text}");
    let error = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    std::fs::remove_file(&path).unwrap();
    let error = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with(&format!("connect to {}: ", path.display())));
    UnixListener::bind(&path).unwrap();
}

#[pikake::test]
async fn connect_waits_for_a_full_backlog() {
    let scratch = Scratch::new();
    let path = scratch.path("full");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let listener = UnixListener::from_std(listener).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        let connect = UnixStream::connect(&path);
        match timeout_after(Duration::from_millis(30), connect).await {
            Ok(connected) => waiting.push(connected.unwrap()),
            Err(TimedOut) => break waiting.len(),
        }
    };
    assert!(full > 0);
    let (connected, accepted) = join!(UnixStream::connect(&path), listener.accept());
    connected.unwrap();
    accepted.unwrap();
}

#[pikake::test]
async fn owned_halves_in_two_tasks() {
    let (one, other) = UnixStream::pair().unwrap();
    let (read, write) = one.into_split();
    let writer = spawn(async move {
        write.write_all(b"first").await.unwrap();
        drop(write);
    });
    let reader = spawn(async move {
        let mut buffer = [0; 6];
        read.read_exact(&mut buffer).await.unwrap();
        (read, buffer)
    });
    let mut buffer = [0; 64];
    assert_eq!(other.read(&mut buffer).await.unwrap(), 5);
    assert_eq!(other.read(&mut buffer).await.unwrap(), 0);
    other.write_all(b"second").await.unwrap();
    writer.await.unwrap();
    let (_read, answer) = reader.await.unwrap();
    assert_eq!(&answer, b"second");
}

#[pikake::test]
async fn halves_reunite_into_the_stream() {
    let (one, other) = UnixStream::pair().unwrap();
    let (read, write) = one.into_split();
    let one = read.reunite(write).unwrap();
    one.write_all(b"x").await.unwrap();
    assert_eq!(other.read(&mut [0]).await.unwrap(), 1);
    assert_eq!(other.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[pikake::test]
async fn closing_wakes_reader_and_accept() {
    let scratch = Scratch::new();
    let listener = Rc::new(UnixListener::bind(scratch.path("closed")).unwrap());
    let (one, _other) = UnixStream::pair().unwrap();
    let one = Rc::new(one);
    let accepting = spawn({
        let listener = listener.clone();
        async move { listener.accept().await.map(drop) }
    });
    let reading = spawn({
        let one = one.clone();
        async move { one.read(&mut [0]).await.map(drop) }
    });
    yield_now().await.unwrap();
    listener.close();
    one.close();
    assert!(is_closed(&accepting.await.unwrap().unwrap_err()));
    assert!(is_closed(&reading.await.unwrap().unwrap_err()));
}
