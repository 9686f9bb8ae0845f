//! TLS streams by the traits of `tokio::io` and `futures_io`.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use futures::future::{Either, join, ready, select};
use pikake::net::tls::TlsStream;
use pikake::net::{
    self, BufReader, MemoryStream, Read, SendIo, TcpListener, TcpStream, UnixStream, Write,
    interruption,
};
use pikake::sim::Runs;
use pikake::testing::Injector;
use pikake::{Interrupted, current, shield, sleep, spawn, timeout_after, yield_now};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional, split};

use super::certificates::{Authority, SERVER};
use crate::support::{Log, ms, run};

/// Smaller than a record, so that each takes many waits.
const ROOM: usize = 1000;

/// More than rustls encrypts before records are sent.
const MUCH: usize = 200_000;

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|number| (number % 251) as u8).collect()
}

/// TLS over two streams that are connected to each other.
async fn over<A, B>(one: A, other: B) -> (TlsStream<A>, TlsStream<B>)
where
    A: Read + Write,
    B: Read + Write,
{
    let authority = Authority::new();
    let (connector, acceptor) = (authority.connector(), authority.acceptor());
    let (client, server) = join(connector.connect(SERVER, one), acceptor.accept(other)).await;
    (client.unwrap(), server.unwrap())
}

async fn in_memory() -> (TlsStream<MemoryStream>, TlsStream<MemoryStream>) {
    let (one, other) = MemoryStream::pair(ROOM);
    over(one, other).await
}

/// The same, without the methods of the streams themselves.
async fn polled() -> (SendIo<TlsStream<MemoryStream>>, SendIo<TlsStream<MemoryStream>>) {
    let (one, other) = in_memory().await;
    (SendIo::new(one), SendIo::new(other))
}

/// A server of `tokio::io`: sends all bytes back, and ends when the client does.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let (mut from, mut to) = split(stream);
    tokio::io::copy(&mut from, &mut to).await.unwrap();
    to.shutdown().await.unwrap();
}

/// Sends this to a server that echoes, and returns what comes back.
async fn ask<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, sent: Vec<u8>) -> Vec<u8> {
    let (mut from, mut to) = split(stream);
    let writing = spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await.unwrap();
    writing.await.unwrap();
    received
}

#[test]
fn tokio_copies_both_ways() {
    run(async {
        let ((client, near), (far, server)) = (in_memory().await, in_memory().await);
        let proxy = spawn(async move {
            let (mut near, mut far) = (near, far);
            copy_bidirectional(&mut near, &mut far).await.unwrap()
        });
        let server = spawn(echo(server));
        let sent = data(300_000);
        assert_eq!(ask(client, sent.clone()).await, sent);
        server.await.unwrap();
        assert_eq!(proxy.await.unwrap(), (300_000, 300_000));
    });
}

#[test]
fn futures_copies_both_ways() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};

    run(async {
        let (client, server) = in_memory().await;
        let server = spawn(async move {
            let (from, mut to) = server.split();
            assert_eq!(futures::io::copy(from, &mut to).await.unwrap(), 300_000);
            to.close().await.unwrap();
        });
        let (mut from, mut to) = client.split();
        let sent = data(300_000);
        let writing = async {
            to.write_all(&sent).await.unwrap();
            to.close().await.unwrap();
        };
        let mut received = Vec::new();
        join(writing, async { from.read_to_end(&mut received).await.unwrap() }).await;
        assert_eq!(received, sent);
        server.await.unwrap();
    });
}

/// Ten megabytes over sockets of the system, also through the wrapper that is `Send`.
#[pikake::test]
async fn much_data_over_sockets() {
    let sent = data(10_000_000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (client, server) = over(one, listener.accept().await.unwrap().0).await;
    let server = spawn(echo(SendIo::new(server)));
    assert!(ask(SendIo::new(client), sent.clone()).await == sent);
    server.await.unwrap();

    let (one, other) = UnixStream::pair().unwrap();
    let (client, server) = over(one, other).await;
    let server = spawn(echo(server));
    assert!(ask(client, sent.clone()).await == sent);
    server.await.unwrap();
}

#[test]
fn simulated_hosts_talk() {
    Runs::new("tls by tokio's traits").seeds(10).run(|sim| {
        let authority = Rc::new(Authority::new());
        let there = authority.clone();
        sim.host("server", move || {
            let acceptor = there.acceptor();
            async move {
                let listener = TcpListener::bind("0.0.0.0:443").await.unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    echo(acceptor.accept(stream).await.unwrap()).await;
                }
            }
        });
        sim.client("client", move || {
            let connector = authority.connector();
            async move {
                sleep(ms(10)).await.unwrap();
                let stream = TcpStream::connect("server:443").await.unwrap();
                let stream = connector.connect(SERVER, stream).await.unwrap();
                assert_eq!(ask(stream, data(100_000)).await, data(100_000));
            }
        });
    });
}

/// A reader and a writer wait at the same time; each is notified of its own direction.
#[test]
fn both_directions_wait_at_once() {
    run(async {
        let (client, mut server) = polled().await;
        let log = Log::default();
        let (mut from, mut to) = split(client);
        let (of_reader, of_writer) = (log.clone(), log.clone());
        let reader = spawn(async move {
            let mut buffer = [0; 8];
            let length = from.read(&mut buffer).await.unwrap();
            of_reader.add(format!("read {length}"));
        });
        let writer = spawn(async move {
            to.write_all(&[7; 10 * ROOM]).await.unwrap();
            to.flush().await.unwrap();
            of_writer.add("written");
        });
        sleep(ms(1)).await.unwrap();
        assert_eq!(log.take(), [""; 0]);
        server.read_exact(&mut [0; 10 * ROOM]).await.unwrap();
        sleep(ms(1)).await.unwrap();
        assert_eq!(log.take(), ["written"]);
        server.write_all(b"answer").await.unwrap();
        server.flush().await.unwrap();
        sleep(ms(1)).await.unwrap();
        assert_eq!(log.take(), ["read 6"]);
        reader.await.unwrap();
        writer.await.unwrap();
    });
}

/// Futures that are dropped at their first suspension lose no bytes and send none twice.
#[test]
fn dropped_polls_lose_nothing() {
    run(async {
        let (mut client, mut server) = polled().await;
        let sent = data(20_000);
        let all = sent.clone();
        let writer = spawn(async move {
            let mut rest = &all[..];
            let mut drops = 0;
            while !rest.is_empty() {
                let writing = std::pin::pin!(client.write(&rest[..rest.len().min(2000)]));
                match select(writing, ready(())).await {
                    Either::Left((written, _)) => rest = &rest[written.unwrap()..],
                    Either::Right(_) => {
                        drops += 1;
                        yield_now().await.unwrap();
                    }
                }
            }
            client.shutdown().await.unwrap();
            drops
        });
        let (mut received, mut drops) = (Vec::<u8>::new(), 0);
        let mut buffer = [0; 333];
        loop {
            let reading = std::pin::pin!(server.read(&mut buffer));
            match select(reading, ready(())).await {
                Either::Left((Ok(0), _)) => break,
                Either::Left((length, _)) => received.extend(&buffer[..length.unwrap()]),
                Either::Right(_) => {
                    drops += 1;
                    yield_now().await.unwrap();
                }
            }
        }
        assert!(received == sent);
        let writers = writer.await.unwrap();
        assert!(drops >= 10 && writers >= 10, "{drops} and {writers} were dropped");
    });
}

/// A wait that was abandoned is replaced by the methods of the stream itself.
#[test]
fn methods_replace_abandoned_polls() {
    run(async {
        let (mut client, server) = in_memory().await;
        let mut buffer = [0; 8];
        assert!(timeout_after(ms(1), AsyncReadExt::read(&mut client, &mut buffer)).await.is_err());
        let filled = timeout_after(ms(1), AsyncWriteExt::write_all(&mut client, &[7; MUCH]));
        assert!(filled.await.is_err());
        let client = Rc::new(client);
        let writing = client.clone();
        let writer = spawn(async move {
            let _ = writing.flush().await;
            writing.write_all(b"the end").await.unwrap();
            writing.finish().await.unwrap();
        });
        server.write_all(b"x").await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 1);
        let mut received = Vec::new();
        net::BufReader::new(server).limit(MUCH).read_to_end(&mut received).await.unwrap();
        writer.await.unwrap();
        let begin = received.strip_suffix(b"the end").unwrap();
        assert!(begin.iter().all(|byte| *byte == 7) && begin.len() <= MUCH);
    });
}

#[test]
fn shutdown_ends_one_direction() {
    run(async {
        let (mut client, mut server) = polled().await;
        let mut buffer = [0; 8];
        client.write_all(b"done").await.unwrap();
        client.shutdown().await.unwrap();
        client.shutdown().await.unwrap();
        let error = client.write(b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        server.read_exact(&mut buffer[..4]).await.unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
        server.write_all(b"thanks").await.unwrap();
        server.shutdown().await.unwrap();
        client.read_exact(&mut buffer[..6]).await.unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    });
}

#[test]
fn truncated_stream_is_an_unexpected_end() {
    run(async {
        let (mut client, mut server) = polled().await;
        server.write_all(b"half of it").await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        let mut text = Vec::new();
        let error = client.read_to_end(&mut text).await.unwrap_err();
        assert_eq!((error.kind(), &text[..]), (ErrorKind::UnexpectedEof, &b"half of it"[..]));
        let error = futures::io::AsyncReadExt::read(&mut client, &mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let written = client.write_all(&[7; ROOM]).await;
        let flushed = client.flush().await;
        assert_eq!(written.and(flushed).unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

/// Bytes that are no record are refused, and the peer receives an alert.
#[test]
fn wrong_bytes_are_refused() {
    run(async {
        let (mut client, mut server) = polled().await;
        net::Write::write_all(server.get().get_ref(), b"HTTP/1.1 400 Bad Request").await.unwrap();
        for _ in 0..2 {
            let error = client.read(&mut [0; 8]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        let error = server.read(&mut [0; 8]).await.unwrap_err();
        assert!(
            error.to_string().contains("DecodeError") || error.to_string().contains("alert"),
            "{error}"
        );
    });
}

#[test]
fn vectored_write_sends_several_buffers() {
    run(async {
        let (mut client, mut server) = polled().await;
        assert!(AsyncWrite::is_write_vectored(&client));
        let parts = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
        assert_eq!(client.write_vectored(&parts).await.unwrap(), 8);
        let mut buffer = [0; 8];
        server.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"headbody");
    });
}

/// The error of an interruption has a kind that libraries do not retry.
#[test]
fn interruption_is_an_error_of_the_poll() {
    run(async {
        let (mut client, _server) = polled().await;
        let mut buffer = [0; 8];
        let kinds = Cell::new(Vec::new());
        let note = |error: std::io::Error| {
            assert!(interruption(&error).is_some_and(Interrupted::is_timeout), "{error}");
            let mut all = kinds.take();
            all.push(error.kind());
            kinds.set(all);
        };
        let timed = timeout_after(ms(1), async {
            note(client.read_exact(&mut buffer).await.unwrap_err());
        });
        assert!(timed.await.is_err());
        let timed = timeout_after(ms(1), async {
            note(client.write_all(&[7; MUCH]).await.unwrap_err());
        });
        assert!(timed.await.is_err());
        assert_eq!(kinds.take(), [ErrorKind::TimedOut; 2]);

        let reader = spawn(async move { client.read_u8().await });
        sleep(ms(1)).await.unwrap();
        reader.request_cancel("enough");
        let error = reader.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other);
        assert_eq!(interruption(&error).and_then(Interrupted::reason), Some("enough"));
    });
}

/// The sending that a write has begun returns no interruption, since nobody would see it.
#[test]
fn begun_sending_swallows_no_interruption() {
    run(async {
        let (mut client, _server) = polled().await;
        let task = spawn(async move {
            sleep(ms(10)).await.unwrap_err();
            sleep(ms(10)).await.unwrap();
            client.write(&[7; 10 * ROOM]).await.unwrap()
        });
        sleep(ms(1)).await.unwrap();
        task.request_cancel("first");
        assert_eq!(task.await.unwrap(), 10 * ROOM);

        let (mut client, _server) = polled().await;
        let task = spawn(async move {
            current().request_cancel("while it runs");
            let written = client.write(&[7; 10 * ROOM]).await.unwrap();
            (written, sleep(ms(10)).await.unwrap_err().reason().map(str::to_owned))
        });
        assert_eq!(task.await.unwrap(), (10 * ROOM, Some("while it runs".to_owned())));
    });
}

#[test]
fn interrupted_polls_lose_nothing() {
    const LENGTH: usize = 1500;
    let authority = Authority::new();
    let (authority, sent) = (&authority, &data(LENGTH));
    let report = Injector::new().cleanup_limit(None).run(
        || async move {
            let (one, other) = MemoryStream::pair(200);
            let acceptor = authority.acceptor();
            let server = spawn(async move { echo(acceptor.accept(other).await.unwrap()).await });
            let stream = shield(authority.connector().connect(SERVER, one)).await.unwrap();
            let (mut from, mut to) = split(stream);
            let interruptions = Cell::new(0);
            let note = |error: std::io::Error| {
                assert!(interruption(&error).is_some(), "{error}");
                interruptions.set(interruptions.get() + 1);
            };
            let writing = async {
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    match to.write(rest).await {
                        Ok(length) => rest = &rest[length..],
                        Err(error) => note(error),
                    }
                }
                while let Err(error) = to.flush().await {
                    note(error);
                }
                while let Err(error) = to.shutdown().await {
                    note(error);
                }
            };
            let reading = async {
                let (mut all, mut buffer) = (Vec::<u8>::new(), [0; 333]);
                loop {
                    match from.read(&mut buffer).await {
                        Ok(0) => break all,
                        Ok(length) => all.extend(&buffer[..length]),
                        Err(error) => note(error),
                    }
                }
            };
            let ((), received) = join(writing, reading).await;
            shield(server).await.unwrap();
            assert!(received == *sent);
            interruptions.get()
        },
        // One cause may interrupt the reader and the writer.
        |run| assert!(run.output.unwrap() <= 2, "{:?}", run.output),
    );
    assert!(report.suspensions > 10 && report.cancels > 20, "{report:?}");
}

/// A poll of no bytes waits for nothing.
#[test]
fn empty_buffers_do_not_wait() {
    run(async {
        let (mut client, _server) = polled().await;
        assert_eq!(client.read(&mut []).await.unwrap(), 0);
        let read = poll_fn(|cx| {
            Poll::Ready(futures::io::AsyncRead::poll_read(Pin::new(&mut client), cx, &mut []))
        });
        assert!(matches!(read.await, Poll::Ready(Ok(0))));
        assert_eq!(client.write(&[]).await.unwrap(), 0);
    });
}

/// A carrier that may have written what a dropped write was given: no write is made twice.
#[test]
fn polled_tls_in_tls_is_whole_where_writes_wait() {
    run(async {
        let (one, other) = MemoryStream::pair(1000);
        let (one, other) = over(one, other).await;
        let (mut client, mut server) = over(one, other).await;
        let sent = data(100_000);
        let writer = spawn(async move {
            AsyncWriteExt::write_all(&mut client, &sent).await.unwrap();
            AsyncWriteExt::shutdown(&mut client).await.unwrap();
        });
        let mut received = Vec::new();
        AsyncReadExt::read_to_end(&mut server, &mut received).await.unwrap();
        assert!(received == data(100_000), "{} bytes came", received.len());
        writer.await.unwrap();
    });
}

#[test]
fn error_of_an_invalid_record_is_repeated_at_once() {
    run(async {
        let (one, other) = MemoryStream::pair(10_000);
        let (client, server) = over(one, other).await;
        let mut garbage = b"\x17\x03\x03\x00\x20".to_vec();
        garbage.extend([b'a'; 32]);
        client.get_ref().write_all(&garbage).await.unwrap();
        for _ in 0..3 {
            let error = server.read(&mut [0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        let reader = BufReader::new(&server);
        for _ in 0..3 {
            let read = timeout_after(ms(100), reader.next_line()).await;
            assert_eq!(read.unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
        }
    });
}
