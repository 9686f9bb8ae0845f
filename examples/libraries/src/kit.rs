//! What lapin asks of a runtime: `async_rs`'s `RuntimeKit`, by a handle to a kernel.
//!
//! lapin polls its connection on a thread of its own and calls its runtime from there. So nothing
//! in the kit belongs to the kernel's thread: it sends work there, and what is awaited elsewhere is
//! a channel's end or a [`Relay`].

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::{Task, TaskImpl};
use futures::channel::oneshot;
use futures::future::{Either, select};
use futures::io::{AsyncRead, AsyncWrite};
use pikake::net::TcpStream;
use pikake::{KernelHandle, sleep};

use crate::relay::Relay;

/// A kernel, as a runtime for `async_rs`.
///
/// # Examples
///
/// ```no_run
/// use async_rs::Runtime;
/// use pikake_libraries::kit::Kit;
///
/// # async fn example() -> lapin::Result<()> {
/// let options = lapin::ConnectionProperties::default();
/// let runtime = Runtime::new(Kit::current());
/// let connection =
///     lapin::Connection::connect_with_runtime("amqp://localhost", options, runtime).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Kit {
    kernel: KernelHandle,
}

impl Kit {
    /// The current kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn current() -> Self {
        Self { kernel: KernelHandle::current() }
    }

    /// Has the kernel run a future that is made there. If nobody waits for the result any more, the
    /// future is dropped; if it gives nothing, whoever waits is left to.
    fn send<M, F, T>(&self, make: M) -> Sent<T>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = Option<T>> + 'static,
        T: Send + 'static,
    {
        let (mut sender, receiver) = oneshot::channel();
        // Refused by a kernel that has ended, the closure is dropped and the receiver told.
        let _ = self.kernel.spawn(move || async move {
            let work = Box::pin(make());
            if let Either::Left((Some(result), _)) = select(work, sender.cancellation()).await {
                // Nobody may want it any more.
                drop(sender.send(result));
            }
        });
        Sent { receiver: Some(receiver) }
    }
}

/// The result of something that a kernel does; pending for ever if the kernel has ended.
#[derive(Debug)]
pub struct Sent<T> {
    receiver: Option<oneshot::Receiver<T>>,
}

impl<T> Future for Sent<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(receiver) = &mut self.receiver else { return Poll::Pending };
        match Pin::new(receiver).poll(cx) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(_)) => {
                self.receiver = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A task of the kit; dropped, it runs on.
#[derive(Debug)]
pub struct KitTask<T> {
    receiver: oneshot::Receiver<T>,
}

impl<T> Future for KitTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.receiver).poll(cx) {
            Poll::Ready(Ok(result)) => Poll::Ready(result),
            Poll::Ready(Err(_)) => panic!("the task panicked, or its kernel has ended"),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> TaskImpl for KitTask<T> {}

impl Executor for Kit {
    type Task<T: Send + 'static> = KitTask<T>;

    /// Blocks a thread that is not a kernel's.
    ///
    /// # Panics
    ///
    /// On a kernel's thread, which would wait for itself.
    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        assert!(
            !pikake::traps::door::is_open(),
            "`block_on` on a kernel's thread would wait for itself: await the future there"
        );
        futures::executor::block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<KitTask<T>> {
        let (sender, receiver) = oneshot::channel();
        let _ = self.kernel.spawn(move || async move {
            drop(sender.send(future.await));
        });
        KitTask { receiver }.into()
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<KitTask<T>> {
        let (sender, receiver) = oneshot::channel();
        let _ = self.kernel.spawn(move || async move {
            if let Ok(result) = pikake::thread::run_in_thread(work).await {
                drop(sender.send(result));
            }
        });
        KitTask { receiver }.into()
    }
}

impl Reactor for Kit {
    type TcpStream = Relay;
    type Sleep = Sent<()>;

    fn register<H: io::Read + io::Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        let refusal = "this runtime opens its sockets itself: use `tcp_connect`";
        Err::<Relay, _>(io::Error::new(io::ErrorKind::Unsupported, refusal))
    }

    fn sleep(&self, length: Duration) -> Sent<()> {
        // Asked to end with its kernel, it says nothing: whoever sleeps has no room for an error.
        self.send(move || async move { sleep(length).await.ok() })
    }

    fn interval(&self, length: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        let kit = self.clone();
        futures::stream::unfold(true, move |is_first| {
            let wait = (!is_first).then(|| kit.sleep(length));
            async move {
                if let Some(wait) = wait {
                    wait.await;
                }
                Some((Instant::now(), false))
            }
        })
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Relay>> + Send + 'static {
        self.send(move || async move { Some(TcpStream::connect(address).await.map(Relay::start)) })
    }
}

impl RuntimeKit for Kit {}
