//! The calls that suspend, and readings of the clock: the page to read first.
//!
//! | call | waits |
//! | --- | --- |
//! | [`sleep`], [`sleep_until`], [`elapse`], [`elapse_until`] | for a moment |
//! | [`yield_now`] | for the task's next step |
//! | [`park`], [`take`] | in a queue, for a signal or for permits |
//! | [`read_wait`], [`write_wait`], [`socket_wait`] | for a socket |
//! | [`future_wait`], [`lookup`] | for an event that the kernel does not see |
//! | awaiting a [`Task`](crate::Task) | for its end |
//! | [`timeout_after`], [`timeout_at`], [`timed`], [`ignore_after`], [`shield`] | for a future, in a scope |
//!
//! Each call but the scopes waits by one [`KernelTrap`].

use std::any::type_name;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

use crate::attempts::{AsAttempt, IsReady, SocketTrap};
use crate::blocking::Work;
use crate::cause::Query;
use crate::cell::flags::Flags;
use crate::door;
use crate::interrupt::Interrupted;
use crate::names::{KernelId, TrapKind};
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::scope::futures::{IgnoreAfter, Shield, TimedFuture, Timeout};
use crate::seen::About;
use crate::socket::{Addresses, Direction, SocketId};
use crate::trap::{KernelTrap, Trap, kernel_trap_at};
use crate::wait::{Until, Wait};

/// Waits at least as long as `length`, counted from the first poll.
///
/// A length of zero lets the other ready tasks run first.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, sleep};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), Interrupted> {
/// sleep(Duration::from_millis(20)).await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the length has passed.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep(length: Duration) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, a [`Deadline`] or an [`Instant`](crate::Instant). If that has passed,
/// lets the other ready tasks run first.
///
/// # Examples
///
/// A loop that does not drift:
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use pikake::time::Instant;
/// use pikake::{sleep, sleep_until};
/// use std::time::Duration;
///
/// let soon = Instant::now() + Duration::from_millis(250);
/// sleep(Duration::from_millis(200)).await?;
/// sleep_until(soon).await?; // 50 ms, not 250
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the deadline.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep_until(deadline: impl Into<Deadline>) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::At(deadline.into())), Location::caller())
}

/// Waits at least as long as `length`, counted from the first poll, and is never interrupted.
///
/// For timers of other libraries whose output has no room for an error; elsewhere use [`sleep`].
/// The rules of interruption treat this wait as a foreign future: when a deadline passes, they drop
/// code that waits for nothing else.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::traps::elapse;
/// use pikake::{TimedOut, timeout_after};
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
/// Not an interruption point. Nothing is lost when the future is dropped.
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
/// Not an interruption point. Nothing is lost when the future is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse_until(deadline: impl Into<Deadline>) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::At(deadline.into())), Location::caller())
}

/// Lets every other task that is ready run once.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
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

/// Waits in the queue until [`WaitQueue::wake`] signals the waiter.
///
/// # Cancellation
///
/// An interruption point. The drop of a waiting future leaves the queue. The drop of a signalled
/// future passes the signal on to the next waiter.
///
/// # Errors
///
/// [`Interrupted`]; the wait has left the queue.
///
/// # Panics
///
/// When polled outside a task, in another kernel than that of the queue's waiters, or while tasks
/// wait in the queue for permits.
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

/// Takes `count` permits of the queue, as soon as they are free and no earlier waiter is left.
///
/// Return the permits with [`WaitQueue::give`].
///
/// # Cancellation
///
/// An interruption point. The drop of a waiting future leaves the queue, and passes granted permits
/// on to the waiters behind.
///
/// # Errors
///
/// [`Interrupted`], without permits.
///
/// # Panics
///
/// As for [`park`], or while tasks wait in the queue for a signal.
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
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`], [`ResourceBusy`](crate::ResourceBusy) or [`Closed`](crate::Closed), each inside
/// an [`io::Error`].
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
/// An interruption point. Nothing is lost when the future is dropped.
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

/// Repeats an attempt on a socket until it succeeds or fails, waiting in between.
///
/// # Cancellation
///
/// An interruption point while the attempt would block. An attempt that succeeded is never
/// interrupted.
///
/// # Errors
///
/// The attempt's errors, and those of [`read_wait`].
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
/// The future is polled first, so its output wins over an interruption of the same moment. The wait
/// owns and drops a future that is passed by value; pass `pin!(future).as_mut()` or `&mut future`
/// to keep the future.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use std::future::ready;
///
/// assert_eq!(pikake::future_wait(ready(7)).await?, 7);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. The future's library documents the effects of a drop.
///
/// # Errors
///
/// [`Interrupted`], while the future was still pending.
///
/// # Panics
///
/// When the future is pending, and the poll is outside a task of a kernel.
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
    let trap = ForeignTrap { kind, about: Some(about_future::<F>) };
    FutureWait { future, trap: kernel_trap_at(trap, place) }
}

/// [`foreign_wait_at`], with what listings tell of the wait.
pub(crate) fn foreign_wait_for<F: Future>(
    future: F,
    kind: TrapKind,
    thing: Thing,
    place: &'static Location<'static>,
) -> FutureWait<F, ThingTrap> {
    let trap = ThingTrap { kind, thing };
    FutureWait { future, trap: kernel_trap_at(trap, place) }
}

/// Awaits a foreign future without making it interruptible, and shows the wait in listings at
/// `place`.
///
/// For futures that must not be interrupted; elsewhere [`future_wait`] is better. Listings show a
/// future that awaits traps by these traps, and do not show a future that is polled with a
/// combinator's waker.
pub async fn shown_at<F: Future>(future: F, place: &'static Location<'static>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            door::try_with_task(|local, task| {
                if task.owns(cx.waker()) && task.last_wait().is_none() {
                    task.set_wait(TrapKind::FutureWait, place);
                    if task.flags().has(Flags::INSPECTED) {
                        let about = about_future::<F>();
                        local.note_seen(
                            task,
                            None,
                            (TrapKind::FutureWait, place),
                            (Some(about), None),
                        );
                    }
                }
            });
        }
        polled
    })
    .await
}

/// Looks up the addresses of a host name, in the order in which to try them.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// The error of the system's resolver, or an interruption of the wait.
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
    let host: Arc<str> = host.into();
    async move {
        let (reply, replied) = Reply::channel();
        door::with(|local| local.kernel().outside().lookup(&host, port, reply));
        let thing = Thing::Host(host.clone());
        match foreign_wait_for(replied, TrapKind::Lookup, thing, place).await? {
            Some(addresses) => addresses,
            None => Err(io::Error::other(format!("the kernel dropped the lookup of {host}"))),
        }
    }
}

/// Runs a future with a deadline, counted from the first poll.
///
/// When the deadline passes, the future's current await returns
/// [`Interrupted`](crate::Interrupted). The future may clean up, also by awaiting. When the future
/// is done, the call drops the output and returns [`TimedOut`](crate::TimedOut). If the future ends
/// before one of its waits is interrupted, the call returns the output. A future that waits on
/// foreign futures alone cannot be interrupted, and is dropped.
///
/// Deadlines nest to any depth. The scope of the passed deadline reports `TimedOut`. Scopes inside
/// see an interruption that is not theirs. Scopes outside see nothing unless the program passes the
/// error on.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, TimedOut, sleep, timeout_after};
/// use std::time::Duration;
///
/// async fn transfer() -> Result<(), Interrupted> {
///     if let Err(interrupted) = sleep(Duration::from_secs(60)).await {
///         sleep(Duration::from_millis(5)).await?; // roll back, by awaiting
///         return Err(interrupted);
///     }
///     Ok(())
/// }
///
/// # async fn example() {
/// let limit = Duration::from_millis(10);
/// assert_eq!(timeout_after(limit, transfer()).await, Err(TimedOut));
/// assert_eq!(timeout_after(limit, async { 42 }).await, Ok(42));
/// # }
/// # pikake::sim::example(example());
/// ```
///
/// # Cancellation
///
/// Interruptions of the task and of outer scopes arrive inside the future. The drop of this call
/// drops the future.
///
/// # Errors
///
/// [`TimedOut`](crate::TimedOut).
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
#[track_caller]
pub fn timeout_after<F: Future>(length: Duration, future: F) -> Timeout<F> {
    Timeout::new(Until::After(length), future)
}

/// Runs a future with a deadline at a moment, a [`Deadline`] or an [`Instant`](crate::Instant). See
/// [`timeout_after`].
///
/// # Errors
///
/// [`TimedOut`](crate::TimedOut).
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn timeout_at<F: Future>(deadline: impl Into<Deadline>, future: F) -> Timeout<F> {
    Timeout::new(Until::At(deadline.into()), future)
}

/// Runs a future with a deadline, and returns both its output and whether the deadline interrupted
/// it.
///
/// As [`timeout_after`], but keeps an output that came too late.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake::{sleep, timed};
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
/// # pikake::sim::example(example());
/// ```
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn timed<F: Future>(length: Duration, future: F) -> TimedFuture<F> {
    TimedFuture::new(Until::After(length), future)
}

/// Runs a future with a deadline, and returns `None` if the deadline interrupted it.
///
/// As [`timeout_after`], for callers that need no error.
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn ignore_after<F: Future>(length: Duration, future: F) -> IgnoreAfter<F> {
    IgnoreAfter::new(Until::After(length), future)
}

/// Runs a future to its end before a cancel or an outer deadline interrupts its task.
///
/// The shield holds back cancels, and deadlines of scopes around it, while the future is being
/// polled. Their interruptions are due at the first wait after the shield that would suspend.
/// Deadlines set inside the shield work as usual. Shields may nest.
/// [`Task::abort`](crate::Task::abort) and the end of a kernel's grace ignore shields.
///
/// # Examples
///
/// ```
/// # async fn close() -> Result<(), pikake::Interrupted> { Ok(()) }
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// pikake::shield(close()).await?; // is done, or fails, but is not interrupted
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Not an interruption point. The drop of the shield drops the future.
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn shield<F: Future>(future: F) -> Shield<F> {
    Shield::new(future)
}

/// Collects an interruption that is due to the current task here, if there is one.
///
/// For long code without awaits. A wait does not return an interruption again that this call has
/// returned. Inside a shield, interruptions from outside of the shield are not due.
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
    let due =
        door::try_with_task(|local, task| local.collect_due(task, &Query::new(local.branch())));
    due.flatten().map_or(Ok(()), Err)
}

/// The interruption that [`check_interrupt`] would return, without collecting it.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn pending_interrupt() -> Option<Interrupted> {
    door::with(|_| ());
    door::try_with_task(|local, task| local.peek_due(task)).flatten()
}

/// The soonest deadline of the scopes around the code that calls this, such as those of
/// [`timeout_after`]. A [`shield`] hides the deadlines of the scopes around it. A deadline that has
/// passed counts until a wait has returned its interruption: what the code does after that, such as
/// to clean up, has no such limit. [`Deadline::NEVER`] without one, and outside of a kernel.
///
/// For calls that pass on how much time is left, as to another process.
///
/// # Examples
///
/// ```
/// use pikake::traps::nearest_deadline;
/// use pikake::time::deadline_after;
/// use pikake::timeout_after;
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// assert!(nearest_deadline().is_never());
/// timeout_after(Duration::from_secs(2), async {
///     let soon = timeout_after(Duration::from_secs(1), async { nearest_deadline() });
///     assert!(soon.await.unwrap() <= deadline_after(Duration::from_secs(1)));
/// }).await.unwrap();
/// let late = timeout_after(Duration::from_secs(1), async {
///     assert!(pikake::sleep(Duration::from_secs(2)).await.is_err());
///     assert!(nearest_deadline().is_never());
/// });
/// assert!(late.await.is_err());
/// # });
/// ```
pub fn nearest_deadline() -> Deadline {
    door::try_with(|local| local.nearest_deadline()).unwrap_or(Deadline::NEVER)
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

/// The rate that converts ticks of the kernel's clock to durations.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn clock_rate() -> Rate {
    door::with(|local| local.kernel().rate())
}

/// The time since `earlier`, a reading of the same kernel's clock, rounded down.
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

/// Makes the kernel let other threads run once before it sleeps.
///
/// For a wait on a thread that is about to send more: a sleep and a wake-up for each message cost
/// more than the message. Outside a kernel, nothing happens.
pub fn yield_thread_before_sleep() {
    door::try_with(|local| local.kernel().outside().yield_thread_before_sleep());
}

/// The trap that waits for a moment. See [`sleep`] and [`sleep_until`].
#[derive(Debug)]
pub struct SleepTrap {
    until: Until,
}

impl SleepTrap {
    /// A wait that ends at this moment.
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
    /// A wait that ends at this moment.
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
        debug_assert!(result.is_ok(), "no cause interrupts an uninterruptible wait");
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

    fn about(&self) -> Option<About> {
        Some(About::new("the task's next step"))
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

    fn about(&self) -> Option<About> {
        let waiting = self.queue.len();
        Some(About::new(format!("signal of a wait queue, in which {waiting} wait")))
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

    fn about(&self) -> Option<About> {
        let (count, free, waiting) = (self.count, self.queue.free(), self.queue.len());
        let queue = format!(
            "{count} permits of a wait queue, of which {free} are free and in which {waiting} wait"
        );
        Some(About::new(queue))
    }

    fn left(&mut self) {
        self.queue.recover();
        self.queue.serve();
    }
}

/// The trap that makes a wait for a foreign future visible. See [`future_wait`].
#[derive(Debug)]
pub struct ForeignTrap {
    kind: TrapKind,
    /// Makes the description of a thing that each wait of this type is for.
    about: Option<fn() -> About>,
}

/// The trap of a wait for a foreign future that the kernel's own code has made. Apart from
/// [`ForeignTrap`], which has nothing to drop.
#[derive(Debug)]
pub(crate) struct ThingTrap {
    kind: TrapKind,
    thing: Thing,
}

/// What a foreign wait is for.
pub(crate) enum Thing {
    /// The answer of a task of this kernel.
    Kernel(KernelId),
    /// The addresses of this host.
    Host(Arc<str>),
    /// A closure on a helper thread, of the type with this name.
    Closure(&'static str, Arc<dyn Work>),
}

impl fmt::Debug for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel(_) => "kernel",
            Self::Host(_) => "host",
            Self::Closure(..) => "closure",
        })
    }
}

/// The greatest length of a type's name in a listing.
const TYPE_NAME_LENGTH: usize = 160;

fn about_future<F>() -> About {
    About::new(format!("future `{}`", shortened(type_name::<F>())))
}

/// The beginning of a type's name.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(TYPE_NAME_LENGTH) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

impl ForeignTrap {
    /// A wait whose waker is called by code outside of the kernel. Later polls answer only with an
    /// interruption.
    pub fn new(kind: TrapKind) -> Self {
        Self { kind, about: None }
    }

    /// Sets a function that describes the thing that the wait is for, for listings. Only
    /// inspections call it.
    pub fn described_by(self, about: fn() -> About) -> Self {
        Self { about: Some(about), ..self }
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

    fn about(&self) -> Option<About> {
        self.about.map(|about| about())
    }
}

impl Trap for ThingTrap {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Foreign(self.kind)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn about(&self) -> Option<About> {
        Some(About::new(match &self.thing {
            Thing::Kernel(kernel) => format!("the result of a call to kernel {kernel}"),
            Thing::Host(host) => format!("addresses of `{host}`"),
            Thing::Closure(name, work) => {
                let state = if work.is_queued() { "waits for" } else { "runs on" };
                format!("closure `{}`, which {state} a helper thread", shortened(name))
            }
        }))
    }
}

pin_project_lite::pin_project! {
    /// The future of [`future_wait`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct FutureWait<F, T: Trap = ForeignTrap> {
        #[pin]
        future: F,
        trap: KernelTrap<T>,
    }
}

impl<F, T: Trap + fmt::Debug> fmt::Debug for FutureWait<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureWait").field("trap", &self.trap).finish_non_exhaustive()
    }
}

impl<F, T> Future for FutureWait<F, T>
where
    F: Future,
    T: Trap<Answer = Result<(), Interrupted>>,
{
    type Output = Result<F::Output, Interrupted>;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.as_mut().poll(cx) {
            this.trap.finish_satisfied();
            return Poll::Ready(Ok(output));
        }
        match Pin::new(&mut *this.trap).poll(cx) {
            Poll::Ready(Err(interrupted)) => Poll::Ready(Err(interrupted)),
            // The next call of the future's waker causes a poll.
            _ => Poll::Pending,
        }
    }
}
