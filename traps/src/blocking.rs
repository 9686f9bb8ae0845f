//! Closures that block, on other threads.
//!
//! A closure goes to its thread as a [`BlockingCall`], and what it returns comes back as a
//! [`Reply`]. Who gives up waiting takes the closure back if it has not been
//! started, so that a call either never runs or is told to stop:
//!
//! ```text
//!             (1)                 (2)               (3)
//!   New ────────────▶ in line ────────▶ running ──────────▶ replied
//!                        │                 │
//!                        │ (4)             │ (5)
//!                        ▼                 ▼
//!                    withdrawn        told to stop; runs on, its result is dropped there
//! ```
//!
//! (1) the first poll of [`Blocking`]. (2) [`BlockingCall::run_on`]. (3) the end of the closure. (4), (5)
//! [`Blocking::give_up`]: the wait is interrupted, or its future dropped.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::thread;

use crate::blocking_call::BlockingCall;
use crate::calls::{FutureWait, check_interrupt, foreign_wait_at};
use crate::catch::catch_and_log;
use crate::door;
use crate::interrupt::{Interrupted, Panic, TaskError};
use crate::names::TrapKind;
use crate::reply::{Replied, Reply};
use crate::threads::{AtomicBool, Mutex, Ordering};

/// Tells a closure on another thread that nobody waits for it any more. Clone it freely.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Whether the task that waited for the closure was interrupted or has dropped the wait. Once
    /// true, it stays so.
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
/// A kernel has so many helper threads at most, 64 unless its builder was told otherwise. When all
/// are busy, closures wait their turn, first come, first served.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::TaskError> {
/// let text = pikake_traps::blocking(|| std::fs::read_to_string("/etc/hostname")).await?;
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point, always: one that is pending already is told, and the closure is not
/// started. The caller goes on at once. A closure that waits its turn is dropped, by the caller, and
/// never run. One that was started runs to its end on its thread, which is not free for another one
/// before that; its result is dropped there. It can be told to stop: see [`blocking_with`] and
/// [`Blocking::on_cancel`]. The same when this is dropped while it waits.
///
/// # Kernel end
///
/// A kernel never waits for a helper thread. When it is shut down it interrupts the tasks that wait,
/// with the consequences above; a closure that was started runs on, detached, until it or the
/// process ends.
///
/// # Errors
///
/// [`TaskError::Interrupted`]; [`TaskError::Panicked`] with what the closure panicked with;
/// [`TaskError::Cancelled`] when no thread could be started for it.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn blocking<F, R>(work: F) -> Blocking<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    blocking_with(|_| work())
}

/// As [`blocking`], with a flag that tells the closure when nobody waits for it any more.
///
/// # Examples
///
/// ```no_run
/// # fn next_guess(n: u64) -> Option<u64> { None }
/// # async fn example() -> Result<(), pikake_traps::TaskError> {
/// let found = pikake_traps::blocking_with(|cancel| {
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
    let submit = |job| door::with(|local| local.kernel().outside().blocking(job));
    blocking_on(submit, |(), cancel| work(cancel))
}

/// As [`blocking_with`], on a thread of the caller's: for those who build on threads of their own.
///
/// `submit` is called in the task, at the first poll, to hand the job over. A job that it drops is
/// reported as [`TaskError::Cancelled`].
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
    let start = move |flag, place| begin(submit, work, flag, place);
    let state = State::New(Box::new(start));
    Blocking { state, flag: CancelFlag::default(), on_cancel: None, place: Location::caller() }
}

/// Hands the closure over.
pub(crate) fn begin<T, F, R>(
    submit: impl FnOnce(BlockingCall<T>),
    work: F,
    flag: CancelFlag,
    place: &'static Location<'static>,
) -> Started<R>
where
    T: ?Sized + 'static,
    F: FnOnce(&mut T, &CancelFlag) -> R + Send + 'static,
    R: Send + 'static,
{
    let (reply, replied) = Reply::channel();
    let work = Arc::new(Mutex::new(Some(work)));
    let withdraw = {
        let work = work.clone();
        // What is taken back is dropped by the caller, outside of the lock.
        move || take(&work).is_some()
    };
    let job = BlockingCall::new(reply, move |what: &mut T| {
        let work = take(&work)?;
        Some(catch_unwind(AssertUnwindSafe(|| work(what, &flag))))
    });
    submit(job.awaited_at(place));
    Started {
        wait: foreign_wait_at(replied, TrapKind::Blocking, place),
        withdraw: Box::new(withdraw),
    }
}

fn take<F>(work: &Mutex<Option<F>>) -> Option<F> {
    // Nobody's code runs under the lock, so a poisoned one is whole all the same.
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// `None`: the closure was taken back.
pub(crate) type Returned<R> = Option<thread::Result<R>>;

pub(crate) struct Started<R> {
    pub(crate) wait: FutureWait<Replied<Returned<R>>>,
    /// Takes the closure back and drops it; `false`: it has been started.
    pub(crate) withdraw: Box<dyn FnOnce() -> bool>,
}

/// Sends the closure; with the place where it is awaited.
type Start<R> = Box<dyn FnOnce(CancelFlag, &'static Location<'static>) -> Started<R>>;

enum State<R> {
    New(Start<R>),
    Waiting(Started<R>),
    Finished,
}

/// The future of [`blocking`] and its like.
#[must_use = "a future does nothing until it is awaited: the closure is not even sent"]
pub struct Blocking<R> {
    state: State<R>,
    flag: CancelFlag,
    on_cancel: Option<Box<dyn FnOnce()>>,
    place: &'static Location<'static>,
}

impl<R> Blocking<R> {
    /// Has `hook` called when the closure has been started and the wait for it is given up: it was
    /// interrupted, or this future is dropped.
    ///
    /// The hook is to make the closure's blocking call return, as by shutting down the socket that
    /// it reads from. It is called on the task's thread, by the task, before the interruption is
    /// returned, so it must not block. The closure may have come to its end in the same moment. A
    /// panic of the hook is logged. Of several hooks the last one counts.
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
    /// let answer = pikake_traps::blocking(move || {
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

    /// Has the wait reported as awaited at `place`. For those who call this on somebody's behalf,
    /// before the first poll.
    pub fn awaited_at(mut self, place: &'static Location<'static>) -> Self {
        self.place = place;
        self
    }

    fn start(&mut self, start: Start<R>) -> Result<(), Interrupted> {
        match door::try_with(|local| local.polled().is_some()) {
            Some(true) => {}
            Some(false) => door::outside_a_task(TrapKind::Blocking, self.place),
            None => door::outside(&format!("the trap `{}`", TrapKind::Blocking), self.place),
        }
        check_interrupt()?;
        self.state = State::Waiting(start(self.flag.clone(), self.place));
        Ok(())
    }

    fn give_up(&mut self) {
        let State::Waiting(started) = std::mem::replace(&mut self.state, State::Finished) else {
            return;
        };
        let Started { wait, withdraw } = started;
        self.flag.cancel();
        let is_withdrawn = withdraw();
        // From now on the job counts as unwanted.
        drop(wait);
        if !is_withdrawn && let Some(hook) = self.on_cancel.take() {
            catch_and_log("the hook of a closure that was cancelled", hook);
        }
    }
}

impl<R> Unpin for Blocking<R> {}

impl<R> Future for Blocking<R> {
    type Output = Result<R, TaskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New(_) = this.state
            && let State::New(start) = std::mem::replace(&mut this.state, State::Finished)
            && let Err(interrupted) = this.start(start)
        {
            return Poll::Ready(Err(TaskError::Interrupted(interrupted)));
        }
        let State::Waiting(started) = &mut this.state else {
            panic!("a blocking call (at {}) was polled after it had given its result", this.place)
        };
        let result = match Pin::new(&mut started.wait).poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(interrupted)) => {
                this.give_up();
                return Poll::Ready(Err(TaskError::Interrupted(interrupted)));
            }
            Poll::Ready(Ok(replied)) => match replied.flatten() {
                Some(Ok(value)) => Ok(value),
                Some(Err(panic)) => Err(TaskError::Panicked(Panic::new(panic))),
                None => Err(TaskError::Cancelled(Interrupted::cancelled(
                    "no thread was there to run the closure",
                ))),
            },
        };
        this.state = State::Finished;
        Poll::Ready(result)
    }
}

impl<R> Drop for Blocking<R> {
    fn drop(&mut self) {
        self.give_up();
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
