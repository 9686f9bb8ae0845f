//! Reads and writes of streams.

use std::io::{IoSlice, IoSliceMut};
use std::net::Ipv4Addr;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::net::{TcpStream, UnixStream, Write};
use pikake::testing::Injector;
use pikake::time::deadline_after;
use pikake::{Task, spawn};
use pikake_read_at_least::read_at_least;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use crate::support::insist::{SOCKETS, a_moment, insist_on_sockets, ms};

/// As small as the system allows, so that little data needs many waits.
const SMALL_BUFFER: usize = 4096;

/// Several times what fits into small buffers.
const MUCH: usize = 100_000;

/// A connection over TCP with as little room as possible.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Before the connection is made, which settles how much may be on its way.
    set_socket_recv_buffer_size(&listener, SMALL_BUFFER).unwrap();
    let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    set_socket_send_buffer_size(&one, SMALL_BUFFER).unwrap();
    (TcpStream::from_std(one).unwrap(), TcpStream::from_std(other).unwrap())
}

fn unix_pair() -> (UnixStream, UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    set_socket_send_buffer_size(&one, SMALL_BUFFER).unwrap();
    (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap())
}

/// Data in which a byte that is lost or doubled shows.
fn much() -> Vec<u8> {
    (0..MUCH).map(|number| (number % 251) as u8).collect()
}

/// Writes a few words by pieces, with time in between.
async fn write_pieces(there: impl Write) {
    for part in ["he", "l", "lo, ", "re", "ad", "er"] {
        a_moment().await;
        there.write_all(part.as_bytes()).await.unwrap();
    }
    a_moment().await;
}

/// The operations that read, on each type that has them.
macro_rules! reads {
    ($($test:ident: $pair:expr;)*) => {$(
        #[test]
        fn $test() {
            insist_on_sockets("hello, reader".to_owned(), async |insistent| {
                let (there, here) = $pair;
                spawn(write_pieces(there)).detach();
                let mut text = Vec::new();
                let mut buffer = [0; 2];
                // Three times, to see that nothing is taken; the last for `read` to take it.
                insistent.on(async || here.readable().await).await;
                insistent.on(async || here.peek(&mut buffer).await).await;
                let length = insistent.on(async || here.read(&mut buffer).await).await;
                text.extend(&buffer[..length]);
                let (mut one, mut two) = ([0; 1], [0; 1]);
                let length = insistent
                    .on(async || {
                        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                        here.read_vectored(&mut parts).await
                    })
                    .await;
                text.extend([one, two].concat().iter().take(length));
                let mut exact = [0; 6];
                let mut read = 0;
                while read < exact.len() {
                    match here.read_exact(&mut exact[read..]).await {
                        Ok(()) => break,
                        Err(error) => {
                            read += error.read;
                            insistent.note(&error.source);
                        }
                    }
                }
                text.extend(exact);
                loop {
                    match here.try_read(&mut buffer) {
                        Ok(0) => break,
                        Ok(length) => text.extend(&buffer[..length]),
                        Err(_) => insistent.on(async || here.readable().await).await,
                    }
                }
                String::from_utf8(text).unwrap()
            });
        }
    )*};
}

reads! {
    reading_from_tcp: tcp_pair();
    reading_from_unix: unix_pair();
    reading_from_a_half: {
        let (one, other) = unix_pair();
        (one, other.into_split().0)
    };
}

/// A wait for a stream or a moment, by a trap of another crate, on each type that has it.
macro_rules! reads_at_least {
    ($($test:ident: $pair:expr;)*) => {$(
        #[test]
        fn $test() {
            insist_on_sockets("hello, reader".to_owned(), async |insistent| {
                let (there, here) = $pair;
                spawn(write_pieces(there)).detach();
                let (mut text, mut buffer) = (Vec::new(), [0; 16]);
                loop {
                    // One or two pieces come before the moment, and more are asked for.
                    let moment = deadline_after(ms(2));
                    match read_at_least(&here, &mut buffer, 7, moment).await {
                        Ok(0) if text.len() == 13 => return String::from_utf8(text).unwrap(),
                        Ok(length) => text.extend(&buffer[..length]),
                        Err(error) => {
                            text.extend(&buffer[..error.read]);
                            insistent.note(&error.source);
                        }
                    }
                }
            });
        }
    )*};
}

reads_at_least! {
    reading_at_least_from_tcp: tcp_pair();
    reading_at_least_from_unix: unix_pair();
}

#[test]
fn interrupted_reads_of_a_combinator_lose_no_bytes() {
    let program = || async {
        let mut reads: FuturesUnordered<_> = [ms(2), ms(20)]
            .into_iter()
            .map(|limit| async move {
                let (there, here) = unix_pair();
                spawn(write_pieces(there)).detach();
                let (mut text, mut buffer, mut told) = (Vec::new(), [0; 16], 0);
                while text.len() < 13 {
                    let min = 13 - text.len();
                    match read_at_least(&here, &mut buffer, min, deadline_after(limit)).await {
                        Ok(length) => text.extend(&buffer[..length]),
                        Err(error) => {
                            text.extend(&buffer[..error.read]);
                            told += 1;
                        }
                    }
                }
                (String::from_utf8(text).unwrap(), told)
            })
            .collect();
        let (mut texts, mut told) = (Vec::new(), 0);
        while let Some((text, count)) = reads.next().await {
            texts.push(text);
            told += count;
        }
        (texts, told)
    };
    let report = Injector::new().cleanup_limit(None).patience(SOCKETS).run(program, |run| {
        let (texts, told) = run.output.as_ref().expect("it waits on traps");
        assert_eq!(*texts, ["hello, reader", "hello, reader"]);
        assert!(*told <= 2 && (*told == 0 || run.interruption.is_some()), "told {told} times");
    });
    assert!(report.suspensions > 2 && report.cancels > 2, "{report:?}");
}

/// The operations that write, on each type that has them.
macro_rules! writes {
    ($($test:ident: $pair:expr;)*) => {$(
        #[test]
        fn $test() {
            insist_on_sockets(true, async |insistent| {
                let (here, there) = $pair;
                let mut reader: Task<Vec<u8>> = spawn(async move {
                    let mut all = Vec::new();
                    let mut buffer = [0; SMALL_BUFFER];
                    loop {
                        a_moment().await;
                        match there.read(&mut buffer).await.unwrap() {
                            0 => return all,
                            length => all.extend(&buffer[..length]),
                        }
                    }
                });
                let data = much();
                let mut rest = &data[..];
                for round in 0.. {
                    if rest.len() < MUCH / 2 {
                        break;
                    }
                    let (one, two) = rest.split_at(100);
                    let parts = [IoSlice::new(one), IoSlice::new(two)];
                    let written = match round % 3 {
                        0 => insistent.on(async || here.write(rest).await).await,
                        1 => insistent.on(async || here.write_vectored(&parts).await).await,
                        _ => {
                            insistent.on(async || here.writable().await).await;
                            here.try_write(rest).unwrap_or(0)
                        }
                    };
                    rest = &rest[written..];
                }
                while let Err(error) = here.write_all(rest).await {
                    insistent.note(&error.source);
                    rest = &rest[error.written..];
                }
                drop(here);
                insistent.on(async || (&mut reader).await).await == data
            });
        }
    )*};
}

writes! {
    writing_to_tcp: tcp_pair();
    writing_to_unix: unix_pair();
    writing_to_a_half: {
        let (one, other) = unix_pair();
        (one.into_split().1, other)
    };
}
