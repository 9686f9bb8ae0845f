//! When packets leave: in the step of the caller, together with others, or by the task that writes.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use pikake::net::{TcpListener, UnixStream};
use pikake::random::range;
use pikake::rpc::packets::PacketError;
use pikake::rpc::{CallFailure, Client, Executed, Server};
use pikake::sim::{Network, Runs};
use pikake::testing::Injector;
use pikake::{sleep, spawn, timeout_after, yield_now};

use crate::harness::{MS, is_pending, method};
use crate::raw::{frame, hello, number};
use crate::shop::{Keeper, ShopClient, ShopServer};

type Fault = Box<dyn std::error::Error>;

const REQUEST: u8 = 0;
const ANSWER: u8 = 1;
const CANCEL: u8 = 2;

/// The hello of a server that takes 100 calls, and of a client that writes with postcard. Both wait
/// for an hour, so no heartbeat is among the packets.
fn server_hello() -> Vec<u8> {
    hello(1 << 20, 3_600_000, &[100, 16])
}

fn client_hello() -> Vec<u8> {
    hello(1 << 20, 3_600_000, &[0, 16])
}

/// A request of `add`.
fn add(id: u64, left: u64, right: u64) -> Vec<u8> {
    let arguments = [number(left), number(right)].concat();
    frame(REQUEST, 0, id, &[method("add").unwrap().as_slice(), &arguments].concat())
}

/// A stream, and its other end, which asks the system at each read and write.
fn pair() -> (UnixStream, unix::net::UnixStream) {
    let (here, there) = unix::net::UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    (UnixStream::from_std(here).unwrap(), there)
}

/// What a stream has, by one read.
fn arrived(mut stream: &unix::net::UnixStream) -> Vec<u8> {
    let mut buffer = [0; 10_000];
    let count = stream.read(&mut buffer).unwrap_or(0);
    buffer[..count].to_vec()
}

/// A client with one connection, and the server's end of it, after one call.
async fn connected() -> (ShopClient, unix::net::UnixStream) {
    let (here, mut there) = pair();
    let stream = RefCell::new(Some(here));
    let connect = move || {
        let stream = stream.take();
        async { stream.ok_or(std::io::ErrorKind::ConnectionRefused.into()) }
    };
    let builder = Client::builder().attempts(1).server("pair", connect);
    let shop = ShopClient::new(builder.build());
    there.write_all(&server_hello()).unwrap();
    let first = spawn(shop.add(1, 2));
    let mut seen = Vec::new();
    while !seen.ends_with(&add(1, 1, 2)) {
        yield_now().await.unwrap();
        seen.extend(arrived(&there));
    }
    there.write_all(&frame(ANSWER, 0, 1, &number(3))).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), 3);
    (shop, there)
}

#[pikake::test]
async fn the_only_request_leaves_in_its_callers_step() {
    let (shop, mut there) = connected().await;
    let mut call = pin!(shop.add(3, 4));
    assert!(is_pending(call.as_mut()).await);
    assert_eq!(arrived(&there), add(2, 3, 4));
    there.write_all(&frame(ANSWER, 0, 2, &number(7))).unwrap();
    assert_eq!(call.await.unwrap(), 7);
}

#[pikake::test]
async fn requests_of_a_turn_leave_together() {
    let (shop, there) = connected().await;
    let mut calls: Vec<_> = (0..4).map(|left| Box::pin(shop.add(left, 0))).collect();
    for call in &mut calls {
        assert!(is_pending(call.as_mut()).await);
    }
    // The first caller was alone.
    assert_eq!(arrived(&there), add(2, 0, 0));
    yield_now().await.unwrap();
    assert_eq!(arrived(&there), [add(3, 1, 0), add(4, 2, 0), add(5, 3, 0)].concat());
}

/// The connection is lost, and its reader does not know that yet.
#[pikake::test]
async fn a_request_that_cannot_be_written_was_not_executed() {
    let (shop, there) = connected().await;
    drop(there);
    let error = shop.add(3, 4).await.unwrap_err();
    assert!(matches!(error.failure, CallFailure::Connection(PacketError::Io(_))), "{error:?}");
    assert_eq!(error.executed, Executed::No);
}

#[pikake::test]
async fn answers_to_one_read_leave_in_one_write() {
    let (there, mut here) = pair();
    let server = Server::new().add(ShopServer::new(Keeper::default()));
    let serving = spawn(server.serve_connection(there));
    here.write_all(&client_hello()).unwrap();
    while arrived(&here).is_empty() {
        yield_now().await.unwrap();
    }
    let requests: Vec<_> = (1..=5).flat_map(|id| add(id, id, id)).collect();
    here.write_all(&requests).unwrap();
    let answers = loop {
        yield_now().await.unwrap();
        let answers = arrived(&here);
        if !answers.is_empty() {
            break answers;
        }
    };
    let expected: Vec<_> = (1..=5).flat_map(|id| frame(ANSWER, 0, id, &number(2 * id))).collect();
    assert_eq!(answers, expected);
    drop(here);
    assert!(serving.await.unwrap().is_err());
}

/// The socket has room again, and the task that writes the rest of a packet has not run since.
#[pikake::test]
async fn a_request_stays_behind_the_rest_of_another() {
    let (shop, there) = connected().await;
    let argument = [number(350_000), vec![7; 350_000]].concat();
    let body = [method("length").unwrap().as_slice(), &argument].concat();
    for round in 0..12 {
        let id = 2 + 2 * round;
        let mut first = Box::pin(shop.length(vec![7; 350_000]));
        assert!(is_pending(first.as_mut()).await);
        drop(first);
        yield_now().await.unwrap();
        let mut seen = Vec::new();
        while let part @ [_, ..] = &*arrived(&there) {
            seen.extend(part);
        }
        for _ in 0..round / 3 {
            yield_now().await.unwrap();
        }
        let mut second = Box::pin(shop.add(1, round));
        assert!(is_pending(second.as_mut()).await);
        drop(second);
        let mut expected = [frame(REQUEST, 0, id, &body), frame(CANCEL, 0, id, b"")].concat();
        expected.extend([add(id + 1, 1, round), frame(CANCEL, 0, id + 1, b"")].concat());
        for _ in 0..1_000 {
            yield_now().await.unwrap();
            seen.extend(arrived(&there));
        }
        let differs = seen.iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!((differs, seen.len()), (None, expected.len()), "in round {round}");
    }
}

/// A network whose sockets take few bytes at a time.
fn cramped(buffer: usize) -> Network {
    let mut network = Network::default();
    (network.stream_buffer, network.short) = (buffer, 0.5);
    network
}

/// The socket takes a part of the request, and the caller gives up: the rest leaves all the same,
/// once, and before the cancel.
#[test]
fn a_request_that_was_cut_arrives_whole() {
    let runs = Runs::new("writes::a_request_that_was_cut_arrives_whole").seeds(20);
    runs.run(|sim| {
        sim.network(cramped(60));
        sim.host("server", || async {
            let listener = TcpListener::bind("0.0.0.0:7000").await?;
            let (stream, _) = listener.accept().await?;
            stream.write_all(&server_hello()).await?;
            let mut bytes = vec![0; hello(1 << 20, 30_000, &[0, 16]).len()];
            stream.read_exact(&mut bytes).await?;
            let mut bytes = vec![0; add(1, 1, 2).len()];
            stream.read_exact(&mut bytes).await?;
            stream.write_all(&frame(ANSWER, 0, 1, &number(3))).await?;
            for index in 0..10_u64 {
                let argument = [number(400), vec![index as u8; 400]].concat();
                let body = [method("length").unwrap().as_slice(), &argument].concat();
                let request = frame(REQUEST, 0, 2 + index, &body);
                let expected = [request, frame(CANCEL, 0, 2 + index, b"")].concat();
                let mut bytes = vec![0; expected.len()];
                stream.read_exact(&mut bytes).await?;
                assert_eq!(bytes, expected);
                // The place of the call is free after its answer.
                stream.write_all(&frame(ANSWER, 0, 2 + index, &number(400))).await?;
            }
            sleep(Duration::from_secs(100)).await?;
            Ok::<_, Fault>(())
        });
        sim.client("client", || async {
            let client = Client::builder().tcp("server:7000").build();
            let shop = ShopClient::new(client);
            assert_eq!(shop.add(1, 2).await.unwrap(), 3);
            for index in 0..10 {
                let mut call = Box::pin(shop.length(vec![index; 400]));
                assert!(is_pending(call.as_mut()).await);
                sleep(range(0..10) as u32 * MS).await?;
                drop(call);
            }
            sleep(Duration::from_secs(5)).await?;
            Ok::<_, Fault>(())
        });
    });
}

/// Calls one at a time, calls in bursts, notices and callers that give up, through sockets that
/// take a part of most packets. Notices arrive once, and each call has its answer.
#[test]
fn packets_cross_small_buffers() {
    let runs = Runs::new("writes::packets_cross_small_buffers").seeds(30);
    runs.run(|sim| {
        let buffer = sim.rng("buffer").range(30..500) as usize;
        sim.network(cramped(buffer));
        let keeper = Keeper::default();
        let of_server = keeper.clone();
        sim.host("server", move || {
            let keeper = of_server.clone();
            async move {
                let listener = TcpListener::bind("0.0.0.0:7000").await?;
                let server = Server::new().add(ShopServer::new(keeper));
                server.serve(listener).await?;
                Ok::<_, Fault>(())
            }
        });
        sim.client("client", move || {
            let keeper = keeper.clone();
            async move {
                let shop = ShopClient::new(Client::builder().tcp("server:7000").build());
                let size = || vec![7; range(0..600) as usize];
                let mut notes = Vec::new();
                for round in 0..30 {
                    match range(0..4) {
                        0 => {
                            let calls = (0..range(2..6)).map(|_| {
                                let bytes = size();
                                let length = bytes.len();
                                let call = spawn(shop.length(bytes));
                                async move { assert_eq!(call.await.unwrap().unwrap(), length) }
                            });
                            for call in calls.collect::<Vec<_>>() {
                                call.await;
                            }
                        }
                        1 => {
                            let text = format!("{round} {}", "x".repeat(range(0..300) as usize));
                            notes.push(text.clone());
                            shop.note(text).await?;
                        }
                        2 => {
                            let patience = range(0..20) as u32 * MS;
                            let _ = timeout_after(patience, shop.length(size())).await;
                        }
                        _ => {
                            let bytes = size();
                            let length = bytes.len();
                            assert_eq!(shop.length(bytes).await?, length);
                        }
                    }
                }
                // Behind all notices, whose handlers may run in another order.
                shop.add(1, 1).await?;
                sleep(MS).await?;
                let mut noted = keeper.0.notes.take();
                noted.sort();
                notes.sort();
                assert_eq!(noted, notes);
                Ok::<_, Fault>(())
            }
        });
        sim.time_limit(Duration::from_secs(600));
    });
}

/// Wherever the caller is interrupted, its next call goes on over the same connection.
#[test]
fn interruptions_cut_no_packet() {
    let answered = Rc::new(RefCell::new(Vec::new()));
    let seen = answered.clone();
    let report = Injector::new().patience(20 * MS).run(
        || async {
            let keeper = Keeper::default();
            let (here, there) = UnixStream::pair().unwrap();
            let server = Server::new().add(ShopServer::new(keeper.clone()));
            let serving = spawn(server.serve_connection(there));
            let stream = Rc::new(RefCell::new(Some(here)));
            let connect = move || {
                let stream = stream.take();
                async { stream.ok_or(std::io::ErrorKind::ConnectionRefused.into()) }
            };
            let shop =
                ShopClient::new(Client::builder().attempts(1).server("pair", connect).build());
            // Larger than the buffers of the socket.
            let bytes = vec![7; 900_000];
            let mut lengths = Vec::new();
            for _ in 0..3 {
                lengths.push(shop.length(bytes.clone()).await.map_err(|error| error.failure));
            }
            drop(shop);
            let served = pikake::shield(serving).await;
            (lengths, format!("{:?}", served.unwrap()))
        },
        move |run| {
            let Some((lengths, served)) = run.output.as_ref() else { return };
            assert_eq!(served, "Ok(())");
            for length in lengths {
                match length {
                    Ok(length) => assert_eq!(*length, 900_000),
                    Err(failure) => {
                        assert!(matches!(failure, CallFailure::Interrupted(_)), "{failure:?}");
                    }
                }
            }
            seen.borrow_mut().push(lengths.iter().filter(|length| length.is_ok()).count());
        },
    );
    assert!(report.suspensions > 3, "{report:?}");
    assert!(answered.borrow().iter().all(|count| *count >= 2), "{:?}", answered.borrow());
}
