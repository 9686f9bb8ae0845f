//! The trap `blocking`: closures that block, on other threads.
//!
//! A closure goes to its thread as a [`BlockingCall`], and its result comes back as a [`Reply`]. A
//! caller that stops waiting withdraws the closure, or, if it has started, sets its cancel flag:
//!
//! ```text
//!             (1)                (2)               (3)
//!   New ────────────▶ queued ────────▶ running ──────────▶ replied
//!                        │                │
//!                        │ (4)            │ (5)
//!                        ▼                ▼
//!                    withdrawn        cancelled: runs on, its thread drops the result
//! ```
//!
//! (1) the first poll of [`Blocking`]. (2) [`BlockingCall::run_on`]. (3) the end of the closure.
//! (4), (5)
//! [`Blocking::cancel_call`]: the wait is interrupted, or its future dropped.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use super::foreign::{FutureWait, foreign_wait, shortened};
use crate::blocking_call::BlockingCall;
use crate::catch::catch_and_log;
use crate::door;
use crate::interrupt::{Interrupted, Panic, TaskError};
use crate::kind::TrapName;
use crate::reply::{Replied, Reply};
use crate::scope::calls::check_interrupt;
use crate::seen::About;
use crate::threads::{AtomicBool, Mutex, Ordering};

static NAME: TrapName = TrapName::new("blocking");

/// Shows a closure on another thread that no task waits for its result any more. Clone the flag
/// freely.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Whether the wait for the closure was interrupted or dropped. The flag is never cleared.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl fmt::Debug for CancelFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelFlag").field(&self.is_cancelled()).finish()
    }
}

/// Runs a closure that blocks on one of the kernel's helper threads.
///
/// A kernel has at most 64 helper threads, unless its builder sets another limit. When all are
/// busy, closures wait in a first-in, first-out queue.
///
/// # Examples
///
/// ```
/// use pikake::TaskError;
/// use pikake::thread::run_in_thread;
///
/// # async fn example() -> Result<(), TaskError> {
/// let text = run_in_thread(|| std::fs::read_to_string("/etc/hostname")).await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Always an interruption point. If an interruption is pending at the first poll, the closure is
/// not sent. An interrupted or dropped wait does not wait for the closure. The caller drops a
/// queued closure. A closure that has started runs to its end on its thread, which then drops the
/// result. To stop such a closure, see [`blocking_with`] and [`Blocking::on_cancel`].
///
/// # Kernel end
///
/// A kernel never waits for a helper thread. Its shutdown interrupts the waiting tasks, with the
/// consequences above. A closure that has started runs on, detached, until the closure or the
/// process ends.
///
/// # Errors
///
/// [`TaskError::Interrupted`]; [`TaskError::Panicked`] with the closure's panic;
/// [`TaskError::Cancelled`] when no thread could be started.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[doc(alias("spawn_blocking", "block_in_place"))]
#[track_caller]
pub fn blocking<F, R>(work: F) -> Blocking<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    blocking_named(|(), _| work(), type_name::<F>())
}

/// As [`blocking`], with a flag that shows the closure when no task waits for its result any more.
///
/// # Examples
///
/// ```no_run
/// # fn next_guess(n: u64) -> Option<u64> { None }
/// # async fn example() -> Result<(), pikake::TaskError> {
/// let found = pikake::thread::run_in_thread_with(|cancel| {
///     (0..).take_while(|_| !cancel.is_cancelled()).find_map(next_guess)
/// });
/// let found = found.await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`blocking`].
///
/// # Panics
///
/// As [`blocking`].
#[track_caller]
pub fn blocking_with<F, R>(work: F) -> Blocking<R>
where
    F: FnOnce(&CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    blocking_named(|(), cancel| work(cancel), type_name::<F>())
}

/// [`blocking_with`], with the name that listings show.
#[track_caller]
fn blocking_named<F, R>(work: F, name: &'static str) -> Blocking<R>
where
    F: FnOnce(&mut (), &CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    let submit = |call| door::with(|local| local.kernel().outside().blocking(call));
    submit_named(submit, work, name)
}

/// As [`blocking_with`], on a thread that the caller chooses. For libraries with threads of their
/// own.
///
/// The first poll calls `submit`, in the task, to hand over the call. If `submit` drops the call,
/// the result is [`TaskError::Cancelled`].
///
/// # Errors
///
/// As [`blocking`].
///
/// # Panics
///
/// As [`blocking`].
#[track_caller]
pub fn blocking_on<T, F, R>(submit: impl FnOnce(BlockingCall<T>) + 'static, work: F) -> Blocking<R>
where
    T: ?Sized + 'static,
    F: FnOnce(&mut T, &CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    submit_named(submit, work, type_name::<F>())
}

#[track_caller]
fn submit_named<T, F, R>(
    submit: impl FnOnce(BlockingCall<T>) + 'static,
    work: F,
    name: &'static str,
) -> Blocking<R>
where
    T: ?Sized + 'static,
    F: FnOnce(&mut T, &CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    let start = move |flag, place| begin(submit, work, flag, name, place);
    let state = State::New(Box::new(start));
    Blocking { state, flag: CancelFlag::default(), on_cancel: None, place: Location::caller() }
}

/// Submits the closure.
pub(crate) fn begin<T, F, R>(
    submit: impl FnOnce(BlockingCall<T>),
    work: F,
    flag: CancelFlag,
    name: &'static str,
    place: &'static Location<'static>,
) -> Started<R>
where
    T: ?Sized + 'static,
    F: FnOnce(&mut T, &CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    let (reply, replied) = Reply::channel();
    let work = Arc::new(Mutex::new(Some(work)));
    let kept: Arc<dyn Work> = work.clone();
    let call = BlockingCall::new(reply, move |what: &mut T| {
        let work = take(&work)?;
        Some(catch_unwind(AssertUnwindSafe(|| work(what, &flag))).map_err(Panic::new))
    });
    submit(call.awaited_at(place));
    let shown = kept.clone();
    let about: Describe = Box::new(move || {
        let state = if shown.is_queued() { "waits for" } else { "runs on" };
        About::new(format!("closure `{}`, which {state} a helper thread", shortened(name)))
    });
    Started { wait: foreign_wait(replied, &NAME, about, place), work: kept }
}

/// A closure for a helper thread, which its caller and the thread share.
pub(crate) trait Work {
    /// Withdraws the closure and drops it; `false`: the closure has started.
    fn withdraw(&self) -> bool;

    /// Whether the closure has not started.
    fn is_queued(&self) -> bool;
}

impl<F> Work for Mutex<Option<F>> {
    fn withdraw(&self) -> bool {
        // The withdrawn closure is dropped here, outside of the lock.
        take(self).is_some()
    }

    fn is_queued(&self) -> bool {
        self.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

fn take<F>(work: &Mutex<Option<F>>) -> Option<F> {
    // No user code runs under the lock, so the closure behind a poisoned lock is whole.
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Describes the closure for listings.
type Describe = Box<dyn Fn() -> About>;

/// `None`: the closure was withdrawn.
pub(crate) type Returned<R> = Option<Result<R, Panic>>;

pub(crate) struct Started<R> {
    pub(crate) wait: FutureWait<Replied<Returned<R>>, Describe>,
    pub(crate) work: Arc<dyn Work>,
}

/// Submits the closure, with the place of the await.
type Start<R> = Box<dyn FnOnce(CancelFlag, &'static Location<'static>) -> Started<R>>;

enum State<R> {
    New(Start<R>),
    Waiting(Started<R>),
    Finished,
}

/// The future of [`blocking`], [`blocking_with`] and [`blocking_on`].
#[must_use = "a future does nothing until it is awaited, and sends no closure"]
pub struct Blocking<R> {
    state: State<R>,
    flag: CancelFlag,
    on_cancel: Option<Box<dyn FnOnce()>>,
    place: &'static Location<'static>,
}

impl<R> Blocking<R> {
    /// Sets a hook that is called when the wait for a started closure is interrupted or dropped.
    ///
    /// The hook makes the closure's blocking call return, for example by a shutdown of the socket
    /// that the closure reads from. The task calls the hook on its own thread before it returns the
    /// interruption, so the hook must not block. The closure may have ended in the same moment. A
    /// panic of the hook is logged. A second hook replaces the first.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Read;
    /// use std::net::{Shutdown, TcpStream};
    ///
    /// let mut stream = TcpStream::connect("localhost:79")?;
    /// let stop = stream.try_clone()?;
    /// let answer = pikake::thread::run_in_thread(move || {
    ///     let mut answer = String::new();
    ///     stream.read_to_string(&mut answer).map(|_| answer)
    /// })
    /// .on_cancel(move || drop(stop.shutdown(Shutdown::Both)));
    /// println!("{}", answer.await??);
    /// # Ok(()) }
    /// ```
    pub fn on_cancel(mut self, hook: impl FnOnce() + 'static) -> Self {
        self.on_cancel = Some(Box::new(hook));
        self
    }

    /// Sets the place that is reported for the wait, before the first poll. For libraries.
    pub fn awaited_at(mut self, place: &'static Location<'static>) -> Self {
        self.place = place;
        self
    }

    #[track_caller]
    fn start(&mut self, start: Start<R>) -> Result<(), Interrupted> {
        match door::try_with(|local| local.step.is_going_on()) {
            Some(true) => {}
            Some(false) => door::panic_outside_task(&self.what()),
            None => door::panic_outside_kernel(&self.what()),
        }
        check_interrupt()?;
        self.state = State::Waiting(start(self.flag.clone(), self.place));
        Ok(())
    }

    fn what(&self) -> String {
        format!("the trap `{}` (at {})", NAME.text(), self.place)
    }

    fn cancel_call(&mut self) {
        let State::Waiting(started) = std::mem::replace(&mut self.state, State::Finished) else {
            return;
        };
        let Started { wait, work } = started;
        self.flag.cancel();
        let is_withdrawn = work.withdraw();
        // From now on the call counts as unwanted.
        drop(wait);
        if is_withdrawn {
            return;
        }
        if let Some(hook) = self.on_cancel.take() {
            catch_and_log("the hook of a closure that was cancelled", hook);
        }
    }
}

impl<R> Unpin for Blocking<R> {}

impl<R> Future for Blocking<R> {
    type Output = Result<R, TaskError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New(_) = this.state {
            if let State::New(start) = std::mem::replace(&mut this.state, State::Finished) {
                if let Err(interrupted) = this.start(start) {
                    return Poll::Ready(Err(TaskError::Interrupted(interrupted)));
                }
            }
        }
        let State::Waiting(started) = &mut this.state else {
            panic!("a blocking call (at {}) was polled after it had given its result", this.place)
        };
        let result = match Pin::new(&mut started.wait).poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(interrupted)) => {
                this.cancel_call();
                return Poll::Ready(Err(TaskError::Interrupted(interrupted)));
            }
            Poll::Ready(Ok(replied)) => match replied.flatten() {
                Some(Ok(value)) => Ok(value),
                Some(Err(panic)) => Err(TaskError::Panicked(panic)),
                None => Err(TaskError::Cancelled(Interrupted::cancelled(
                    "no thread could be started for the closure",
                ))),
            },
        };
        this.state = State::Finished;
        Poll::Ready(result)
    }
}

impl<R> Drop for Blocking<R> {
    fn drop(&mut self) {
        self.cancel_call();
    }
}

impl<R> fmt::Debug for Blocking<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New(_) => "new",
            State::Waiting(_) => "waiting",
            State::Finished => "finished",
        };
        f.debug_struct("Blocking")
            .field("state", &state)
            .field("awaited_at", &format_args!("{}", self.place))
            .finish_non_exhaustive()
    }
}
