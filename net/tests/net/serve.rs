//! The accept loop: its limit, and its end by cancel, timeout, drop, or a closed listener.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures::future::{join_all, select};
use pikake::net::{Ended, TcpListener, TcpStream, UnixListener, UnixStream, interruption, serve};
use pikake::traps::{WaitQueue, park};
use pikake::{Task, TimedOut, sleep, spawn, timeout_after, yield_now};

use crate::support::scratch::Scratch;

/// Longer than any test takes.
const FOREVER: Duration = Duration::from_secs(3600);

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A number that can be waited for.
#[derive(Default)]
struct Count {
    now: Cell<usize>,
    most: Cell<usize>,
    changed: WaitQueue,
}

impl Count {
    fn add(&self, more: isize) {
        self.now.set(self.now.get().checked_add_signed(more).expect("no more end than began"));
        self.most.set(self.most.get().max(self.now.get()));
        self.changed.wake(usize::MAX);
    }

    async fn reaches(&self, count: usize) {
        while self.now.get() != count {
            park(&self.changed).await.unwrap();
        }
    }
}

/// The events, in their order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<&'static str>>>);

impl Log {
    fn add(&self, what: &'static str) {
        self.0.borrow_mut().push(what);
    }
}

/// A handler that takes note of how it ends, and takes a few steps for it.
async fn politely(stream: TcpStream, log: Log, count: Rc<Count>) {
    count.add(1);
    let error = stream.read(&mut [0]).await.unwrap_err();
    let why = interruption(&error).unwrap();
    assert_eq!(why.reason(), Some("the server is ending"));
    log.add("asked");
    yield_now().await.unwrap();
    stream.write_all(b"bye").await.unwrap();
    log.add("ended");
}

/// A server with one client that is being handled politely.
async fn polite_server(
    log: &Log,
) -> (TcpStream, impl Future<Output = io::Result<Ended>> + use<>, Rc<Count>) {
    let (listener, address) = listen().await;
    let client = TcpStream::connect(address).await.unwrap();
    let count = Rc::new(Count::default());
    let (log, handled) = (log.clone(), count.clone());
    let server =
        serve(listener, 4, move |stream, _| politely(stream, log.clone(), handled.clone()));
    (client, server, count)
}

async fn farewell(client: &TcpStream) -> [u8; 3] {
    let mut buffer = [0; 3];
    client.read_exact(&mut buffer).await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    buffer
}

#[pikake::test]
async fn limit_holds_and_all_clients_are_served() {
    let (listener, address) = listen().await;
    let count = Rc::new(Count::default());
    let server: Task<_> = spawn({
        let count = count.clone();
        serve(listener, 3, move |stream: TcpStream, _| {
            let count = count.clone();
            async move {
                count.add(1);
                let mut buffer = [0; 1];
                stream.read_exact(&mut buffer).await.unwrap();
                count.add(-1);
                stream.write_all(&buffer).await.unwrap();
            }
        })
    });
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    count.reaches(3).await;
    // However long nothing is said, no more are taken.
    for _ in 0..20 {
        yield_now().await.unwrap();
    }
    assert_eq!(count.now.get(), 3);
    let answers = join_all(clients.iter().map(|client| async move {
        client.write_all(b"x").await.unwrap();
        let mut buffer = [0; 1];
        client.read_exact(&mut buffer).await.unwrap();
        buffer
    }));
    assert!(answers.await.iter().all(|answer| answer == b"x"));
    assert_eq!((count.most.get(), count.now.get()), (3, 0));
    server.cancel().await.unwrap();
}

#[pikake::test]
async fn handler_panic_leaves_other_handlers_running() {
    let (listener, address) = listen().await;
    let server = spawn(serve(listener, 1, |stream: TcpStream, _| async move {
        let mut buffer = [0; 1];
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"y", "this panic is part of the test");
        stream.write_all(&buffer).await.unwrap();
    }));
    for (word, answer) in [(b"x", 0), (b"y", 1), (b"x", 0), (b"y", 1)] {
        let client = TcpStream::connect(address).await.unwrap();
        client.write_all(word).await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), answer);
    }
    server.cancel().await.unwrap();
}

#[pikake::test]
async fn cancel_interrupts_the_handlers_and_waits_for_them() {
    let log = Log::default();
    let (client, server, count) = polite_server(&log).await;
    let server = spawn({
        let log = log.clone();
        async move {
            let ended = server.await;
            log.add("server ended");
            ended
        }
    });
    count.reaches(1).await;
    server.request_cancel("enough");
    let Ok(Ended::Interrupted(why)) = server.await.unwrap() else { panic!("it was cancelled") };
    assert_eq!(why.reason(), Some("enough"));
    assert_eq!(*log.0.borrow(), ["asked", "ended", "server ended"]);
    assert_eq!(&farewell(&client).await, b"bye");
}

#[pikake::test]
async fn timeout_interrupts_the_handlers_and_waits_for_them() {
    let log = Log::default();
    let (client, server, count) = polite_server(&log).await;
    let mut server = Box::pin(server);
    let started = select(&mut server, Box::pin(count.reaches(1))).await;
    drop(started);
    let served = timeout_after(Duration::from_millis(1), server).await;
    assert!(matches!(served, Err(TimedOut)));
    assert_eq!(*log.0.borrow(), ["asked", "ended"]);
    assert_eq!(&farewell(&client).await, b"bye");
}

#[pikake::test]
async fn drop_interrupts_the_handlers() {
    let log = Log::default();
    let (listener, address) = listen().await;
    let client = TcpStream::connect(address).await.unwrap();
    let count = Rc::new(Count::default());
    let (handled, logged) = (count.clone(), log.clone());
    let server = serve(listener, 4, move |stream: TcpStream, _| {
        let (handled, logged) = (handled.clone(), logged.clone());
        async move {
            handled.add(1);
            stream.read(&mut [0]).await.unwrap_err();
            logged.add("asked");
        }
    });
    select(Box::pin(server), Box::pin(count.reaches(1))).await;
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(*log.0.borrow(), ["asked"]);
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[pikake::test]
async fn second_interruption_aborts_the_remaining_handlers() {
    let (listener, address) = listen().await;
    let client = TcpStream::connect(address).await.unwrap();
    let (started, asked) = (Rc::new(Count::default()), Rc::new(Count::default()));
    let counts = (started.clone(), asked.clone());
    let mut server = Box::pin(serve(listener, 4, move |stream: TcpStream, _| {
        let (started, asked) = counts.clone();
        async move {
            started.add(1);
            sleep(FOREVER).await.unwrap_err();
            asked.add(1);
            let _ = sleep(FOREVER).await;
            drop(stream);
        }
    }));
    let server = spawn(async move {
        drop(select(&mut server, Box::pin(started.reaches(1))).await);
        timeout_after(Duration::from_millis(1), server).await
    });
    asked.reaches(1).await;
    server.request_cancel("now");
    assert!(matches!(server.await.unwrap(), Err(TimedOut)));
    assert_eq!(asked.now.get(), 1);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[pikake::test]
async fn closed_listener_lets_the_handlers_finish() {
    let (listener, address) = listen().await;
    let listener = Rc::new(listener);
    let log = Log::default();
    let server = spawn({
        let (listener, log) = (listener.clone(), log.clone());
        async move {
            let handled = log.clone();
            let served = serve(listener, 4, move |stream: TcpStream, _| {
                let log = handled.clone();
                async move {
                    let length = stream.read(&mut [0]).await.unwrap();
                    log.add(if length == 1 { "served" } else { "cut off" });
                }
            });
            let ended = served.await;
            log.add("server ended");
            ended
        }
    });
    let client = TcpStream::connect(address).await.unwrap();
    // A second one, so that the first has surely been taken.
    drop(TcpStream::connect(address).await.unwrap());
    while log.0.borrow().is_empty() {
        yield_now().await.unwrap();
    }
    listener.close();
    for _ in 0..20 {
        yield_now().await.unwrap();
    }
    assert!(!server.is_finished());
    client.write_all(b"x").await.unwrap();
    assert!(matches!(server.await.unwrap(), Ok(Ended::Closed)));
    assert_eq!(*log.0.borrow(), ["cut off", "served", "server ended"]);
}

#[pikake::test]
async fn unix_listeners_are_served_as_well() {
    let scratch = Scratch::new();
    let path = scratch.path("served");
    let listener = UnixListener::bind(&path).unwrap();
    let server = spawn(serve(listener, 2, |stream: UnixStream, _| async move {
        stream.write_all(b"hello").await.unwrap();
    }));
    for _ in 0..5 {
        let client = UnixStream::connect(&path).await.unwrap();
        let mut buffer = [0; 5];
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
    }
    server.cancel().await.unwrap();
}

#[pikake::test]
async fn handler_in_a_foreign_wait_is_dropped() {
    let (listener, address) = listen().await;
    let client = TcpStream::connect(address).await.unwrap();
    let server = serve(listener, 4, |stream: TcpStream, _| async move {
        pending::<()>().await;
        drop(stream);
    });
    assert!(timeout_after(Duration::from_millis(20), server).await.is_err());
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[test]
#[should_panic(expected = "at least one connection")]
fn a_limit_of_zero_is_a_panic() {
    pikake::run(async {
        let (listener, _) = listen().await;
        drop(serve(listener, 0, |_: TcpStream, _| async {}));
    });
}
