//! A server in a process without free descriptors.
//!
//! The limit of open files belongs to the process.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pikake::net::{Listener, TcpListener, TcpStream, serve};
use pikake::spawn;
use pikake::traps::{WaitQueue, park};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::alone;
use crate::support::warnings::OnWarning;

/// A listener that counts the attempts to accept, and gives a descriptor back at the fourth.
struct Counting {
    listener: TcpListener,
    attempts: Cell<u32>,
    occupied: RefCell<Option<File>>,
}

const GIVES_BACK_AT: u32 = 4;

impl Listener for &Counting {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.attempts.set(self.attempts.get() + 1);
        if self.attempts.get() == GIVES_BACK_AT {
            self.occupied.take();
        }
        self.listener.accept().await
    }
}

fn allow_descriptors_below(number: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum }).unwrap();
}

/// Takes the lowest free descriptor. Those below it are in use.
fn occupy() -> File {
    File::open("/dev/null").unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Clients that have said what they want and wait in the backlog.
fn clients(address: SocketAddr, count: usize) -> Vec<std::net::TcpStream> {
    let client = || {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(b"x").unwrap();
        client
    };
    std::iter::repeat_with(client).take(count).collect()
}

fn are_answered(clients: Vec<std::net::TcpStream>) {
    for mut client in clients {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"x");
    }
}

/// A handler that answers, and counts.
fn answering(
    answered: &Rc<(Cell<usize>, WaitQueue)>,
) -> impl Fn(TcpStream, SocketAddr) -> std::pin::Pin<Box<dyn Future<Output = ()>>> + use<> {
    let answered = answered.clone();
    move |stream, _| {
        let answered = answered.clone();
        Box::pin(async move {
            let mut buffer = [0];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer).await.unwrap();
            drop(stream);
            let (count, changed) = &*answered;
            count.set(count.get() + 1);
            changed.wake(1);
        })
    }
}

async fn reaches((count, changed): &(Cell<usize>, WaitQueue), wanted: usize) {
    while count.get() < wanted {
        park(changed).await.unwrap();
    }
}

#[test]
fn descriptor_shortage_is_waited_out() {
    alone("shortage::descriptor_shortage_is_waited_out", serve_without_descriptors);
}

fn serve_without_descriptors() {
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let warnings = Arc::new(AtomicUsize::new(0));
    let count = warnings.clone();
    let subscriber = OnWarning(move |event: &tracing::Event<'_>| {
        let is_of_net = event.metadata().target().starts_with("pikake_net");
        count.fetch_add(usize::from(is_of_net), Ordering::Relaxed);
    });
    tracing::subscriber::with_default(subscriber, || {
        // Room for one connection: each is taken when the one before has ended.
        pikake::run(async {
            let (listener, address) = listen().await;
            let clients = clients(address, 5);
            let answered = Rc::default();
            let room_for_one = occupy().as_raw_fd() as u64 + 1;
            allow_descriptors_below(room_for_one);
            let server = spawn(serve(listener, 100, answering(&answered)));
            reaches(&answered, 5).await;
            server.cancel().await.unwrap();
            allow_descriptors_below(before);
            are_answered(clients);
        });
        assert_eq!(warnings.load(Ordering::Relaxed), 1, "one shortage is one warning");

        // No room, and nobody here to give a descriptor back: pauses that get longer.
        pikake::run(async {
            let (listener, address) = listen().await;
            let clients = clients(address, 1);
            let occupied = occupy();
            allow_descriptors_below(occupied.as_raw_fd() as u64 + 1);
            let attempts = Cell::new(0);
            let listener = Box::leak(Box::new(Counting {
                listener,
                attempts,
                occupied: RefCell::new(Some(occupied)),
            }));
            let listener: &'static Counting = listener;
            let answered = Rc::default();
            let start = Instant::now();
            let server = spawn(serve(listener, 100, answering(&answered)));
            reaches(&answered, 1).await;
            // 5, 10 and 20 ms went by before the fourth attempt; the fifth found nobody.
            assert!(start.elapsed() >= Duration::from_millis(35));
            assert_eq!(listener.attempts.get(), GIVES_BACK_AT + 1);
            server.cancel().await.unwrap();
            allow_descriptors_below(before);
            are_answered(clients);
            listener.listener.close();
        });
        assert_eq!(warnings.load(Ordering::Relaxed), 2);
    });
}
