//! Streams of pikake, and of tokio's current-thread runtime, on the same work over TCP on loopback.
//!
//! * `requests RUNTIME SIZE COUNT`: a server reads requests of 40 bytes into a buffer of `SIZE`
//!   bytes by the traits of `tokio::io`, and answers with 40 bytes. One client.
//! * `frames RUNTIME SIZE COUNT`: one task sends frames of `SIZE` bytes with a length in front, the
//!   other one reads them by `FramedReader`, or by tokio-util's `FramedRead`.
//! * `lines RUNTIME CLIENTS COUNT`: a server of lines, with a timeout around each line, a `select!`
//!   of the line and of a channel, and a task that the lines go through.
//!
//! Each prints the nanoseconds of the processor for one of the `COUNT` requests, frames or lines.

use std::future::Future;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

mod lines;

const MESSAGE: [u8; 40] = *b"a request or an answer of forty bytes...";

/// A stream of either runtime.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Reads requests into a buffer of `size` bytes, and answers each.
async fn answer(mut stream: impl Stream, size: usize) {
    let mut buffer = BytesMut::with_capacity(size);
    loop {
        let Ok(1..) = stream.read_buf(&mut buffer).await else { return };
        while buffer.len() >= MESSAGE.len() {
            stream.write_all(&MESSAGE).await.unwrap();
            let _ = buffer.split_to(MESSAGE.len());
        }
        buffer.reserve(size);
    }
}

async fn ask(mut stream: impl Stream, count: usize) {
    let mut answer = [0; MESSAGE.len()];
    for _ in 0..count {
        stream.write_all(&MESSAGE).await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
    }
}

/// Sends frames, all from the same memory.
async fn send_frames(mut stream: impl Stream, size: usize, count: usize) {
    let length = u32::try_from(size).unwrap().to_be_bytes();
    let frame = [&length[..], &vec![7; size]].concat();
    for _ in 0..count {
        stream.write_all(&frame).await.unwrap();
    }
}

async fn timed(count: usize, work: impl Future<Output = ()>) {
    let begin = processor_time();
    work.await;
    println!("{:.0}", (processor_time() - begin) / count as f64);
}

/// The time that this thread has run, also in the system, in nanoseconds.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|time| time.parse().ok()).expect("a number")
}

async fn pikake_pair() -> (pikake::net::TcpStream, pikake::net::TcpStream) {
    let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = pikake::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (client, server)
}

async fn tokio_pair() -> (tokio::net::TcpStream, tokio::net::TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (client, server)
}

async fn on_pikake(work: &str, size: usize, count: usize) {
    match work {
        "requests" => {
            let (client, server) = pikake_pair().await;
            pikake::spawn(answer(server, size)).detach();
            timed(count, ask(client, count)).await;
        }
        "frames" => {
            let (client, server) = pikake_pair().await;
            pikake::spawn(send_frames(client, size, count)).detach();
            let codec = pikake::net::LengthDelimited::new(4).limit(size);
            let mut reader = pikake::net::FramedReader::new(server, codec);
            timed(count, async {
                for _ in 0..count {
                    assert_eq!(reader.next().await.unwrap().unwrap().len(), size);
                }
            })
            .await;
        }
        "lines" => timed(count, lines::on_pikake(size, count)).await,
        _ => panic!("there is no such work"),
    }
}

async fn on_tokio(work: &str, size: usize, count: usize) {
    match work {
        "requests" => {
            let (client, server) = tokio_pair().await;
            tokio::task::spawn_local(answer(server, size));
            timed(count, ask(client, count)).await;
        }
        "frames" => {
            let (client, server) = tokio_pair().await;
            tokio::task::spawn_local(send_frames(client, size, count));
            let codec = tokio_util::codec::LengthDelimitedCodec::new();
            let mut reader = tokio_util::codec::FramedRead::new(server, codec);
            timed(count, async {
                for _ in 0..count {
                    assert_eq!(reader.next().await.unwrap().unwrap().len(), size);
                }
            })
            .await;
        }
        "lines" => timed(count, lines::on_tokio(size, count)).await,
        _ => panic!("there is no such work"),
    }
}

/// The longest time of a client's line.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [work, runtime, size, count] = &arguments[..] else {
        panic!("usage: pikake-stream-bench requests|frames|lines pikake|tokio SIZE COUNT")
    };
    let (size, count) = (size.parse().expect("a number"), count.parse().expect("a number"));
    match &**runtime {
        "pikake" => pikake::run(on_pikake(work, size, count)),
        "tokio" => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, on_tokio(work, size, count));
        }
        _ => panic!("there is no such runtime"),
    }
}
