//! Handshakes beside an accept loop: silent clients, limits, and the end of a server.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use futures::future::join;
use pikake::net::tls::{HANDSHAKE_GRACE, HANDSHAKES, TlsAcceptor, TlsListener, TlsStream};
use pikake::net::{
    Closing, Ended, Listener, MemoryStream, Patience, Read, TcpListener, TcpStream, interruption,
    serve, serve_until,
};
use pikake::sim::Runs;
use pikake::testing::Injector;
use pikake::time::{elapsed_since, now};
use pikake::{Task, shield, sleep, spawn, timeout_after};

use super::certificates::{Authority, SERVER};
use crate::graceful::Door;
use crate::support::{Log, ms, run};

/// How long the servers here wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(5);

fn acceptor(authority: &Authority) -> TlsAcceptor {
    let builder = TlsAcceptor::builder(authority.server.identity()).alpn(["h2", "http/1.1"]);
    builder.handshake_timeout(PATIENCE).build().unwrap()
}

fn listener(authority: &Authority, door: &Door) -> TlsListener<Door> {
    acceptor(authority).listen(door.clone())
}

/// Sends a greeting to each client, and ends the connection.
async fn greet<S: Read + pikake::net::Write>(stream: TlsStream<S>) {
    let greeting = async {
        stream.write_all(b"hello").await?;
        stream.finish().await
    };
    if let Err(error) = greeting.await {
        assert!(interruption(&error).is_some(), "{error}");
    }
}

/// A client that begins its handshake after a delay, and returns how long the greeting took.
fn client(
    authority: &Authority,
    stream: MemoryStream,
    delay: Duration,
) -> Task<io::Result<Duration>> {
    let connector = authority.connector();
    let since = now();
    spawn(async move {
        sleep(delay).await?;
        let stream = connector.connect(SERVER, stream).await?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await?;
        Ok(elapsed_since(since))
    })
}

#[test]
fn silent_clients_delay_no_other() {
    Runs::new("a thousand silent clients").seeds(3).run(|sim| {
        let authority = Rc::new(Authority::new());
        let there = authority.clone();
        sim.host("server", move || {
            let acceptor = acceptor(&there);
            async move {
                let listener = acceptor.listen(TcpListener::bind("0.0.0.0:443").await?);
                let handler = async |stream: TlsStream<TcpStream>, _| {
                    assert!(stream.get_ref().nodelay().unwrap(), "small writes wait");
                    greet(stream).await;
                };
                serve(listener, 10, handler).await.map(drop)
            }
        });
        sim.client("client", move || {
            let authority = authority.clone();
            async move {
                sleep(ms(10)).await.unwrap();
                let mut silent = Vec::new();
                for _ in 0..1000 {
                    silent.push(TcpStream::connect("server:443").await.unwrap());
                }
                let since = now();
                let stream = TcpStream::connect("server:443").await.unwrap();
                let stream = authority.connector().connect(SERVER, stream).await.unwrap();
                stream.read_exact(&mut [0; 5]).await.unwrap();
                assert!(elapsed_since(since) < ms(500), "{:?}", elapsed_since(since));
                // The server closes the connections of the others at their deadline.
                for stream in silent {
                    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
                }
                assert!(elapsed_since(since) < PATIENCE + ms(500));
            }
        });
    });
}

/// Connections are accepted when their handshakes are complete, not in the order of their arrival.
#[test]
fn completed_handshakes_are_accepted_first() {
    run(async {
        let (authority, door, log) = (Authority::new(), Door::default(), Log::default());
        let noted = log.clone();
        let server = spawn(serve(listener(&authority, &door), 10, move |stream, number| {
            let protocol = TlsStream::<MemoryStream>::alpn_protocol(&stream);
            noted.add(format!("{number} {protocol:?}"));
            greet(stream)
        }));
        let slow = client(&authority, door.connect(1), ms(200));
        let slower = client(&authority, door.connect(2), ms(300));
        let quick = client(&authority, door.connect(3), ms(0));
        for (client, took) in [(slow, 200), (slower, 300), (quick, 0)] {
            assert_eq!(client.await.unwrap().unwrap(), ms(took));
        }
        assert_eq!(log.take(), ["3 None", "1 None", "2 None"]);
        server.cancel().await.unwrap();
    });
}

#[test]
fn alpn_is_known_when_accepted() {
    run(async {
        let (authority, door) = (Authority::new(), Door::default());
        let listener = listener(&authority, &door);
        let connector = pikake::net::tls::TlsConnector::builder()
            .roots_pem(authority.root.as_bytes())
            .unwrap()
            .alpn(["h2"])
            .build()
            .unwrap();
        let stream = door.connect(7);
        let client = async {
            let stream = connector.connect(SERVER, stream).await?;
            stream.read(&mut [0; 8]).await
        };
        let server = async {
            let (stream, number) = listener.accept().await.unwrap();
            assert_eq!((stream.alpn_protocol().as_deref(), number), (Some(&b"h2"[..]), 7));
            greet(stream).await;
        };
        assert_eq!(join(client, server).await.0.unwrap(), 5);
    });
}

/// A failed handshake closes its connection and stops nothing.
#[test]
fn failed_handshakes_cost_nothing_else() {
    run(async {
        let (authority, door) = (Authority::new(), Door::default());
        let handler = |stream, _| greet(stream);
        let server = spawn(serve(listener(&authority, &door), 10, handler));
        let gone = door.connect(1);
        drop(gone);
        let wrong = door.connect(2);
        pikake::net::Write::write_all(&wrong, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let stranger = client(&Authority::new(), door.connect(3), ms(0));
        let silent = door.connect(4);
        let since = now();
        assert!(client(&authority, door.connect(5), ms(1)).await.unwrap().is_ok());
        assert_eq!(stranger.await.unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
        let mut answer = [0; 100];
        while let Ok(1..) = wrong.read(&mut answer).await {}
        // The timeout of a silent client closes its connection.
        assert_eq!(silent.read(&mut answer).await.unwrap(), 0);
        assert_eq!(elapsed_since(since), PATIENCE);
        assert!(client(&authority, door.connect(6), ms(1)).await.unwrap().is_ok());
        server.cancel().await.unwrap();
    });
}

/// Beyond the bound, clients wait in the backlog until a handshake ends.
#[test]
fn handshakes_are_bounded() {
    run(async {
        let (authority, door) = (Authority::new(), Door::default());
        let handler = |stream, _| greet(stream);
        let server = spawn(serve(listener(&authority, &door), 10, handler));
        let mut silent: Vec<_> = (0..HANDSHAKES as u32).map(|n| door.connect(n)).collect();
        sleep(ms(1000)).await.unwrap();
        assert!(door.is_empty());
        let waiting = client(&authority, door.connect(7777), ms(0));
        let other = client(&authority, door.connect(8888), ms(0));
        sleep(ms(1000)).await.unwrap();
        assert!(!door.is_empty(), "the bound does not hold");
        // One of them gives up.
        drop(silent.pop());
        assert_eq!(waiting.await.unwrap().unwrap(), ms(1000));
        assert_eq!(other.await.unwrap().unwrap(), ms(1000));
        server.cancel().await.unwrap();
    });
}

/// A server at its limit takes no connections, so no handshakes begin.
#[test]
fn full_server_begins_no_handshakes() {
    run(async {
        let (authority, door) = (Authority::new(), Door::default());
        let handler = |stream: TlsStream<MemoryStream>, _| async move {
            let _ = sleep(ms(500)).await;
            greet(stream).await;
        };
        let server = spawn(serve(listener(&authority, &door), 1, handler));
        let first = client(&authority, door.connect(1), ms(0));
        sleep(ms(100)).await.unwrap();
        let second = client(&authority, door.connect(2), ms(0));
        sleep(ms(100)).await.unwrap();
        assert!(!door.is_empty());
        assert_eq!(first.await.unwrap().unwrap(), ms(500));
        assert_eq!(second.await.unwrap().unwrap(), ms(900));
        server.cancel().await.unwrap();
    });
}

/// A graceful end completes the handshakes under way and those of the backlog, but waits for silent
/// clients only for the grace.
#[test]
fn graceful_end_completes_handshakes() {
    run(async {
        let (authority, door, closing) = (Authority::new(), Door::default(), Closing::new());
        let handler = |stream, _| greet(stream);
        let listener = listener(&authority, &door);
        let server = serve_until(listener, 100, closing.clone(), Patience::default(), handler);
        let server = spawn(server);
        let slow = client(&authority, door.connect(1), ms(300));
        let silent = door.connect(2);
        sleep(ms(100)).await.unwrap();
        let backlog = client(&authority, door.connect(3), ms(0));
        let since = now();
        closing.begin();
        sleep(ms(10)).await.unwrap();
        let late = client(&authority, door.connect(4), ms(0));
        assert_eq!(slow.await.unwrap().unwrap(), ms(300));
        assert_eq!(backlog.await.unwrap().unwrap(), ms(0));
        let farewell = server.await.unwrap().unwrap();
        assert!(matches!(farewell.why, Ended::Asked) && farewell.is_clean(), "{farewell:?}");
        assert_eq!((farewell.handled, elapsed_since(since)), (2, HANDSHAKE_GRACE));
        assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
        // A client that came later stays in the backlog.
        assert!(!door.is_empty());
        late.abort();
    });
}

#[test]
fn idle_server_ends_at_once() {
    run(async {
        let (authority, door, closing) = (Authority::new(), Door::default(), Closing::new());
        let handler = |stream, _| greet(stream);
        let listener = listener(&authority, &door);
        let server = serve_until(listener, 100, closing.clone(), Patience::default(), handler);
        let server = spawn(server);
        assert!(client(&authority, door.connect(1), ms(0)).await.unwrap().is_ok());
        sleep(ms(1)).await.unwrap();
        let since = now();
        closing.begin();
        assert_eq!(server.await.unwrap().unwrap().handled, 1);
        assert_eq!(elapsed_since(since), pikake::net::BACKLOG_WAIT);
    });
}

/// `run` checks that no task and no socket is left.
#[test]
fn interrupted_or_dropped_listener_cancels_handshakes() {
    run(async {
        let (authority, door) = (Authority::new(), Door::default());
        let since = now();
        let handler = |stream, _| greet(stream);
        let server = spawn(serve(listener(&authority, &door), 10, handler));
        let silent = door.connect(1);
        sleep(ms(1)).await.unwrap();
        server.cancel().await.unwrap();
        assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);

        let listener = listener(&authority, &door);
        let (silent, good) = (door.connect(2), client(&authority, door.connect(3), ms(0)));
        assert!(timeout_after(ms(1), listener.accept()).await.unwrap().is_ok());
        // This call is interrupted and takes nothing. The handshakes go on.
        let late = client(&authority, door.connect(4), ms(100));
        assert!(timeout_after(ms(1), listener.accept()).await.is_err());
        sleep(ms(500)).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        assert_eq!(accepted.1, 4);
        drop((accepted, listener));
        assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
        assert!(good.await.unwrap().is_err() && late.await.unwrap().is_err());
        assert_eq!(elapsed_since(since), ms(502));
    });
}

#[test]
fn interrupted_calls_lose_no_connection() {
    let authority = Authority::new();
    let authority = &authority;
    let report = Injector::new().cleanup_limit(None).run(
        || async move {
            let door = Door::default();
            let listener = listener(authority, &door);
            let clients = [1, 2].map(|number| client(authority, door.connect(number), ms(0)));
            let (mut accepted, mut interruptions) = (Vec::new(), 0);
            while accepted.len() < 2 {
                match listener.accept().await {
                    Ok((stream, number)) => {
                        shield(greet(stream)).await;
                        accepted.push(number);
                    }
                    Err(error) => {
                        assert!(interruption(&error).is_some(), "{error}");
                        interruptions += 1;
                    }
                }
            }
            for client in clients {
                shield(client).await.unwrap().unwrap();
            }
            accepted.sort_unstable();
            (accepted, interruptions)
        },
        |run| {
            let (accepted, interruptions) = run.output.as_ref().unwrap();
            assert!(accepted == &[1, 2] && *interruptions <= 1, "{accepted:?}");
        },
    );
    assert!(report.suspensions > 2 && report.cancels > 4, "{report:?}");
}
