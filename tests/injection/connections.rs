//! Connecting and accepting, and a server of connections.

use std::cell::Cell;
use std::io::{self};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;

use pikake::net::{
    Ended, NameAnswer, NameSource, Resolver, TcpListener, TcpStream, UdpSocket, UnixListener,
    UnixStream, interruption, serve,
};
use pikake::testing::Injector;
use pikake::{sleep, spawn, timeout_after};

use crate::support::insist::{A_FEW, SOCKETS, a_moment, insist_on_sockets, insist_outside, ms};
use crate::support::scratch::Scratch;

fn tcp_listener() -> (TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (TcpListener::from_std(listener).unwrap(), address)
}

#[test]
fn connecting_over_tcp_by_name() {
    insist_outside(2, async |insistent| {
        let (listener, address) = tcp_listener();
        let to = ("localhost", address.port());
        let stream = insistent.on(async || TcpStream::connect(to).await).await;
        // An interrupted call leaves no connection behind.
        let (accepted, _) = insistent.on(async || listener.accept().await).await;
        assert_eq!(accepted.peer_addr().unwrap(), stream.local_addr().unwrap());
        insistent.on(async || stream.write(b"hi").await).await
    });
}

/// A listener that takes no connection any more, with those that have filled it up.
fn full_listener() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&listener, 0).unwrap();
    let listener = std::net::TcpListener::from(listener);
    let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener, vec![connected])
}

#[test]
fn connecting_over_tcp_in_vain() {
    let program = || async {
        let (listener, _connected) = full_listener();
        let address = listener.local_addr().unwrap();
        timeout_after(ms(50), TcpStream::connect(address)).await
    };
    let report = Injector::new().patience(SOCKETS).run(program, |run| match &run.output {
        Some(Ok(Err(error))) => {
            let by = run.interruption.as_ref().expect("it is not its own deadline");
            assert_eq!(interruption(error).unwrap().is_cancel(), by.kind.is_cancel());
        }
        Some(Err(pikake::TimedOut)) => {}
        other => panic!("{other:?}"),
    });
    assert_eq!(report.suspensions, 1);
}

#[test]
fn connecting_over_unix() {
    let scratch = Scratch::new();
    let number = Cell::new(0);
    insist_on_sockets(2, async |insistent| {
        number.set(number.get() + 1);
        let path = scratch.path(&number.get().to_string());
        // A backlog of no more than one: the second has to wait.
        let listener = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        let at = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&listener, &at).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let listener: std::os::unix::net::UnixListener = listener.into();
        let first = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let listener = UnixListener::from_std(listener).unwrap();
        spawn(async move {
            sleep(ms(10)).await.unwrap();
            drop(first);
            while let Ok((accepted, _)) = listener.accept().await {
                let _ = accepted.read(&mut [0; 2]).await;
            }
        })
        .detach();
        let stream = insistent.on(async || UnixStream::connect(&path).await).await;
        insistent.on(async || stream.write(b"hi").await).await
    });
}

#[test]
fn accepting() {
    insist_on_sockets(A_FEW, async |insistent| {
        let (listener, address) = tcp_listener();
        spawn(async move {
            for _ in 0..A_FEW {
                a_moment().await;
                let stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"x").await.unwrap();
            }
        })
        .detach();
        let mut accepted = 0;
        while accepted < A_FEW {
            let (stream, _) = insistent.on(async || listener.accept().await).await;
            accepted += insistent.on(async || stream.read(&mut [0; 2]).await).await;
        }
        accepted
    });
    let scratch = Scratch::new();
    let number = Cell::new(0);
    insist_on_sockets(A_FEW, async |insistent| {
        number.set(number.get() + 1);
        let path = scratch.path(&number.get().to_string());
        let listener = UnixListener::bind(&path).unwrap();
        spawn(async move {
            for _ in 0..A_FEW {
                a_moment().await;
                let stream = UnixStream::connect(&path).await.unwrap();
                stream.write_all(b"x").await.unwrap();
            }
        })
        .detach();
        let mut accepted = 0;
        while accepted < A_FEW {
            let (stream, _) = insistent.on(async || listener.accept().await).await;
            accepted += insistent.on(async || stream.read(&mut [0; 2]).await).await;
        }
        accepted
    });
}

#[test]
fn binding_and_connecting_by_name() {
    insist_outside((), async |insistent| {
        insistent.on(async || TcpListener::bind("localhost:0").await).await;
        let socket = insistent.on(async || UdpSocket::bind("localhost:0").await).await;
        let to = socket.local_addr().unwrap();
        insistent.on(async || socket.connect(("localhost", to.port())).await).await;
    });
}

#[test]
fn a_server_ends_with_all_its_handlers() {
    let program = || async {
        let (listener, address) = tcp_listener();
        let listener = Rc::new(listener);
        let (started, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let clients = spawn({
            let listener = listener.clone();
            async move {
                let mut served = 0;
                for _ in 0..A_FEW {
                    let stream = TcpStream::connect(address).await?;
                    sleep(ms(1)).await?;
                    stream.write_all(b"x").await?;
                    served += stream.read(&mut [0; 8]).await?;
                }
                listener.close();
                Ok::<_, io::Error>(served)
            }
        });
        let handler = {
            let (started, ended) = (started.clone(), ended.clone());
            move |stream: TcpStream, _| {
                let (started, ended) = (started.clone(), ended.clone());
                async move {
                    started.set(started.get() + 1);
                    let mut buffer = [0; 1];
                    let goodbye: &[u8] = match stream.read_exact(&mut buffer).await {
                        Ok(()) => b"x",
                        Err(_) => b"goodbye",
                    };
                    let _ = stream.write_all(goodbye).await;
                    let _ = sleep(ms(1)).await;
                    ended.set(ended.get() + 1);
                }
            }
        };
        let served = serve(listener, 1, handler).await.unwrap();
        let left = started.get() - ended.get();
        let is_closed = matches!(served, Ended::Closed);
        let why = match served {
            Ended::Interrupted(why) => Some(why),
            _ => None,
        };
        drop(clients);
        (left, is_closed, why)
    };
    let report = Injector::new().patience(SOCKETS).run(program, |run| {
        let (left, is_closed, why) = run.output.clone().unwrap();
        assert_eq!(left, 0, "a handler has outlived its server");
        assert!(is_closed ^ why.is_some());
        if let Some(by) = &run.interruption {
            // When only the last handlers are waited for, the listener's error is not replaced.
            let is_late = by.suspension + 2 * A_FEW >= by.suspensions;
            assert!(why.is_some() || is_late, "{by}");
        } else {
            assert!(is_closed);
        }
    });
    assert!(report.suspensions > A_FEW, "{report:?}");
}

/// Knows two addresses for any name; nobody listens at the first.
struct Two;

impl NameSource for Two {
    fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
        let addresses = [[127, 0, 0, 2], [127, 0, 0, 1]].map(IpAddr::from).to_vec();
        Box::pin(async {
            sleep(ms(1)).await?;
            Ok(NameAnswer { addresses, ttl: None })
        })
    }
}

#[test]
fn connecting_to_one_of_several_addresses() {
    insist_on_sockets(2, async |insistent| {
        let (listener, address) = tcp_listener();
        let resolver = Resolver::builder().source(Two).build();
        let to = ("example.org", address.port());
        let stream = insistent.on(async || resolver.connect(to).await).await;
        assert_eq!(stream.peer_addr().unwrap(), address);
        // An interrupted call leaves no connection behind.
        let (accepted, _) = insistent.on(async || listener.accept().await).await;
        assert_eq!(accepted.peer_addr().unwrap(), stream.local_addr().unwrap());
        insistent.on(async || stream.write(b"hi").await).await
    });
}
