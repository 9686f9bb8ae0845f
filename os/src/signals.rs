//! Signals as they come.
//!
//! A signal handler may do next to nothing. This one sets a flag for each signal and writes a byte to
//! a pipe; the kernel has adopted the pipe's other end and waits for it as for a socket. So no thread
//! is needed, and a kernel that sleeps is woken. What is told is the flag: a signal that came again
//! before it was asked for is told once, as the system itself does with a signal that is pending.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pikake_traps::{AsAttempt, Attempt, Closed, KernelTrap, SocketTrap, kernel_trap_at, system};
use signal_hook::consts::FORBIDDEN;
use signal_hook::iterator::backend::{Handle, SignalDelivery};
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::signal_name;

use crate::adopted::Adopted;
use crate::default_action::{Listening, keep};

/// The highest number of a signal on any system that there is.
const MAX_SIGNAL: i32 = 64;

/// Signals that are listened to, by no kernel yet.
pub(crate) struct Heard {
    /// `None` if somebody else sees to it. Dropped first: who is not told has the default action.
    listening: Option<Listening>,
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// The pipe's end that is to be adopted.
    awake: UnixStream,
}

impl Heard {
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
        // In an order in which a signal has its default action until it is heard.
        keep(signals);
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        let listening = Some(Listening::to(signals));
        Ok(Self { listening, delivery, awake })
    }

    /// What ends the listening from outside.
    pub(crate) fn handle(&self) -> Handle {
        self.delivery.handle()
    }

    /// What keeps the signals from their default action.
    pub(crate) fn take_listening(&mut self) -> Option<Listening> {
        self.listening.take()
    }

    /// Has the current kernel wait for the signals.
    pub(crate) fn adopt(self) -> io::Result<Signals> {
        let Self { listening, delivery, awake } = self;
        let awake = Adopted::new(awake.into())?;
        let (handle, arrived) = (delivery.handle(), VecDeque::new());
        let place = Location::caller();
        Ok(Signals { listening, delivery, handle, awake, arrived, wait: None, place })
    }
}

/// Signals as they come, one after the other; also a stream of them.
///
/// Each listener has all its signals told, however many there are. A signal that comes again before
/// the last one of its kind was asked for is told once. The default action does not happen while
/// somebody listens, and happens again when nobody does; a signal that the process was started with
/// as ignored is ignored again.
///
/// Signals are the process's: a handler is installed, for good. One that was there before is called
/// as well.
///
/// # Examples
///
/// See the [module](crate::signal).
#[must_use = "signals that nobody listens to have their default action"]
pub struct Signals {
    /// Dropped first: who is not told has the default action.
    listening: Option<Listening>,
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Tells when somebody has ended the listening.
    handle: Handle,
    awake: Adopted,
    /// Those that have come and were not told yet.
    arrived: VecDeque<i32>,
    /// Of the stream, between its polls.
    wait: Option<KernelTrap<SocketTrap<Drain>>>,
    place: &'static Location<'static>,
}

impl Signals {
    /// Listens to some signals from now on.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), for a number that is no signal or one that the
    /// system lets nobody handle, as SIGKILL; [`Unsupported`](io::ErrorKind::Unsupported), in a
    /// simulation; else the system's.
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
        Heard::new(&signals)?.adopt().map(|signals| Self { place, ..signals })
    }

    /// Waits for the next signal and gives its number.
    ///
    /// # Cancellation
    ///
    /// An interruption point while none has come. Dropped or interrupted, no signal is lost.
    ///
    /// # Errors
    ///
    /// The interruption.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of the kernel that it was made in.
    #[expect(
        clippy::should_implement_trait,
        reason = "it is what one waits for; streams have it, too"
    )]
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = io::Result<i32>> {
        self.wait = None;
        self.place = Location::caller();
        Next(self)
    }

    /// A signal that has come, if there is one. Never suspends.
    pub fn try_next(&mut self) -> Option<i32> {
        if self.arrived.is_empty() {
            self.arrived.extend(self.delivery.pending());
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

/// Takes from the pipe what nobody looks at.
struct Drain([u8; 64]);

impl AsAttempt for Drain {
    type Output = ();

    fn attempt(&mut self) -> Attempt<'_> {
        Attempt::Read(&mut self.0)
    }

    fn output(&mut self, _: usize) {}
}

/// The future of [`Signals::next`]. It takes its wait back when it is dropped.
struct Next<'a>(&'a mut Signals);

impl Future for Next<'_> {
    type Output = io::Result<i32>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_signal(cx)
    }
}

impl Drop for Next<'_> {
    fn drop(&mut self) {
        self.0.wait = None;
    }
}

/// The signals as they come. It has no end; after an interruption it goes on.
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
