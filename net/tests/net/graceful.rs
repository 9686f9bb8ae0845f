//! Graceful shutdown of a server: handlers end in time, are interrupted, or are dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use pikake::net::{
    BACKLOG_WAIT, Closing, Ended, Farewell, Listener, ListenerFailed, MemoryStream, Patience, Read,
    TcpListener, TcpStream, Write, serve, serve_until,
};
use pikake::testing::interrupt_everywhere;
use pikake::time::{elapsed_since, now};
use pikake::traps::{Closed, WaitQueue, park};
use pikake::{Task, sleep, spawn, timed};

use crate::support::{OnDrop, ms, run};

/// Where clients of the tests come in, each with a number.
#[derive(Clone, Default)]
pub(crate) struct Door(Rc<Inside>);

#[derive(Default)]
pub(crate) struct Inside {
    clients: RefCell<VecDeque<(MemoryStream, u32)>>,
    came: WaitQueue,
    end: RefCell<Option<io::Error>>,
}

impl Door {
    pub(crate) fn connect(&self, number: u32) -> MemoryStream {
        let (client, server) = MemoryStream::pair(100);
        self.0.clients.borrow_mut().push_back((server, number));
        self.0.came.wake(1);
        client
    }

    /// Whether no client waits to be accepted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.clients.borrow().is_empty()
    }

    fn end(&self, error: impl Into<io::Error>) {
        self.0.end.replace(Some(error.into()));
        self.0.came.wake(1);
    }
}

impl Listener for Door {
    type Connection = MemoryStream;
    type Address = u32;

    async fn accept(&self) -> io::Result<(MemoryStream, u32)> {
        loop {
            if let Some(error) = self.0.end.take() {
                return Err(error);
            }
            let client = self.0.clients.borrow_mut().pop_front();
            if let Some(client) = client {
                return Ok(client);
            }
            park(&self.0.came).await?;
        }
    }
}

const PATIENCE: Patience = Patience { soft: ms_const(1000), hard: ms_const(100) };

const fn ms_const(length: u64) -> std::time::Duration {
    std::time::Duration::from_millis(length)
}

/// A handler that takes as many milliseconds as its connection's number. From 5000 on it needs 50
/// to clean up, and from 9000 on its cleanup never ends.
async fn handle(_stream: MemoryStream, number: u32) {
    if sleep(ms(number.into())).await.is_ok() {
        return;
    }
    if number >= 9000 {
        while sleep(ms(10)).await.is_ok() || number > 9000 {}
        let _ = sleep(ms_const(3_600_000)).await;
    } else {
        let _ = sleep(ms(50)).await;
    }
}

/// A server with handlers for these, after ten milliseconds.
async fn serving(
    door: &Door,
    closing: &Closing,
    numbers: &[u32],
) -> Task<Result<Farewell<u32>, ListenerFailed<u32>>> {
    let server = spawn(serve_until(door.clone(), 100, closing.clone(), PATIENCE, handle));
    for number in numbers {
        door.connect(*number);
    }
    sleep(ms(10)).await.unwrap();
    server
}

fn numbers(left: &[pikake::net::Left<u32>]) -> Vec<u32> {
    left.iter().map(|left| left.address).collect()
}

#[test]
fn handlers_that_end_in_time_are_not_interrupted() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[100, 500, 1]).await;
        let since = now();
        closing.begin();
        let farewell = server.await.unwrap().unwrap();
        assert!(farewell.is_clean() && matches!(farewell.why, Ended::Asked), "{farewell}");
        assert_eq!((farewell.handled, elapsed_since(since)), (3, ms(490)));
        // The server accepts no more clients.
        assert!(door.is_empty());
        door.connect(1);
        sleep(ms(10)).await.unwrap();
        assert_eq!(door.0.clients.borrow().len(), 1);
    });
}

#[test]
fn an_idle_server_ends_at_once() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[]).await;
        let since = now();
        closing.begin();
        assert!(server.await.unwrap().unwrap().is_clean());
        assert_eq!(elapsed_since(since), BACKLOG_WAIT);
        // One that was told before it began serves who waits already, as far as there is room.
        let _clients = [door.connect(1), door.connect(2), door.connect(3)];
        let farewell = serve_until(door.clone(), 2, closing, PATIENCE, handle).await.unwrap();
        assert_eq!((farewell.handled, door.0.clients.borrow().len()), (2, 1));
    });
}

/// The bytes of a reply that reach a client, if the server's task is cancelled in its middle.
async fn received<F: Future + 'static>(door: Door, server: F) -> (usize, F::Output) {
    let client = door.connect(1);
    let server = spawn(server);
    let (mut count, mut buffer) = (0, [0; 1000]);
    loop {
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return (count, server.await.unwrap()),
            Ok(length) => count += length,
        }
        if (1_000_000..1_000_100).contains(&count) {
            server.request_cancel("SIGTERM");
            sleep(ms(10)).await.unwrap();
        }
    }
}

#[test]
fn a_reply_under_way_is_finished() {
    const REPLY: usize = 5_000_000;
    let reply = async |stream: MemoryStream, _| drop(stream.write_all(&vec![b'x'; REPLY]).await);
    run(async {
        let door = Door::default();
        let server = serve_until(door.clone(), 100, Closing::new(), PATIENCE, reply);
        let (count, farewell) = received(door, server).await;
        assert_eq!(count, REPLY);
        assert!(farewell.unwrap().is_clean());

        let door = Door::default();
        let (count, cancelled) = received(door.clone(), serve(door, 100, reply)).await;
        assert!((1_000_000..REPLY).contains(&count), "cut after {count} bytes");
        assert!(matches!(cancelled, Ok(Ended::Interrupted(_))));
    });
}

#[test]
fn slow_handlers_are_interrupted_then_dropped_and_reported() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[100, 5000, 9000, 7000]).await;
        let since = now();
        closing.begin();
        let farewell = server.await.unwrap().unwrap();
        assert_eq!(elapsed_since(since), ms(1100) + BACKLOG_WAIT);
        assert_eq!(numbers(&farewell.interrupted), [5000, 9000, 7000]);
        assert_eq!(numbers(&farewell.dropped), [9000]);
        assert_eq!(farewell.dropped[0].age, ms(1110) + BACKLOG_WAIT);
        assert!(!farewell.is_clean());
        let text = farewell.to_string();
        assert!(text.starts_with("4 connections handled; 3 interrupted, of which 1 dropped"));
        assert!(text.contains("the connection of 9000 (task "), "{text}");
    });
}

#[test]
fn interruption_starts_shutdown_and_another_shortens_it() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[100, 5000]).await;
        server.request_cancel("SIGTERM");
        let farewell = server.await.unwrap().unwrap();
        let Ended::Interrupted(why) = &farewell.why else { panic!("{farewell:?}") };
        assert_eq!(why.reason(), Some("SIGTERM"));
        assert_eq!(numbers(&farewell.interrupted), [5000]);
        assert!(closing.has_begun(), "handlers can see it as well");

        // Each cause counts once: two deadlines around it, and a cancel.
        let since = now();
        let serving = serve_until(door.clone(), 100, Closing::new(), PATIENCE, handle);
        let server = spawn(timed(ms(20), timed(ms(10), serving)));
        for number in [100, 5000, 9000] {
            door.connect(number);
        }
        sleep(ms(30)).await.unwrap();
        server.request_cancel("SIGTERM");
        let farewell = server.await.unwrap().output.unwrap().output.unwrap().unwrap();
        assert_eq!(numbers(&farewell.interrupted), [100, 5000, 9000]);
        assert_eq!(numbers(&farewell.dropped), [100, 5000, 9000]);
        assert_eq!(elapsed_since(since), ms(30));
    });
}

#[test]
fn deadline_starts_shutdown_as_well() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        door.connect(300);
        let serving = serve_until(door, 100, closing, PATIENCE, handle);
        let ended = timed(ms(100), serving).await;
        let farewell = ended.output.unwrap().unwrap();
        assert!(ended.expired && farewell.is_clean(), "{farewell}");
        let Ended::Interrupted(why) = &farewell.why else { panic!("{farewell:?}") };
        assert!(why.is_timeout());
    });
}

#[test]
fn failed_listener_starts_a_graceful_shutdown() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[100]).await;
        door.end(io::ErrorKind::ConnectionAborted);
        let failed = server.await.unwrap().unwrap_err();
        assert!(failed.interrupted.is_empty() && failed.handled == 1, "{failed}");
        let error = io::Error::from(failed);
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert!(
            error.to_string().starts_with("the server's listener failed after 1 connections: ")
        );
    });
}

#[test]
fn closed_listener_ends_the_server_in_order() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let server = serving(&door, &closing, &[100]).await;
        door.end(Closed);
        let farewell = server.await.unwrap().unwrap();
        assert!(matches!(farewell.why, Ended::Closed) && farewell.is_clean(), "{farewell:?}");
        assert_eq!(farewell.handled, 1);
    });
}

#[test]
fn handlers_end_between_two_requests() {
    run(async {
        let (door, closing) = (Door::default(), Closing::new());
        let told = closing.clone();
        let polite = move |stream: MemoryStream, _| {
            let told = told.clone();
            async move {
                let mut buffer = [0; 1];
                loop {
                    let next = std::pin::pin!(stream.read(&mut buffer));
                    let end = std::pin::pin!(told.begun());
                    match futures::future::select(next, end).await {
                        futures::future::Either::Left((Ok(1), _)) => {}
                        _ => return,
                    }
                    stream.write_all(b"answer").await.unwrap();
                }
            }
        };
        let server = spawn(serve_until(door.clone(), 2, closing.clone(), PATIENCE, polite));
        let client = door.connect(1);
        client.write_all(b"?").await.unwrap();
        let mut buffer = [0; 16];
        assert_eq!(client.read(&mut buffer).await.unwrap(), 6);
        let since = now();
        closing.begin();
        assert!(server.await.unwrap().unwrap().is_clean());
        assert_eq!(elapsed_since(since), BACKLOG_WAIT);
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    });
}

#[test]
fn shutdown_closes_the_listener_on_a_port_first() {
    // In real time: the machine's loopback does not wait for a virtual clock.
    pikake::run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = Closing::new();
        let slow = |stream: TcpStream, _| async move { drop(stream.read(&mut [0; 1]).await) };
        let server = spawn(serve_until(listener, 2, closing.clone(), PATIENCE, slow));
        let client = TcpStream::connect(address).await.unwrap();
        client.peer_addr().unwrap();
        for _ in 0..20 {
            pikake::yield_now().await.unwrap();
        }
        closing.begin();
        sleep(BACKLOG_WAIT * 50).await.unwrap();
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        client.write_all(b"x").await.unwrap();
        let farewell = server.await.unwrap().unwrap();
        assert!(farewell.is_clean() && farewell.handled == 1, "{farewell}");
    });
}

/// Connections beyond the limit are reset.
#[test]
fn shutdown_serves_the_backlog_up_to_the_limit() {
    use std::io::{Read, Write};
    pikake::run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = Closing::new();
        let echo = |stream: TcpStream, _| async move {
            let mut buffer = [0];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer).await.unwrap();
        };
        let server = spawn(serve_until(listener, 2, closing.clone(), PATIENCE, echo));
        pikake::yield_now().await.unwrap();
        // In one step, in which the server accepts nobody.
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(b"?").unwrap();
                client
            })
            .collect();
        closing.begin();
        let farewell = server.await.unwrap().unwrap();
        assert!(farewell.is_clean() && farewell.handled == 2, "{farewell}");
        let answers = clients.into_iter().map(|mut client| {
            let mut answer = String::new();
            client.read_to_string(&mut answer).map(|_| answer).map_err(|error| error.kind())
        });
        let answer = || Ok("?".to_owned());
        let reset = || Err(io::ErrorKind::ConnectionReset);
        assert!(answers.eq([answer(), answer(), reset(), reset()]));
    });
}

#[test]
fn an_interruption_at_every_wait() {
    let report = interrupt_everywhere(
        || async {
            let (door, closing) = (Door::default(), Closing::new());
            spawn({
                let (door, closing) = (door.clone(), closing.clone());
                async move {
                    for number in [5, 2000, 30] {
                        sleep(ms(1)).await.unwrap();
                        door.connect(number);
                    }
                    sleep(ms(10)).await.unwrap();
                    closing.begin();
                }
            })
            .detach();
            let running = Rc::new(Cell::new(0));
            let counted = running.clone();
            let handler = move |stream, number| {
                let running = counted.clone();
                async move {
                    running.set(running.get() + 1);
                    let _ended = OnDrop(|| running.set(running.get() - 1));
                    handle(stream, number).await;
                }
            };
            let farewell = serve_until(door, 2, closing, PATIENCE, handler).await.unwrap();
            assert!(farewell.dropped.len() <= farewell.interrupted.len());
            (running.get(), farewell)
        },
        |run| {
            let (running, farewell) = run.output.as_ref().unwrap();
            assert_eq!(*running, 0, "a handler has outlived its server: {farewell}");
            if run.interruption.is_none() {
                assert_eq!(numbers(&farewell.interrupted), [2000]);
                assert!(farewell.dropped.is_empty() && farewell.handled == 3, "{farewell}");
            }
        },
    );
    assert!(report.suspensions >= 5 && report.cancels > 5, "{report:?}");
}
