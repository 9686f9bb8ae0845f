//! Waits for sockets on the real kernel: several waiters, and waiters that leave.
#![expect(deprecated, reason = "the safe constructors of `AsyncFd` are")]

use std::future::{pending, poll_fn, Future};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pikake_kernel::Kernel;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::{yield_now, JoinHandle};

async fn udp_pair() -> (Arc<UdpSocket>, UdpSocket) {
    let one = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    other.connect(one.local_addr().unwrap()).await.unwrap();
    // From now on the kernel knows that there is nothing to read.
    assert_eq!(one.try_recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    (Arc::new(one), other)
}

async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}

/// Lets the other tasks run until they wait.
async fn settle() {
    for _ in 0..4 {
        yield_now().await;
    }
}

/// Each waiter of a direction is woken, whichever of them has the kernel's wait and ends.
#[test]
fn ended_waiters_wake_no_one_less() {
    for leaver in 0..3 {
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            let (socket, peer) = udp_pair().await;
            let mut tasks = Vec::new();
            for number in 0..3 {
                let socket = socket.clone();
                tasks.push(tokio::spawn(async move {
                    match number {
                        0 => poll_fn(|cx| socket.poll_recv_ready(cx)).await,
                        _ => socket.readable().await,
                    }
                }));
                settle().await;
            }
            tasks.remove(leaver).abort();
            settle().await;
            peer.send(b"x").await.unwrap();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        });
    }
}

/// Random waiters come, are dropped in their task, or end with it; the others are all woken.
#[test]
fn random_leavers_wake_no_one_less() {
    for seed in 1..400_u64 {
        let mut random = seed;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let reader = Arc::new(AsyncFd::new(reader).unwrap());
            let mut waiters: Vec<(JoinHandle<()>, Arc<Notify>, bool)> = Vec::new();
            for _ in 0..12 {
                match below(4) {
                    0 | 1 => {
                        let is_poller = below(3) == 0;
                        if is_poller {
                            // A direction has one poller: the last.
                            let before = waiters.iter().position(|(.., is_poller)| *is_poller);
                            if let Some(before) = before {
                                waiters.remove(before).0.abort();
                            }
                        }
                        let (reader, leave) = (reader.clone(), Arc::new(Notify::new()));
                        let left = leave.clone();
                        let is_combined = below(2) == 0;
                        let wait = async move {
                            let ready = async {
                                match is_poller {
                                    true => drop(poll_fn(|cx| reader.poll_read_ready(cx)).await),
                                    false => drop(reader.readable().await),
                                }
                            };
                            match is_combined {
                                true => OwnWaker::around(ready).await,
                                false => ready.await,
                            }
                        };
                        let task = tokio::spawn(async move {
                            let (mut wait, mut left) = (Box::pin(wait), pin!(left.notified()));
                            let left = poll_fn(|cx| match wait.as_mut().poll(cx) {
                                Poll::Ready(()) => Poll::Ready(false),
                                Poll::Pending => left.as_mut().poll(cx).map(|()| true),
                            });
                            if left.await {
                                drop(wait);
                                pending().await
                            }
                        });
                        waiters.push((task, leave, is_poller));
                    }
                    2 if !waiters.is_empty() => {
                        let (task, leave, _) = waiters.remove(below(waiters.len() as u64) as usize);
                        match below(2) {
                            0 => task.abort(),
                            _ => leave.notify_one(),
                        }
                    }
                    _ => settle().await,
                }
            }
            settle().await;
            rustix::io::write(&writer, b"x").unwrap();
            for (task, ..) in waiters {
                let woken = tokio::time::timeout(Duration::from_secs(10), task).await;
                woken.unwrap_or_else(|_| panic!("seed {seed}: a waiter was not woken")).unwrap();
            }
        });
    }
}

pin_project_lite::pin_project! {
    /// Polls a future with a waker of its own, as combinators do: only when that was called.
    struct OwnWaker<F> {
        #[pin]
        future: F,
        called: Arc<Called>,
    }
}

struct Called {
    is_called: AtomicBool,
    parent: Mutex<Option<Waker>>,
}

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.is_called.store(true, Ordering::SeqCst);
        let parent = self.parent.lock().unwrap().clone();
        parent.into_iter().for_each(Waker::wake);
    }
}

impl<F> OwnWaker<F> {
    fn around(future: F) -> Self {
        let called = Called { is_called: AtomicBool::new(true), parent: Mutex::new(None) };
        Self { future, called: Arc::new(called) }
    }
}

impl<F: Future> Future for OwnWaker<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        *this.called.parent.lock().unwrap() = Some(cx.waker().clone());
        match this.called.is_called.swap(false, Ordering::SeqCst) {
            true => this.future.poll(&mut Context::from_waker(&this.called.clone().into())),
            false => Poll::Pending,
        }
    }
}

/// A future that is dropped takes its wait out of the listings; another waiter parks it anew.
#[test]
fn dropped_futures_leave_their_wait() {
    async fn wait_a_moment(socket: Arc<UdpSocket>) {
        let mut readable = Box::pin(socket.readable());
        assert!(is_pending(&mut readable).await);
        drop(readable);
        std::future::pending().await
    }
    let kernel = Kernel::new().unwrap();
    let shown = || {
        kernel.run(settle());
        let waits = kernel.waits().into_iter().filter(|wait| wait.trap.name() == "read_wait");
        waits.map(|wait| wait.task.id()).collect::<Vec<_>>()
    };
    let (socket, peer) = kernel.run(udp_pair());
    kernel.enter(|| tokio::spawn(wait_a_moment(socket.clone()))).unwrap();
    assert_eq!(shown(), []);
    assert_eq!(kernel.wait_count(), 0);

    let other = socket.clone();
    let stays = kernel.enter(|| tokio::spawn(async move { other.readable().await })).unwrap();
    let alone = shown();
    assert_eq!(alone.len(), 1);
    kernel.enter(|| tokio::spawn(wait_a_moment(socket.clone()))).unwrap();
    assert_eq!(shown(), alone);
    kernel.run(async {
        peer.send(b"x").await.unwrap();
        stays.await.unwrap().unwrap();
    });
}

/// A call on the descriptor that would block is a wait, too: the kernel has not seen the call.
#[test]
fn raw_calls_that_block_wait() {
    let kernel = Kernel::new().unwrap();
    kernel.run(async {
        let (socket, peer) = udp_pair().await;
        let receive = |socket: &UdpSocket| {
            let mut data = [0; 8];
            rustix::io::read(socket.as_fd(), &mut data).map_err(io::Error::from)
        };
        let calls = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn({
            let (socket, calls) = (socket.clone(), calls.clone());
            async move {
                socket
                    .async_io(Interest::READABLE, || {
                        calls.fetch_add(1, Ordering::Relaxed);
                        receive(&socket)
                    })
                    .await
            }
        });
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(calls.load(Ordering::Relaxed) <= 2, "{calls:?}");
        peer.send(b"abc").await.unwrap();
        assert_eq!(task.await.unwrap().unwrap(), 3);

        // As QUIC libraries do.
        let polls = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn({
            let (socket, polls) = (socket.clone(), polls.clone());
            poll_fn(move |cx| loop {
                polls.fetch_add(1, Ordering::Relaxed);
                match socket.poll_recv_ready(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ready) => ready.unwrap(),
                }
                if let Ok(length) = socket.try_io(Interest::READABLE, || receive(&socket)) {
                    return Poll::Ready(length);
                }
            })
        });
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(polls.load(Ordering::Relaxed) <= 4, "{polls:?}");
        peer.send(b"ab").await.unwrap();
        assert_eq!(task.await.unwrap(), 2);
    });
}

/// The registration of a descriptor ends with it, also where another thread drops it.
#[test]
fn descriptors_dropped_elsewhere_are_closed() {
    let kernel = Kernel::new().unwrap();
    kernel.run(async {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let reader = AsyncFd::new(reader).unwrap();
        assert_eq!(kernel.socket_count(), 1);
        std::thread::spawn(move || drop(reader)).join().unwrap();
    });
    // The next turn gets the message of the other thread.
    kernel.run(settle());
    assert_eq!(kernel.socket_count(), 0);
}

#[derive(Debug)]
struct NoDescriptor(RawFd);

impl AsRawFd for NoDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

#[test]
fn no_descriptor_is_an_error() {
    Kernel::new().unwrap().run(async {
        for number in [-1, RawFd::MAX] {
            let error = AsyncFd::new(NoDescriptor(number)).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::BADF));
        }
    });
}

/// A stream goes on after it was a stream of the standard library, though the kernel had waited for
/// it before.
#[test]
fn streams_leave_and_come_back() {
    Kernel::new().unwrap().run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut one = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        for round in 0..3 {
            let mut byte = [0];
            {
                let mut read = pin!(one.read(&mut byte));
                assert!(is_pending(&mut read).await);
            }
            other.write_all(&[round]).await.unwrap();
            one.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte, [round]);
            let out = one.into_std().unwrap();
            one = tokio::net::TcpStream::from_std(out).unwrap();
        }
    });
}

/// A waker that owns a future, as those of some executors do.
struct Owner {
    _future: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

/// The drop of a waker may drop another wait for the same socket.
#[test]
fn wakers_may_own_waiters() {
    Kernel::new().unwrap().run(async {
        let (socket, _peer) = udp_pair().await;
        for by_future in [false, true] {
            let kept = socket.clone();
            let mut readable = Box::pin(async move { kept.readable().await.unwrap() });
            let pending = readable.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(pending.is_pending());
            let owner = Waker::from(Arc::new(Owner { _future: Mutex::new(readable) }));
            let mut waits = pin!(socket.readable());
            let cx = &mut Context::from_waker(&owner);
            match by_future {
                false => assert!(socket.poll_recv_ready(cx).is_pending()),
                true => assert!(waits.as_mut().poll(cx).is_pending()),
            }
            drop(owner);
            poll_fn(|cx| {
                match by_future {
                    false => assert!(socket.poll_recv_ready(cx).is_pending()),
                    true => assert!(waits.as_mut().poll(cx).is_pending()),
                }
                Poll::Ready(())
            })
            .await;
        }
    });
}
