//! TLS handshakes, reads and writes, interrupted at every suspension.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use pikake::net::tls::TlsStream;
use pikake::net::{MemoryStream, WriteAllError, interruption};
use pikake::testing::{Injector, Run, interrupt_everywhere};
use pikake::{shield, spawn};

use super::certificates::{Authority, SERVER};

/// Less than a record, so that each is sent in many waits.
const ROOM: usize = 200;

/// More than a few of them.
const LENGTH: usize = 1500;

fn note<T>(run: &Run<T>, error: &io::Error) {
    let why = interruption(error).unwrap_or_else(|| panic!("no interruption: {error}"));
    let by = run.interruption.as_ref().expect("it was interrupted");
    assert_eq!(why.is_cancel(), by.kind.is_cancel());
}

/// A server that echoes until its client says goodbye, and how that ended.
fn echo(authority: &Authority, stream: MemoryStream) -> pikake::Task<io::Result<usize>> {
    let acceptor = authority.acceptor();
    spawn(async move {
        let stream = acceptor.accept(stream).await?;
        let (mut buffer, mut echoed) = ([0; 300], 0);
        loop {
            match stream.read(&mut buffer).await? {
                0 => break,
                length => stream.write_all(&buffer[..length]).await?,
            }
            echoed += 1;
        }
        stream.finish().await?;
        Ok(echoed)
    })
}

#[test]
fn handshakes() {
    let authority = Authority::new();
    let (authority, shaken) = (&authority, Cell::new(0));
    let report = interrupt_everywhere(
        || async {
            let (client, server) = MemoryStream::pair(ROOM);
            let server = echo(authority, server);
            let connected = authority.connector().connect(SERVER, client).await;
            let connected = connected.map(drop);
            // It is told that its client is gone, and waits for nothing.
            let served = shield(server).await.unwrap();
            (connected, served.is_err())
        },
        |run| {
            let (connected, is_told) = run.output.as_ref().unwrap();
            assert!(is_told, "a client that is dropped has not said goodbye");
            match connected {
                Ok(()) => shaken.set(shaken.get() + 1),
                Err(error) => note(run, error),
            }
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 10, "{report:?}");
    assert!(shaken.get() >= 1);
}

#[test]
fn accepting() {
    let authority = Authority::new();
    let authority = &authority;
    let report = interrupt_everywhere(
        || async {
            let (client, server) = MemoryStream::pair(ROOM);
            let connector = authority.connector();
            let client =
                spawn(
                    async move { connector.connect(SERVER, client).await?.read(&mut [0; 8]).await },
                );
            let accepted = authority.acceptor().accept(server).await.map(drop);
            drop(shield(client).await.unwrap());
            accepted
        },
        |run| {
            if let Err(error) = run.output.as_ref().unwrap() {
                note(run, error);
            }
        },
    );
    assert!(report.suspensions > 5 && report.cancels > 10, "{report:?}");
}

/// Does something until it is done.
async fn insist<T>(told: &Cell<usize>, mut attempt: impl AsyncFnMut() -> io::Result<T>) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) if interruption(&error).is_some() => told.set(told.get() + 1),
            Err(error) => panic!("{error}"),
        }
    }
}

async fn send(stream: &TlsStream<MemoryStream>, data: &[u8], told: &Cell<usize>) {
    let mut rest = data;
    while !rest.is_empty() {
        match stream.write(rest).await {
            Ok(length) => rest = &rest[length..],
            Err(error) => {
                assert!(interruption(&error).is_some(), "{error}");
                told.set(told.get() + 1);
                rest = &rest[WriteAllError::written_in(&error)..];
            }
        }
    }
}

#[test]
fn data_are_neither_lost_nor_doubled() {
    let authority = Authority::new();
    let authority = &authority;
    let data: Vec<u8> = (0..LENGTH).map(|number| (number % 251) as u8).collect();
    let data = &data;
    let report = Injector::new().cleanup_limit(None).run(
        || async move {
            let (client, server) = MemoryStream::pair(ROOM);
            let mut server = echo(authority, server);
            // The first wait after the shield returns the delayed cause.
            let stream = shield(authority.connector().connect(SERVER, client)).await.unwrap();
            let stream = Rc::new(stream);
            let reading = stream.clone();
            let reader = spawn(async move {
                let (mut all, mut buffer) = (Vec::<u8>::new(), [0; 333]);
                loop {
                    match reading.read(&mut buffer).await.unwrap() {
                        0 => return all,
                        length => all.extend(&buffer[..length]),
                    }
                }
            });
            let told = Cell::new(0);
            send(&stream, data, &told).await;
            insist(&told, async || stream.flush().await).await;
            insist(&told, async || stream.finish().await).await;
            drop(stream);
            let all = shield(reader).await.unwrap();
            insist(&told, async || {
                let outcome = (&mut server).await;
                match outcome {
                    Err(pikake::TaskError::Interrupted(why)) => Err(why.into()),
                    outcome => outcome.unwrap(),
                }
            })
            .await;
            (all == *data, told.get())
        },
        |run| {
            let (is_whole, told) = run.output.unwrap();
            assert!(is_whole && told <= 1, "told {told} times");
        },
    );
    assert!(report.suspensions > 10 && report.cancels > 20, "{report:?}");
}

#[test]
fn reading_takes_up_where_it_was() {
    let authority = Authority::new();
    let authority = &authority;
    let report = interrupt_everywhere(
        || async move {
            let (client, server) = MemoryStream::pair(ROOM);
            let acceptor = authority.acceptor();
            let server = spawn(async move {
                let stream = acceptor.accept(server).await.unwrap();
                stream.write_all(&[7; LENGTH]).await.unwrap();
                stream.finish().await.unwrap();
            });
            let stream = shield(authority.connector().connect(SERVER, client)).await.unwrap();
            let told = Cell::new(0);
            let (mut all, mut buffer) = (0, [0; 1000]);
            while all < LENGTH {
                match stream.read_exact(&mut buffer[..500]).await {
                    Ok(()) => all += 500,
                    Err(error) => {
                        assert!(interruption(&error.source).is_some(), "{error}");
                        told.set(told.get() + 1);
                        all += error.read;
                        let rest = 500 - error.read;
                        insist(&told, async || Ok(stream.read_exact(&mut buffer[..rest]).await?))
                            .await;
                        all += rest;
                    }
                }
            }
            assert_eq!(insist(&told, async || stream.read(&mut buffer).await).await, 0);
            shield(server).await.unwrap();
            told.get()
        },
        |run| assert!(run.output.unwrap() <= 1),
    );
    assert!(report.suspensions > 10 && report.cancels > 20, "{report:?}");
}
