//! Hostile peers of a TLS server, beside peers that it serves.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::tls::{TlsAcceptor, TlsStream};
use pikake::net::{MemoryStream, Read, TcpListener, TcpStream, Write, serve};
use pikake::time::{elapsed_since, now};
use pikake::{sleep, spawn, timeout_after};

use super::certificates::{Authority, SERVER};
use crate::support::{ms, run};

/// How long the servers here wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// The errors of the server's connections, in the order of their ends.
type Ends = Rc<RefCell<Vec<ErrorKind>>>;

/// Echoes one message to each client.
async fn echo_server(authority: &Authority) -> (SocketAddr, Ends, pikake::Task<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::builder(authority.server.identity()).handshake_timeout(PATIENCE);
    let acceptor = acceptor.build().unwrap();
    let ends = Ends::default();
    let noted = ends.clone();
    let server = spawn(async move {
        let handler = move |stream, _| {
            let (acceptor, noted) = (acceptor.clone(), noted.clone());
            async move {
                let echo = async {
                    let stream: TlsStream<TcpStream> = acceptor.accept(stream).await?;
                    let mut buffer = [0; 64];
                    let length = stream.read(&mut buffer).await?;
                    stream.write_all(&buffer[..length]).await?;
                    stream.finish().await
                };
                if let Err(error) = echo.await {
                    noted.borrow_mut().push(error.kind());
                }
            }
        };
        drop(serve(listener, 100, handler).await);
    });
    (address, ends, server)
}

async fn is_served(authority: &Authority, address: SocketAddr) {
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = authority.connector().connect(SERVER, stream).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut buffer = [0; 5];
    stream.read_exact(&mut buffer).await.unwrap();
    assert_eq!((&buffer, stream.read(&mut [0; 8]).await.unwrap()), (b"hello", 0));
}

/// Notes what goes out, and sends none of it.
#[derive(Debug)]
struct Tap(RefCell<Vec<u8>>);

impl Read for Tap {
    async fn read(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::ConnectionReset.into())
    }
}

impl Write for Tap {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend(data);
        Ok(data.len())
    }

    async fn finish(&self) -> io::Result<()> {
        Ok(())
    }
}

/// How a client begins.
async fn client_hello(authority: &Authority) -> Vec<u8> {
    let tap = Tap(RefCell::default());
    authority.connector().connect(SERVER, &tap).await.unwrap_err();
    tap.0.into_inner()
}

/// On the system's loopback, in real time; nothing is left of it afterwards.
fn real<F: Future>(future: F) -> F::Output {
    let kernel = pikake::Kernel::new().unwrap();
    let output = kernel.run(future);
    kernel.shutdown();
    assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0), "tasks and sockets left");
    output
}

#[test]
fn hostile_clients_do_not_stop_the_server() {
    real(async {
        let authority = Authority::new();
        let (address, ends, server) = echo_server(&authority).await;
        let hello = client_hello(&authority).await;
        assert!(hello.len() > 100 && hello[0] == 0x16, "a ClientHello");
        let connect = || async { TcpStream::connect(address).await.unwrap() };
        let settled = async |count: usize| {
            while ends.borrow().len() < count {
                sleep(ms(1)).await.unwrap();
            }
        };

        // Another protocol.
        let garbage = connect().await;
        garbage.write_all(b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n").await.unwrap();
        settled(1).await;
        is_served(&authority, address).await;
        // Half of a record, and the end.
        let truncated = connect().await;
        truncated.write_all(&hello[..hello.len() / 2]).await.unwrap();
        drop(truncated);
        settled(2).await;
        // A record, and a reset in the middle of the handshake.
        let reset = connect().await;
        reset.write_all(&hello).await.unwrap();
        reset.read_exact(&mut [0; 5]).await.unwrap();
        reset.set_linger(Some(Duration::ZERO)).unwrap();
        drop(reset);
        settled(3).await;
        is_served(&authority, address).await;
        // A record that is none, after a good beginning.
        let forged = connect().await;
        forged.write_all(&hello).await.unwrap();
        forged.write_all(&[0x17, 3, 3, 0, 32]).await.unwrap();
        forged.write_all(&[0; 32]).await.unwrap();
        settled(4).await;
        // The announcement of more than a record may have.
        let oversize = connect().await;
        oversize.write_all(&[0x16, 3, 1, 0xff, 0xff]).await.unwrap();
        oversize.write_all(&[0; 1000]).await.unwrap();
        settled(5).await;
        let expected = [
            ErrorKind::InvalidData,
            ErrorKind::UnexpectedEof,
            ErrorKind::ConnectionReset,
            ErrorKind::InvalidData,
            ErrorKind::InvalidData,
        ];
        assert_eq!(ends.take(), expected);
        is_served(&authority, address).await;
        drop((garbage, forged, oversize));
        server.request_cancel("the test is over");
        server.await.unwrap();
    });
}

/// In a world of its own, where time is virtual and the network is not the machine's.
#[pikake::sim(seeds = 5)]
async fn unfinished_handshake_times_out() {
    let authority = Authority::new();
    let (address, ends, server) = echo_server(&authority).await;
    let hello = client_hello(&authority).await;
    let since = now();
    let silent: Vec<TcpStream> = {
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        silent
    };
    // One byte a second: always alive, never done.
    let dripping = TcpStream::connect(address).await.unwrap();
    let dripping = spawn(async move {
        for byte in hello {
            sleep(ms(1000)).await?;
            dripping.write_all(&[byte]).await?;
        }
        io::Result::Ok(())
    });
    is_served(&authority, address).await;
    for client in &silent {
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
    }
    let took = elapsed_since(since);
    assert!(took >= PATIENCE && took < PATIENCE + ms(500), "{took:?}");
    assert!(dripping.await.unwrap().is_err(), "it was closed as well");
    assert_eq!(ends.take(), [ErrorKind::TimedOut; 21]);
    is_served(&authority, address).await;
    server.request_cancel("the test is over");
    server.await.unwrap();
}

#[test]
fn outer_deadline_is_not_a_handshake_timeout() {
    run(async {
        let authority = Authority::new();
        let (one, _other) = MemoryStream::pair(10_000);
        let connecting = async { authority.connector().connect(SERVER, one).await };
        let timed = pikake::timed(ms(10), connecting).await;
        let error = timed.output.unwrap().unwrap_err();
        assert!(pikake::net::interruption(&error).is_some(), "{error}");
        let (one, _other) = MemoryStream::pair(10_000);
        let connecting = async { authority.connector().connect(SERVER, one).await };
        let connecting = timeout_after(ms(60_000), connecting);
        let error = connecting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(pikake::net::interruption(&error).is_none());
        assert_eq!(error.to_string(), "TLS handshake with server.test: not done within 10s");
    });
}

#[test]
fn corrupted_data_are_refused() {
    run(async {
        let authority = Authority::new();
        let ((client, near), (far, server)) =
            (MemoryStream::pair(100_000), MemoryStream::pair(100_000));
        // A man in the middle who changes one bit of what the client says after the handshake.
        let changes = Rc::new(std::cell::Cell::new(false));
        let changing = changes.clone();
        let middle = spawn(async move {
            let there = async {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = near.read(&mut buffer).await {
                    if changing.get() {
                        buffer[length - 1] ^= 1;
                    }
                    if far.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            };
            let back = async { drop(pikake::net::copy(&far, &near).await) };
            futures::future::select(std::pin::pin!(there), std::pin::pin!(back)).await;
        });
        let (connector, acceptor) = (authority.connector(), authority.acceptor());
        let (client, server) =
            futures::future::join(connector.connect(SERVER, client), acceptor.accept(server)).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        changes.set(true);
        client.write_all(b"pay ten").await.unwrap();
        let error = server.read(&mut [0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("decrypt"), "{error}");
        drop((client, server));
        middle.await.unwrap();
    });
}

/// The alert that answers garbage is sent if that can be done at once. What the attempt would have
/// waited for is nobody's wait, so the request to end that comes in the same moment is for the
/// task.
#[test]
fn unsent_alert_swallows_no_interruption() {
    run(async {
        let authority = Authority::new();
        let (near, far) = MemoryStream::pair(10_000);
        let (near, far) = (Rc::new(near), Rc::new(far));
        let (connector, acceptor) = (authority.connector(), authority.acceptor());
        let (client, server) = futures::future::join(
            connector.connect(SERVER, near.clone()),
            acceptor.accept(far.clone()),
        )
        .await;
        let (_client, server) = (client.unwrap(), server.unwrap());
        // No room is left for the alert.
        let full = pikake::timed(ms(1), far.write_all(&[0; 20_000])).await;
        assert!(full.output.unwrap().is_err());
        let reading = spawn(async move {
            let error = server.read(&mut [0; 8]).await.unwrap_err();
            (error.kind(), sleep(ms(1)).await)
        });
        sleep(ms(1)).await.unwrap();
        near.write_all(&[0; 100]).await.unwrap();
        reading.request_cancel("enough");
        let (kind, next_wait) = reading.await.unwrap();
        assert_eq!(kind, ErrorKind::InvalidData);
        assert!(next_wait.is_err_and(|why| why.is_cancel()), "the request to end was lost");
    });
}
