//! The calls that suspend, and what is asked of the clock: the page to read first.
//!
//! | call | waits |
//! | --- | --- |
//! | [`sleep`], [`sleep_until`], [`elapse`], [`elapse_until`] | for a moment |
//! | [`yield_now`] | for the task's next step |
//! | [`park`], [`take`] | in a queue, for a signal or for permits |
//! | [`read_wait`], [`write_wait`], [`socket_wait`] | for a socket |
//! | [`future_wait`], [`lookup`] | for what the kernel does not see |
//! | awaiting a [`Task`](crate::Task) | for its end |
//! | [`timeout_after`], [`timeout_at`], [`timed`], [`ignore_after`], [`shield`] | for a future, in a scope |
//!
//! Each but the scopes waits by one [`KernelTrap`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

use crate::attempts::{AsAttempt, IsReady, SocketTrap};
use crate::cause::Asked;
use crate::door;
use crate::interrupt::Interrupted;
#[cfg(doc)]
use crate::interrupt::TimedOut;
use crate::names::TrapKind;
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::scope::futures::{IgnoreAfter, Shield, TimedFuture, Timeout};
use crate::socket::{Addresses, Direction, SocketId};
#[cfg(doc)]
use crate::socket::{Closed, ResourceBusy};
use crate::trap::{KernelTrap, Trap, kernel_trap_at};
use crate::wait::{Until, Wait};

/// Waits at least as long as `length`, counted from the first poll.
///
/// A length of zero waits for nothing, but lets the other ready tasks run first.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// pikake_traps::sleep(std::time::Duration::from_millis(20)).await?;
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the time was up.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep(length: Duration) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, or not at all (but for the other ready tasks) if it has passed.
///
/// # Examples
///
/// A loop that does not drift:
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use pikake_traps::{deadline_after, sleep, sleep_until};
/// use std::time::Duration;
///
/// let soon = deadline_after(Duration::from_millis(250));
/// sleep(Duration::from_millis(200)).await?;
/// sleep_until(soon).await?; // 50 ms, not 250
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the deadline.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep_until(deadline: Deadline) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::At(deadline)), Location::caller())
}

/// Waits at least as long as `length`, counted from the first poll, and is never interrupted.
///
/// For the timers that other libraries ask for, whose output has no room for an error. To the rules
/// of interruption it is a foreign future: code that waits on nothing else when its deadline passes
/// is dropped. In code of your own, [`sleep`].
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_traps::{TimedOut, elapse, timeout_after};
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// elapse(second).await;
/// assert_eq!(timeout_after(second / 2, elapse(second)).await, Err(TimedOut));
/// # });
/// ```
///
/// # Cancellation
///
/// Not an interruption point. Nothing is lost when it is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse(length: Duration) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, and is never interrupted. See [`elapse`].
///
/// # Cancellation
///
/// Not an interruption point. Nothing is lost when it is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse_until(deadline: Deadline) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::At(deadline)), Location::caller())
}

/// Lets every other task that is ready run once.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
#[inline]
pub fn yield_now() -> KernelTrap<YieldTrap> {
    kernel_trap_at(YieldTrap, Location::caller())
}

/// Waits in the queue until woken.
///
/// # Cancellation
///
/// An interruption point. Dropped while it waits, it leaves the queue; dropped after it was woken,
/// it passes the wake on to the next waiter.
///
/// # Errors
///
/// [`Interrupted`], having left the queue.
///
/// # Panics
///
/// Polled outside a task, in another kernel than the one whose tasks already wait here, or while tasks wait here for
/// permits.
#[track_caller]
#[inline]
pub fn park(queue: &WaitQueue) -> KernelTrap<Park<'_>> {
    park_at(queue, Location::caller())
}

/// [`park`], reported as awaited at `place`.
#[inline]
pub fn park_at<'a>(
    queue: &'a WaitQueue,
    place: &'static Location<'static>,
) -> KernelTrap<Park<'a>> {
    kernel_trap_at(Park { queue }, place)
}

/// Waits in the queue until so many of its permits are free and nobody who came earlier waits, and takes
/// them. They are to be [given](WaitQueue::give) back.
///
/// # Cancellation
///
/// An interruption point. Dropped while it waits, it leaves the queue; permits that were granted to it go
/// to those that wait behind it.
///
/// # Errors
///
/// [`Interrupted`], without permits.
///
/// # Panics
///
/// As for [`park`], or while tasks wait here for a signal.
#[track_caller]
#[inline]
pub fn take(queue: &WaitQueue, count: usize) -> KernelTrap<TakeTrap<'_>> {
    take_at(queue, count, Location::caller())
}

/// [`take`], reported as awaited at `place`.
#[inline]
pub fn take_at<'a>(
    queue: &'a WaitQueue,
    count: usize,
    place: &'static Location<'static>,
) -> KernelTrap<TakeTrap<'a>> {
    kernel_trap_at(TakeTrap { queue, count }, place)
}

/// Waits until an attempt to read, to receive or to accept is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], [`ResourceBusy`] or [`Closed`], each inside an [`io::Error`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn read_wait(socket: SocketId) -> KernelTrap<SocketTrap<IsReady>> {
    socket_wait(socket, IsReady(Direction::Read))
}

/// Waits until an attempt to write, to send or to finish connecting is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// As for [`read_wait`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn write_wait(socket: SocketId) -> KernelTrap<SocketTrap<IsReady>> {
    socket_wait(socket, IsReady(Direction::Write))
}

/// Attempts something on a socket until it can be done, waiting in between.
///
/// # Cancellation
///
/// An interruption point wherever it waits. An attempt that succeeded is never interrupted.
///
/// # Errors
///
/// What the attempt reports, and what [`read_wait`] does.
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
#[inline]
pub fn socket_wait<A: AsAttempt>(socket: SocketId, attempt: A) -> KernelTrap<SocketTrap<A>> {
    kernel_trap_at(SocketTrap::new(socket, attempt), Location::caller())
}

/// Awaits a future of another library as a trap: visible to the kernel, and interruptible.
///
/// The future is polled first, so its output wins over an interruption of the same moment. By
/// value the future is dropped with the wait; pass `pin!(future).as_mut()` or `&mut future` to
/// keep it.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use std::future::ready;
///
/// assert_eq!(pikake_traps::future_wait(ready(7)).await?, 7);
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. What is lost when the future is dropped is for its library to say.
///
/// # Errors
///
/// [`Interrupted`], while the future was still pending.
///
/// # Panics
///
/// When the future is pending and this is polled outside a task of a kernel.
#[track_caller]
pub fn future_wait<F: Future>(future: F) -> FutureWait<F> {
    future_wait_at(future, Location::caller())
}

/// [`future_wait`], reported as awaited at `place`.
pub fn future_wait_at<F: Future>(future: F, place: &'static Location<'static>) -> FutureWait<F> {
    foreign_wait_at(future, TrapKind::FutureWait, place)
}

/// [`future_wait`], reported as awaited at `place`, in a trap of another name.
pub fn foreign_wait_at<F: Future>(
    future: F,
    kind: TrapKind,
    place: &'static Location<'static>,
) -> FutureWait<F> {
    FutureWait { future, trap: kernel_trap_at(ForeignTrap::new(kind), place) }
}

/// Awaits a foreign future as if it stood here by itself, and has listings show the wait at `place`.
///
/// For what must not be interrupted on the way; elsewhere [`future_wait`] is better. A future that asks
/// for traps is shown by those. What is polled with a combinator's waker is not shown.
pub async fn shown_at<F: Future>(future: F, place: &'static Location<'static>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            door::try_with_task(|_, task| {
                if task.owns(cx.waker()) && task.last_wait().is_none() {
                    task.set_wait(TrapKind::FutureWait, place);
                }
            });
        }
        polled
    })
    .await
}

/// Looks up the addresses of a host name, in the order in which they are to be tried.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// What the system's resolver reports, or that the wait was interrupted.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn lookup(host: &str, port: u16) -> impl Future<Output = Addresses> + use<> {
    lookup_at(host, port, Location::caller())
}

/// [`lookup`], reported as awaited at `place`.
///
/// # Errors
///
/// As for [`lookup`].
pub fn lookup_at(
    host: &str,
    port: u16,
    place: &'static Location<'static>,
) -> impl Future<Output = Addresses> + use<> {
    let host = host.to_owned();
    async move {
        let (reply, replied) = Reply::channel();
        door::with(|local| local.kernel().outside().lookup(&host, port, reply));
        match foreign_wait_at(replied, TrapKind::Lookup, place).await? {
            Some(addresses) => addresses,
            None => Err(io::Error::other(format!("the lookup of {host} was given up"))),
        }
    }
}

/// Runs a future with a deadline, counted from the first poll.
///
/// When the deadline passes, the await that the future sits in returns
/// [`Interrupted`](crate::Interrupted). The future may clean up, awaiting if it must; when it is
/// done, this returns [`TimedOut`] and drops its output. A future that ends before it was told is
/// not too late: its output is returned. A future that waits on nothing but foreign futures cannot
/// be told, and is dropped.
///
/// Deadlines nest to any depth. The scope whose deadline it was reports `TimedOut`; those inside
/// see an interruption that is not theirs, and those outside see nothing unless it is returned to
/// them.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake_traps::{TimedOut, sleep, timeout_after};
/// use std::time::Duration;
///
/// let nap = sleep(Duration::from_secs(60));
/// assert_eq!(timeout_after(Duration::from_millis(10), nap).await, Err(TimedOut));
/// # }
/// # pikake_sim::example(example());
/// ```
///
/// # Cancellation
///
/// Passes on interruptions of the task and of scopes further out: they arrive inside the future.
/// Dropped, it drops the future.
///
/// # Errors
///
/// [`TimedOut`].
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn timeout_after<F: Future>(length: Duration, future: F) -> Timeout<F> {
    Timeout::new(Until::After(length), future)
}

/// Runs a future with a deadline at a moment. See [`timeout_after`].
///
/// # Errors
///
/// [`TimedOut`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn timeout_at<F: Future>(deadline: Deadline, future: F) -> Timeout<F> {
    Timeout::new(Until::At(deadline), future)
}

/// Runs a future with a deadline, and tells both what it returned and whether it was too late.
///
/// As [`timeout_after`], but nothing is dropped that the future returned.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake_traps::{sleep, timed};
/// use std::time::Duration;
///
/// let timed = timed(Duration::from_millis(10), async {
///     match sleep(Duration::from_secs(60)).await {
///         Ok(()) => "all of it",
///         Err(_) => "as far as we got",
///     }
/// });
/// let timed = timed.await;
/// assert!(timed.expired);
/// assert_eq!(timed.output, Some("as far as we got"));
/// # }
/// # pikake_sim::example(example());
/// ```
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn timed<F: Future>(length: Duration, future: F) -> TimedFuture<F> {
    TimedFuture::new(Until::After(length), future)
}

/// Runs a future with a deadline, and gives nothing if it was too late.
///
/// As [`timeout_after`], for those who do not mind.
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn ignore_after<F: Future>(length: Duration, future: F) -> IgnoreAfter<F> {
    IgnoreAfter::new(Until::After(length), future)
}

/// Runs a future to its end before anything from outside interrupts its task.
///
/// Cancels, and deadlines of scopes around it, are held back while the future is being polled. They
/// are due at the first wait after it that would suspend. Deadlines set inside do their work as
/// ever. Shields may nest. Neither [`Task::abort`](crate::Task::abort) nor the end of a kernel's
/// grace knows of shields.
///
/// # Examples
///
/// ```
/// # async fn close() -> Result<(), pikake_traps::Interrupted> { Ok(()) }
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// pikake_traps::shield(close()).await?; // is done, or fails, but is not interrupted
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Not an interruption point. Dropped, it drops the future.
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn shield<F: Future>(future: F) -> Shield<F> {
    Shield::new(future)
}

/// Collects an interruption that is due to the current task here, if there is one.
///
/// For straight-line code that wants to know before it goes on. What this returned, no wait returns
/// any more. Inside a shield, what comes from outside of it is not due.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn check_interrupt() -> Result<(), Interrupted> {
    door::with(|_| ());
    let due = door::try_with_task(|local, task| local.due(task, &Asked::new(local.branch())));
    due.flatten().map_or(Ok(()), Err)
}

/// The interruption that [`check_interrupt`] would return, left where it is.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn pending_interrupt() -> Option<Interrupted> {
    door::with(|_| ());
    door::try_with_task(|local, task| local.peek_due(task)).flatten()
}

/// A fresh reading of the kernel's clock.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn now() -> Ticks {
    door::with(|local| local.kernel().now())
}

/// How the ticks of the kernel's clock relate to durations.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn clock_rate() -> Rate {
    door::with(|local| local.kernel().rate())
}

/// How long it is since `earlier`, a reading of the same kernel's clock; rounded down.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn elapsed_since(earlier: Ticks) -> Duration {
    let (now, rate) = door::with(|local| (local.kernel().now(), local.kernel().rate()));
    rate.duration_floor(now.since(earlier))
}

/// The moment that is `length` from now, rounded up to the next tick.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn deadline_after(length: Duration) -> Deadline {
    let (now, rate) = door::with(|local| (local.kernel().now(), local.kernel().rate()));
    Deadline::at(now.saturating_add(rate.ticks_ceil(length)))
}

/// Has the kernel let other threads run once before it sleeps, should it have nothing else to do.
///
/// For waits on another thread that is about to have something more: to be put to sleep and woken
/// for each single thing costs more than all the rest. Outside a kernel, nothing happens.
pub fn yield_thread_before_sleep() {
    door::try_with(|local| local.kernel().outside().yield_thread_before_sleep());
}

/// The trap that waits for a moment. See [`sleep`] and [`sleep_until`].
#[derive(Debug)]
pub struct SleepTrap {
    until: Until,
}

impl SleepTrap {
    /// Waits so long.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for SleepTrap {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Sleep(self.until)
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// The trap that waits for a moment and cannot be interrupted. See [`elapse`].
#[derive(Debug)]
pub struct ElapseTrap {
    until: Until,
}

impl ElapseTrap {
    /// Waits so long.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for ElapseTrap {
    type Answer = ();
    type Given = ();

    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Elapse(self.until)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) {
        debug_assert!(result.is_ok(), "an uninterruptible wait is told of no cause");
    }
}

/// The trap that goes to the end of the ready queue. See [`yield_now`].
#[derive(Debug)]
pub struct YieldTrap;

impl Trap for YieldTrap {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline(always)]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Yield
    }

    #[inline(always)]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// The trap that waits in a [`WaitQueue`]. See [`park`].
#[derive(Debug)]
pub struct Park<'a> {
    queue: &'a WaitQueue,
}

impl Trap for Park<'_> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Park(self.queue)
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// The trap that takes permits of a [`WaitQueue`]. See [`take`].
#[derive(Debug)]
pub struct TakeTrap<'a> {
    queue: &'a WaitQueue,
    count: usize,
}

impl Trap for TakeTrap<'_> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Take(self.queue, self.count)
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn left(&mut self) {
        self.queue.recover();
        self.queue.serve();
    }
}

/// The trap that makes a wait on something foreign visible. See [`future_wait`].
#[derive(Debug)]
pub struct ForeignTrap {
    kind: TrapKind,
}

impl ForeignTrap {
    /// A wait for something whose waker is called by somebody else than the kernel; polled again, it
    /// answers only if it is interrupted.
    pub fn new(kind: TrapKind) -> Self {
        Self { kind }
    }
}

impl Trap for ForeignTrap {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Foreign(self.kind)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

pin_project_lite::pin_project! {
    /// The future of [`future_wait`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct FutureWait<F> {
        #[pin]
        future: F,
        trap: KernelTrap<ForeignTrap>,
    }
}

impl<F> fmt::Debug for FutureWait<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureWait").field("trap", &self.trap).finish_non_exhaustive()
    }
}

impl<F: Future> Future for FutureWait<F> {
    type Output = Result<F::Output, Interrupted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.as_mut().poll(cx) {
            this.trap.satisfied();
            return Poll::Ready(Ok(output));
        }
        match Pin::new(&mut *this.trap).poll(cx) {
            Poll::Ready(Err(interrupted)) => Poll::Ready(Err(interrupted)),
            // The future is polled when its waker is called, and then it may be ready.
            _ => Poll::Pending,
        }
    }
}
