//! HTTP/2, frame by frame.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use pikake::http::serve;
use pikake::net::{TcpListener, TcpStream};
use pikake::sync::Event;
use pikake::time::{elapsed_since, now};
use pikake::{sleep, spawn, timeout_after};

use crate::site::{PAGE, PATIENCE, SOON, Site, ms, rest, router};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a request: `:method GET` and `:scheme http` by their numbers, then path and
/// authority.
fn head(path: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x86, 0x04, path.len() as u8];
    head.extend(path.bytes());
    head.extend([0x01, 1, b'x']);
    head
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &head(path))
}

/// A client that has said how it begins, with these settings.
async fn client(site: &Site<'_>, settings: &[u8]) -> TcpStream {
    site.sends([PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await
}

#[test]
fn garbage_ends_the_connection() {
    Site::run(async |site| {
        let nonsense = [
            b"nonsense, and enough of it for a frame's head".to_vec(),
            frame(SETTINGS, 0, 0, b"short"),
            frame(HEADERS, END_HEADERS, 2, &head("/")),
            frame(HEADERS, END_HEADERS, 1, &[0xff; 100]),
            frame(CONTINUATION, 0, 1, b"x"),
            frame(PING, 0, 0, b"x"),
            // Longer than a frame may be.
            [&[0xff, 0xff, 0xff, 0, 0][..], &1_u32.to_be_bytes()].concat(),
        ];
        for nonsense in nonsense {
            let client = client(site, &[]).await;
            client.write_all(&nonsense).await.unwrap();
            site.is_serving().await;
            rest(&client).await;
        }
        // Not even the beginning.
        let client = site.sends([PREFACE, b"nonsense, and enough of it"].concat()).await;
        rest(&client).await;
    });
}

#[test]
fn endless_head_ends_the_connection() {
    Site::run(async |site| {
        let client = client(site, &[]).await;
        client.write_all(&frame(HEADERS, END_STREAM, 1, &head("/"))).await.unwrap();
        // A header of a name and a value of one letter each, not to be kept in a table.
        let piece = frame(CONTINUATION, 0, 1, &[0, 1, b'x', 1, b'y'].repeat(1000));
        let since = Instant::now();
        while client.write_all(&piece).await.is_ok() {
            assert!(since.elapsed() < SOON, "it takes whatever comes");
        }
    });
}

#[test]
fn idle_or_stalled_client_is_disconnected() {
    Site::run(async |site| {
        // Nothing after the beginning; nothing after an answer.
        let idle = [None, Some("/")].map(|path| async move {
            let client = client(site, &[]).await;
            if let Some(path) = path {
                client.write_all(&get(1, path)).await.unwrap();
            }
            let since = Instant::now();
            let answer = rest(&client).await;
            assert!(since.elapsed() >= PATIENCE);
            assert_eq!(answer.contains("hello"), path.is_some());
        });
        // A window of zero, so that not one byte of the answer may be sent; pings meanwhile.
        let stalled = client(site, &[0, 4, 0, 0, 0, 0]).await;
        stalled.write_all(&get(1, "/much")).await.unwrap();
        let since = Instant::now();
        let pinging = async {
            while stalled.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_ok() {
                assert!(since.elapsed() < SOON, "pings keep it for ever");
                sleep(ms(100)).await.unwrap();
            }
        };
        // A handler that runs keeps its connection.
        let waiting = async {
            let client = client(site, &[]).await;
            client.write_all(&get(1, "/slow")).await.unwrap();
            assert!(rest(&client).await.contains("slow"));
        };
        futures::join!(join_all(idle), pinging, waiting, site.is_serving());
        site.lets_go().await;
    });
}

#[test]
fn pinging_client_that_does_not_read_is_disconnected() {
    Site::run(async |site| {
        let client = client(site, &[]).await;
        let pings = frame(PING, 0, 0, &[0; 8]).repeat(1000);
        let since = Instant::now();
        while let Ok(Ok(())) = timeout_after(PATIENCE * 5, client.write_all(&pings)).await {
            assert!(since.elapsed() < SOON, "it takes whatever comes");
        }
        site.lets_go().await;
    });
}

#[test]
fn rapid_resets_start_limited_handlers() {
    Site::run(async |site| {
        let client = client(site, &[]).await;
        // So that the server sees each for itself.
        client.set_nodelay(true).unwrap();
        let reading = async {
            let mut buffer = [0; 4096];
            while let Ok(1..) = client.read(&mut buffer).await {}
        };
        let resetting = async {
            for round in 0..200 {
                let streams = (0..15).map(|number| 2 * (15 * round + number) + 1);
                let asked: Vec<u8> =
                    streams.clone().flat_map(|stream| get(stream, "/hang")).collect();
                let cancel = |stream| frame(RESET, 0, stream, &[0, 0, 0, 8]);
                let reset: Vec<u8> = streams.flat_map(cancel).collect();
                // The server takes the one for a proper request before it sees the other.
                for data in [asked, reset] {
                    if client.write_all(&data).await.is_err() {
                        return;
                    }
                    sleep(ms(2)).await.unwrap();
                }
                if round % 40 == 0 {
                    site.is_serving().await;
                }
            }
            drop(client.write_all(&frame(GOAWAY, 0, 0, &[0; 8])).await);
            drop(client.shutdown(std::net::Shutdown::Write));
        };
        timeout_after(SOON, async { futures::join!(reading, resetting) }).await.unwrap();
        site.handlers_run(0).await;
        let most = site.handlers.most.get();
        assert!((50..=200).contains(&most), "{most} at a time");
        // All of them were told, and had their time to clean up.
        assert_eq!(site.handlers.told.get(), site.handlers.begun.get());
    });
}

const SECOND: Duration = Duration::from_secs(1);
const HEADER_TIMEOUT: Duration = Duration::from_secs(8);
const STALL_TIMEOUT: Duration = Duration::from_secs(16);
/// How long an idle connection is open at most: half later than the limit, and as long for a client
/// that does not answer the end of the connection.
const IDLE: Duration = Duration::from_secs(16);
/// How long a stalled connection is open at most: half later than the limit.
const STALLED: Duration = Duration::from_secs(24);
const RESET_FRAME: [u8; 4] = [0, 0, 0, 8];
/// The setting of a stream's window, of no bytes.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// A server on virtual time with these many connections, and its end.
async fn virtual_server_until(
    connections: usize,
    stop: impl Future<Output = ()> + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, router(&Rc::default()))
        .connections(connections)
        .header_timeout(HEADER_TIMEOUT)
        .stall_timeout(STALL_TIMEOUT)
        .shutdown_when(stop);
    spawn(server.into_future()).detach();
    address
}

async fn virtual_server(connections: usize) -> SocketAddr {
    virtual_server_until(connections, std::future::pending()).await
}

async fn virtual_client(address: SocketAddr, settings: &[u8]) -> TcpStream {
    let client = TcpStream::connect(address).await.unwrap();
    let beginning = [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat();
    client.write_all(&beginning).await.unwrap();
    client
}

/// Sends frames by number, with pauses of this length, until the server closes the connection.
/// Returns how long that took.
async fn lasts(client: &TcpStream, pause: Duration, frames: impl Fn(u32) -> Vec<u8>) -> Duration {
    let since = now();
    let reading = async {
        let mut buffer = [0; 4096];
        while let Ok(1..) = client.read(&mut buffer).await {}
    };
    let sending = async {
        for number in 0.. {
            if client.write_all(&frames(number)).await.is_err() {
                break;
            }
            sleep(pause).await.unwrap();
        }
    };
    drop(
        timeout_after(20 * STALLED, futures::future::select(Box::pin(reading), Box::pin(sending)))
            .await,
    );
    elapsed_since(since)
}

/// Clients that only send pings leave their places to others.
#[pikake::sim(seeds = 3)]
async fn pings_do_not_keep_an_idle_connection() {
    let address = virtual_server(2).await;
    let ping = frame(PING, 0, 0, &[0; 8]).repeat(20);
    let pinging = async |beginning: Vec<u8>| {
        let client = virtual_client(address, &[]).await;
        client.write_all(&beginning).await.unwrap();
        lasts(&client, ms(500), |_| ping.clone()).await
    };
    let polite = async {
        sleep(SECOND).await.unwrap();
        let client = virtual_client(address, &[]).await;
        client.write_all(&get(1, "/")).await.unwrap();
        let since = now();
        while client.read(&mut [0; 100]).await.unwrap() > 0 {}
        elapsed_since(since)
    };
    let (silent, asked, served) = futures::join!(pinging(Vec::new()), pinging(get(1, "/")), polite);
    for took in [silent, asked] {
        assert!(took >= HEADER_TIMEOUT && took <= IDLE, "{took:?}");
    }
    assert!(served <= 2 * IDLE, "{served:?}");
}

/// Requests that are begun and reset add nothing to the client's time, whether their answers are
/// long or short, nor do short answers beside a stalled one.
#[pikake::sim(seeds = 3)]
async fn new_requests_do_not_extend_a_stalled_connection() {
    let address = virtual_server(10).await;
    let begin_and_reset = |number: u32, path| {
        let stream = 2 * number + 1;
        let reset = match stream {
            1 => Vec::new(),
            _ => frame(RESET, 0, stream - 2, &RESET_FRAME),
        };
        [reset, get(stream, path)].concat()
    };
    for path in ["/much", "/"] {
        let client = virtual_client(address, &NO_WINDOW).await;
        let took = lasts(&client, 3 * SECOND, |number| begin_and_reset(number, path)).await;
        assert!(took >= STALL_TIMEOUT && took <= STALLED + 3 * SECOND, "{path}: {took:?}");
    }
    // One byte of each stream's window.
    let client = virtual_client(address, &[0, 4, 0, 0, 0, 1]).await;
    let took = lasts(&client, 3 * SECOND, |number| begin_and_reset(number, "/much")).await;
    assert!(took >= STALL_TIMEOUT && took <= STALLED + 3 * SECOND, "{took:?}");
    // A stalled answer beside answers without a body.
    let client = virtual_client(address, &NO_WINDOW).await;
    client.write_all(&get(1, "/much")).await.unwrap();
    let took = lasts(&client, 3 * SECOND, |number| get(2 * number + 3, "/none")).await;
    assert!(took >= STALL_TIMEOUT && took <= STALLED, "{took:?}");
}

/// Clients that are slow, that ask now and then, or whose requests have no body are served for
/// ever.
#[pikake::sim(seeds = 3)]
async fn slow_or_occasional_client_keeps_its_connection() {
    let address = virtual_server(10).await;
    // A thousand bytes a second, for a minute.
    let slow = async {
        let client = virtual_client(address, &NO_WINDOW).await;
        client.write_all(&get(1, "/page")).await.unwrap();
        let more = |stream| frame(WINDOW_UPDATE, 0, stream, &1000_u32.to_be_bytes());
        let mut read = 0;
        let reading = async {
            let mut buffer = [0; 4096];
            while read < PAGE {
                match client.read(&mut buffer).await.unwrap() {
                    0 => break,
                    length => read += length,
                }
            }
        };
        let updating = async {
            loop {
                client.write_all(&[more(0), more(1)].concat()).await.unwrap();
                sleep(SECOND).await.unwrap();
            }
        };
        futures::future::select(Box::pin(reading), Box::pin(updating)).await;
        assert!(read >= PAGE, "{read}");
    };
    let occasional = async |path: &str, settings: &[u8]| {
        let client = virtual_client(address, settings).await;
        let mut buffer = [0; 4096];
        for number in 0..15 {
            client.write_all(&get(2 * number + 1, path)).await.unwrap();
            sleep(6 * SECOND).await.unwrap();
            let length = client.read(&mut buffer).await.unwrap();
            assert!(length > 0, "{path}: closed at request {number}");
        }
    };
    futures::join!(slow, occasional("/", &[]), occasional("/none", &NO_WINDOW));
}

/// The kind and the stream of each frame up to one of this kind.
async fn frames_until(client: &TcpStream, last: u8) -> Vec<(u8, u32)> {
    let mut frames = Vec::new();
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        client.read_exact(&mut vec![0; length as usize]).await.unwrap();
        frames.push((head[3], u32::from_be_bytes(head[5..].try_into().unwrap())));
        if head[3] == last {
            return frames;
        }
    }
}

/// A client that reads the end of the connection together with an answer may have prepared its next
/// request.
#[pikake::sim(seeds = 3)]
async fn shutdown_is_announced_before_the_next_answer() {
    let stop = Rc::<Event>::default();
    let stopping = stop.clone();
    let address = virtual_server_until(10, async move { drop(stopping.wait().await) }).await;
    let (asking, silent) = (virtual_client(address, &[]).await, virtual_client(address, &[]).await);
    for client in [&asking, &silent] {
        client.write_all(&get(1, "/")).await.unwrap();
        frames_until(client, DATA).await;
    }
    // The server has its settings acknowledged, and writes nothing more.
    sleep(ms(50)).await.unwrap();
    let waiting = virtual_client(address, &[]).await;
    waiting.write_all(&get(1, "/slow")).await.unwrap();
    sleep(ms(50)).await.unwrap();
    stop.set();
    let since = now();
    assert_eq!(frames_until(&waiting, GOAWAY).await.last(), Some(&(GOAWAY, 0)));
    asking.write_all(&get(3, "/")).await.unwrap();
    let frames = frames_until(&asking, DATA).await;
    assert_eq!(frames, [(GOAWAY, 0), (PING, 0), (HEADERS, 3), (DATA, 3)]);
    assert!(elapsed_since(since) < ms(50));
    // Without a request, a moment later.
    assert_eq!(frames_until(&silent, PING).await, [(GOAWAY, 0), (PING, 0)]);
    assert!(elapsed_since(since) >= ms(50) && elapsed_since(since) < SECOND);
}
