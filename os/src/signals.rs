//! Listeners of signals.
//!
//! The signal handler sets a flag for the signal and writes a byte to a pipe; the kernel has
//! adopted the other end and waits for it as for a socket. So no thread is needed, and a sleeping
//! kernel is woken. The flag merges signals: one that arrives again before it is received is
//! received once, as the system does with pending signals.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pikake_traps::{
    About, AsAttempt, Attempt, Closed, KernelHandle, KernelId, KernelTrap, SocketTrap,
    kernel_trap_at, system,
};
use signal_hook::consts::{FORBIDDEN, SIGINT};
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::signal_name;

use crate::adopted::Adopted;
use crate::default_action::{Listening, keep};
use crate::untaken::Untaken;

/// The highest number of a signal on any supported system.
const MAX_SIGNAL: i32 = 64;

/// Signals whose handler is installed, before a kernel adopts the pipe.
pub(crate) struct Delivered {
    /// `None` if it was taken. Dropped before the handler: undelivered signals have their default
    /// action.
    listening: Option<Listening>,
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// The end of the pipe for the kernel.
    awake: UnixStream,
    untaken: Arc<Untaken>,
}

impl Delivered {
    pub(crate) fn new(signals: &[i32]) -> io::Result<Self> {
        for signal in signals {
            if FORBIDDEN.contains(signal) || !(1..=MAX_SIGNAL).contains(signal) {
                let name = signal_name(*signal).unwrap_or("no signal of this system");
                let message = format!("signal {signal} ({name}) cannot be listened to");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        let (read, write) = UnixStream::pair()?;
        let awake = read.try_clone()?;
        // In this order, a signal has its default action until it is delivered.
        keep(signals);
        let untaken = Untaken::note(signals)?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        let listening = Some(Listening::to(signals));
        Ok(Self { listening, delivery, awake, untaken })
    }

    /// Sets the kernel that is to take the signals, before it does.
    pub(crate) fn set_kernel(&self, kernel: KernelId) {
        self.untaken.set_kernel(kernel);
    }

    /// The handle that ends the delivery from outside.
    pub(crate) fn handle(&self) -> Handle {
        self.delivery.handle()
    }

    /// Takes the guard that suppresses the signals' default action.
    pub(crate) fn take_listening(&mut self) -> Option<Listening> {
        self.listening.take()
    }

    /// Has the current kernel wait for the signals.
    pub(crate) fn adopt(self) -> io::Result<Signals> {
        let Self { listening, delivery, awake, untaken } = self;
        untaken.set_kernel(KernelHandle::current().id());
        let awake = Adopted::new(awake.into())?;
        let (handle, arrived) = (delivery.handle(), VecDeque::new());
        let place = Location::caller();
        Ok(Signals { listening, delivery, handle, awake, untaken, arrived, wait: None, place })
    }
}

/// A listener of signals; also a stream of their numbers.
///
/// Each listener receives all its signals, also with several listeners. A signal that arrives again
/// before it is received is received once. Signals have no default action while there is a
/// listener, and have it again afterwards; a signal that was ignored at the start of the process is
/// then ignored again.
///
/// Signals concern the whole process: the handler stays installed. An earlier handler is called as
/// well.
///
/// # Examples
///
/// See the [module](crate::signal).
#[doc(alias("Signal", "SignalKind", "signal"))]
#[must_use = "signals without listeners have their default action"]
pub struct Signals {
    /// Dropped before `delivery`: undelivered signals have their default action.
    listening: Option<Listening>,
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Closed when the delivery has ended.
    handle: Handle,
    awake: Adopted,
    untaken: Arc<Untaken>,
    /// Signals that arrived and were not received yet.
    arrived: VecDeque<i32>,
    /// The wait of the stream, between its polls.
    wait: Option<KernelTrap<SocketTrap<Drain>>>,
    place: &'static Location<'static>,
}

impl Signals {
    /// Listens to some signals from now on.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), for a number that is not a signal, or a
    /// signal that cannot be handled, as SIGKILL; [`Unsupported`](io::ErrorKind::Unsupported), in a
    /// simulation; otherwise the system's error.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn new(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        system()?;
        let signals: BTreeSet<i32> = signals.into_iter().collect();
        let signals: Vec<i32> = signals.into_iter().collect();
        let place = Location::caller();
        Delivered::new(&signals)?.adopt().map(|signals| Self { place, ..signals })
    }

    /// Waits for the next signal and returns its number.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A call that is dropped or interrupted loses no signal.
    ///
    /// # Errors
    ///
    /// The interruption.
    ///
    /// # Panics
    ///
    /// If it has to wait outside a task of the kernel in which the listener was created.
    #[expect(clippy::should_implement_trait, reason = "an async `next`, as streams have it")]
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = io::Result<i32>> {
        self.wait = None;
        self.place = Location::caller();
        Next(self)
    }

    /// Receives a signal that has arrived. Never suspends.
    pub fn try_next(&mut self) -> Option<i32> {
        if self.arrived.is_empty() {
            self.arrived.extend(self.delivery.pending());
            self.untaken.take();
        }
        self.arrived.pop_front()
    }

    pub(crate) fn poll_signal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<i32>> {
        loop {
            if let Some(signal) = self.try_next() {
                self.wait = None;
                return Poll::Ready(Ok(signal));
            }
            if self.handle.is_closed() {
                return Poll::Ready(Err(Closed.into()));
            }
            let wait = self.wait.get_or_insert_with(|| {
                kernel_trap_at(SocketTrap::new(self.awake.id(), Drain([0; 64])), self.place)
            });
            let drained = ready!(Pin::new(wait).poll(cx));
            self.wait = None;
            drained?;
        }
    }
}

/// Waits for the next SIGINT, which a terminal sends at Ctrl-C.
///
/// SIGINT has no default action from the call on, and has it again when the future has ended or is
/// dropped. To clean up everywhere at SIGINT and SIGTERM, `#[pikake::main(signals)]` is shorter.
///
/// # Examples
///
/// ```
/// use pikake::net::{TcpListener, serve};
/// use pikake::select;
/// use pikake::signal::ctrl_c;
///
/// async fn server() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:7000").await?;
///     select! {
///         end = serve(listener, 100, |_, _| async {}) => end.map(drop),
///         told = ctrl_c() => told,
///     }
/// }
/// # drop(server);
/// ```
///
/// # Cancellation
///
/// The wait is an interruption point. A drop loses a SIGINT that has arrived.
///
/// # Errors
///
/// As [`Signals::new`]; the interruption.
///
/// # Panics
///
/// When called outside a kernel, or polled outside a task of that kernel.
#[track_caller]
pub fn ctrl_c() -> impl Future<Output = io::Result<()>> {
    let listening = Signals::new([SIGINT]);
    async move {
        let mut signals = listening?;
        poll_fn(|cx| signals.poll_signal(cx)).await.map(drop)
    }
}

/// The attempt that empties the pipe; the bytes have no meaning.
struct Drain([u8; 64]);

impl AsAttempt for Drain {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Read(&mut self.0)
    }

    fn output(&mut self, _: usize) {}

    fn about(&self) -> Option<About> {
        Some(About::new("signal to the process"))
    }
}

/// The future of [`Signals::next`]. Its drop withdraws the wait.
struct Next<'a>(&'a mut Signals);

impl Future for Next<'_> {
    type Output = io::Result<i32>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_signal(cx)
    }
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.0.wait = None;
    }
}

/// An endless stream of signals, which continues after an interruption.
impl Stream for Signals {
    type Item = io::Result<i32>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_signal(cx).map(Some)
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals")
            .field("listening", &self.listening)
            .field("arrived", &self.arrived)
            .finish_non_exhaustive()
    }
}
