//! What a workload asks of a runtime. Each workload is written once, against this.

#[cfg(feature = "compio")]
pub(crate) mod compio;
#[cfg(feature = "glommio")]
pub(crate) mod glommio;
#[cfg(feature = "monoio")]
pub(crate) mod monoio;
pub mod pikake;
#[cfg(feature = "smol")]
pub(crate) mod smol;
#[cfg(feature = "tokio")]
pub mod tokio;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A runtime of one thread.
pub trait Runtime: Sized + 'static {
    type Task<T: 'static>: 'static;
    /// The runtime's own channel, or else [`Common`].
    type Channel: Channel;
    /// The runtime's own lock, or else [`CommonLock`].
    type Lock: Lock;

    /// Runs a future in a fresh runtime.
    fn run<F: Future<Output: 'static> + 'static>(main: F) -> F::Output;

    /// The same, where a timer may be a millisecond late.
    fn run_with_slack<F: Future<Output: 'static> + 'static>(main: F) -> F::Output {
        Self::run(main)
    }

    fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Self::Task<F::Output>;
    fn join<T: 'static>(task: Self::Task<T>) -> impl Future<Output = T>;
    fn detach<T: 'static>(task: Self::Task<T>);

    fn sleep(length: Duration) -> impl Future<Output = ()>;
    /// Panics when the time is up before the future has ended.
    fn in_time<F: Future>(length: Duration, future: F) -> impl Future<Output = F::Output>;

    /// `None` when the time is up before the future has ended.
    fn unless_late<F: Future>(
        length: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> {
        async move {
            let (mut future, mut sleep) = (pin!(future), pin!(Self::sleep(length)));
            poll_fn(|cx| match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
            })
            .await
        }
    }

    /// Lets the other tasks run; by a wake of oneself, if the runtime has nothing of its own.
    fn yield_now() -> impl Future<Output = ()> {
        wake_oneself()
    }

    /// Asks for something that is there already, in the way that the runtime asks for things.
    fn at_once() -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// A future that suspends once and wakes its own task before it does.
pub fn wake_oneself() -> impl Future<Output = ()> {
    let mut woken = false;
    poll_fn(move |cx| {
        if woken {
            return Poll::Ready(());
        }
        woken = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A channel with room for so many messages.
pub trait Channel: 'static {
    type Sender: 'static;
    type Receiver: 'static;

    fn new(room: usize) -> (Self::Sender, Self::Receiver);
    fn send(sender: &mut Self::Sender, message: u32) -> impl Future<Output = ()>;
    fn receive(receiver: &mut Self::Receiver) -> impl Future<Output = u32>;
}

/// A lock that is held over awaits.
pub trait Lock: Default + 'static {
    type Guard<'a>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>>;
}

/// The lock that all runtimes can use.
pub type CommonLock = async_lock::Mutex<u32>;

impl Lock for CommonLock {
    type Guard<'a> = async_lock::MutexGuard<'a, u32>;

    fn lock(&self) -> impl Future<Output = Self::Guard<'_>> {
        self.lock()
    }
}

/// The channel that all runtimes can use.
pub struct Common;

impl Channel for Common {
    type Sender = async_channel::Sender<u32>;
    type Receiver = async_channel::Receiver<u32>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        async_channel::bounded(room)
    }

    async fn send(sender: &mut Self::Sender, message: u32) {
        sender.send(message).await.expect("the receiver lives");
    }

    async fn receive(receiver: &mut Self::Receiver) -> u32 {
        receiver.recv().await.expect("the sender lives")
    }
}

/// A cell with one message and one waker: the least there can be between two tasks of a thread.
pub struct Slot;

#[derive(Default)]
pub struct Place {
    message: Cell<Option<u32>>,
    waker: Cell<Option<Waker>>,
}

impl Channel for Slot {
    type Sender = Rc<Place>;
    type Receiver = Rc<Place>;

    fn new(room: usize) -> (Self::Sender, Self::Receiver) {
        assert_eq!(room, 1, "a slot");
        let place = Rc::<Place>::default();
        (place.clone(), place)
    }

    async fn send(sender: &mut Self::Sender, message: u32) {
        assert!(sender.message.replace(Some(message)).is_none(), "one message at a time");
        if let Some(waker) = sender.waker.take() {
            waker.wake();
        }
    }

    async fn receive(receiver: &mut Self::Receiver) -> u32 {
        poll_fn(|cx| match receiver.message.take() {
            Some(message) => Poll::Ready(message),
            None => {
                receiver.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// TCP, as a server needs it. Buffers are handed over and come back, since some runtimes have it
/// so; for the others, that is a move of three words.
pub trait Sockets: Runtime {
    const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    type Listener: 'static;
    type Stream: 'static;

    fn listen() -> impl Future<Output = io::Result<(Self::Listener, SocketAddr)>>;
    fn accept(listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>>;
    fn read(
        stream: &mut Self::Stream,
        buffer: Vec<u8>,
    ) -> impl Future<Output = (io::Result<usize>, Vec<u8>)>;
    /// Writes that much of the buffer.
    fn write(
        stream: &mut Self::Stream,
        buffer: Vec<u8>,
        length: usize,
    ) -> impl Future<Output = (io::Result<()>, Vec<u8>)>;
}
