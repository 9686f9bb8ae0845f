//! No descriptor leaks, and no event of a closed descriptor reaches its successor.
//!
//! The tests count the descriptors of their process.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, UnixDatagram, UnixStream, interruption, serve};
use pikake::traps::Closed;
use pikake::{Kernel, TimedOut, sleep, spawn, timeout_after, yield_now};
use rustix::net::{AddressFamily, SocketType};

use crate::alone;

const SHORT: Duration = Duration::from_millis(30);

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn descriptors() {
    alone("descriptors::descriptors", check_descriptors);
}

fn check_descriptors() {
    let kernel = Kernel::new().unwrap();
    // A kernel that has waited for a moment has a descriptor for that, too. (One moment may be over
    // before it is waited for.)
    for _ in 0..20 {
        kernel.run(sleep(Duration::from_millis(1))).unwrap();
    }
    let before = open_descriptors();
    let check = |what: &str| assert_eq!(open_descriptors(), before, "after {what}");

    kernel.run(async {
        let (listener, address) = listen().await;
        for _ in 0..50 {
            let client = TcpStream::connect(address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let (read, write) = client.into_split();
            drop(read);
            write.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
        }
    });
    check("connections");

    kernel.run(async {
        let gone = listen().await.1;
        for _ in 0..20 {
            let error = TcpStream::connect(gone).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    });
    check("refused connections");

    kernel.run(interrupted_connects());
    check("interrupted connects");

    kernel.run(async {
        let (listener, address) = listen().await;
        let client = TcpStream::connect(address).await.unwrap();
        let (_server, _) = listener.accept().await.unwrap();
        let data = vec![0; 64 << 20];
        let mut written = 0;
        let writing = async {
            written = client.write_all(&data).await.unwrap_err().written;
        };
        assert_eq!(timeout_after(SHORT, writing).await, Err(TimedOut));
        assert!(written > 0);
    });
    check("a writer that timed out");

    kernel.run(async {
        let (listener, address) = listen().await;
        let server = serve(listener, 8, |stream: TcpStream, _| async move {
            stream.read(&mut [0]).await.map(drop).unwrap_or_default();
        });
        let server = spawn(server);
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        yield_now().await.unwrap();
        server.cancel().await.unwrap();
    });
    check("a server that was cancelled");

    kernel.run(async {
        let (one, _other) = UnixStream::pair().unwrap();
        let task = spawn(async move { one.read(&mut [0]).await });
        yield_now().await.unwrap();
        task.abort();
        yield_now().await.unwrap();
        drop(UnixDatagram::pair().unwrap());
    });
    check("a reader that was aborted");

    kernel.run(recycled());
    check("recycling");

    drop(kernel);
    pikake::run(async {
        // Left to the kernel: a task that waits, and sockets that nobody closed.
        let (one, other) = UnixStream::pair().unwrap();
        drop(spawn(async move { one.read(&mut [0]).await.map(drop) }));
        yield_now().await.unwrap();
        std::mem::forget(other);
    });
    assert!(open_descriptors() < before, "after the kernel's end");
}

/// Connections to a listener whose backlog is full stay half open.
async fn interrupted_connects() {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let address = SocketAddr::try_from(address).unwrap();

    let mut made = Vec::new();
    while let Ok(connected) = timeout_after(SHORT, TcpStream::connect(address)).await {
        made.push(connected.unwrap());
    }
    let half_open = open_descriptors();
    let connecting = spawn(TcpStream::connect(address));
    yield_now().await.unwrap();
    assert_eq!(open_descriptors(), half_open + 1);
    connecting.request_cancel("changed my mind");
    let error = connecting.await.unwrap().unwrap_err();
    assert_eq!(interruption(&error).and_then(|why| why.reason()), Some("changed my mind"));
    assert_eq!(open_descriptors(), half_open);
}

/// Closes a socket with a waiter, and opens others under the same descriptor and in the kernel's
/// same place.
async fn recycled() {
    for _ in 0..20 {
        let (old, old_peer) = UnixStream::pair().unwrap();
        let old = Rc::new(old);
        let reader = spawn({
            let old = old.clone();
            async move { old.read(&mut [0; 8]).await }
        });
        yield_now().await.unwrap();
        // News for the old socket, which the kernel has not asked for yet.
        old_peer.write_all(b"stale").await.unwrap();
        let free = lowest_free();
        old.close();
        assert!(lowest_free() < free, "the descriptor was not given back");

        let (new, new_peer) = UnixStream::pair().unwrap();
        let new = Rc::new(new);
        let new_reader = spawn({
            let new = new.clone();
            async move {
                let mut buffer = [0; 8];
                let length = new.read(&mut buffer).await?;
                io::Result::Ok(buffer[..length].to_vec())
            }
        });
        let error = reader.await.unwrap().unwrap_err();
        assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()));
        assert!(timeout_after(SHORT / 10, pending_task(&new_reader)).await.is_err());
        new_peer.write_all(b"fresh").await.unwrap();
        assert_eq!(new_reader.await.unwrap().unwrap(), b"fresh");
        // The owner of the old socket comes late.
        let error = old.read(&mut [0]).await.unwrap_err();
        assert!(error.get_ref().is_some_and(|inside| inside.is::<Closed>()));
    }
}

/// Waits as long as the task does.
async fn pending_task<T>(task: &pikake::Task<T>) {
    while !task.is_finished() {
        if pikake::sleep(Duration::from_millis(1)).await.is_err() {
            return;
        }
    }
}

/// The number that the next descriptor will have.
fn lowest_free() -> i32 {
    use std::os::fd::AsRawFd;
    std::fs::File::open("/dev/null").unwrap().as_raw_fd()
}
