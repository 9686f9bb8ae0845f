//! Descriptors that stand for simulated sockets. The test counts the descriptors of the process, so
//! it is alone.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{FromRawFd, IntoRawFd};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registered, Registry, Token};
use pikake_traps::{SocketId, read_wait};

fn id_of(source: &mut impl Source) -> SocketId {
    let registry = Registry::new();
    source.register(&registry, Token(0), Interest::READABLE).unwrap();
    match registry.take().unwrap() {
        Registered::Socket(id) | Registered::Connecting(id) | Registered::Descriptor(id) => id,
    }
}

async fn pair() -> (TcpStream, TcpStream) {
    let mut listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let waiting = id_of(&mut listener);
    loop {
        match listener.accept() {
            Ok((other, _)) => return (one, other),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        read_wait(waiting).await.unwrap();
    }
}

async fn read(stream: &mut TcpStream) -> usize {
    let waiting = id_of(stream);
    loop {
        match (&*stream).read(&mut [0; 2]) {
            Ok(length) => return length,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        read_wait(waiting).await.unwrap();
    }
}

fn std_of(stream: TcpStream) -> std::net::TcpStream {
    // SAFETY: `into_raw_fd` gives the descriptor away.
    unsafe { std::net::TcpStream::from_raw_fd(stream.into_raw_fd()) }
}

/// A simulated stream survives as a descriptor that stands for it. A stream that is never claimed
/// does not outlive its world, and neither does its descriptor.
#[test]
fn stand_ins_return_or_end() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = Cell::new(None);
    for _ in 0..3 {
        pikake_sim::example(async {
            let (one, mut other) = pair().await;
            let peer = one.local_addr().unwrap();
            let mut one = TcpStream::from_std(std_of(one));
            id_of(&mut one);
            assert_eq!(one.local_addr().unwrap(), peer);
            one.write_all(b"x").unwrap();
            assert_eq!(read(&mut other).await, 1);
            drop(one);
            assert_eq!(read(&mut other).await, 0);

            drop(std_of(pair().await.0));
            // One stand-in of this world at most, and none of those before.
            let first = before.get().unwrap_or_else(open);
            before.set(Some(first));
            assert_eq!(open(), first);
        });
    }
}
