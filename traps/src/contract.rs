//! What a kernel must be able to do: the contract between a program and the kernel that runs it.
//!
//! A type that implements [`TrapHandler`] is a kernel. The crate's front page says what each trap
//! means; this file has the shape. What the rules of interruption ask for is done by the futures of
//! this crate when they are polled (`cause.rs`), so a kernel knows nothing of them but deadlines.
//!
//! A kernel has two halves. The near half is a [`Local`], the same for every kernel: the current
//! task, the ready list, scopes, the numbers of moments. A kernel owns one and gives it out by
//! [`TrapHandler::local`]. The far half is the rest: tables of timers, queues and sockets, the outside.
//!
//! # A wait
//!
//! A suspending trap arrives as a [`Wait`] on the first poll of its future. The kernel executes it
//! there and then: it answers, or it makes an entry in the table of the thing that ends the wait and
//! gives the entry's key.
//!
//! ```text
//!            (1)            (2)
//!   begin ────────▶ entry ────────▶ satisfied
//!                    │ ▲ (3)            │
//!                    │ └──┘             │ (3) collect gives the answer
//!                    ▼                  ▼
//!                  gone ◀───────────────┘ (4) withdraw
//! ```
//!
//! (1) [`begin`](TrapHandler::begin). (2) What was waited for happens: the kernel notifies the entry's
//! [`Waiter`] by [`Local::notify`], once. (3) [`collect`](TrapHandler::collect), at each later poll: it
//! ends the entry, or binds it to the task and waker of this poll. (4)
//! [`withdraw`](TrapHandler::withdraw): the future was dropped or interrupted. If the entry was notified
//! by a queue, the next waiter of that queue is notified instead.
//!
//! Methods take `&self`, and one may lead to another, so a kernel runs no user code while it holds a
//! borrow of its own state (I10). User code is: a poll; the drop of a future, an output or a closure;
//! the drop of the last [`TaskRef`], and so of a [`Waiter`]; a waker's clone, call or drop.
//! [`Local::notify`] runs none; [`Local::call_wakers`] does.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::time::{Duration, SystemTime};

use pikake_time::{Deadline, Rate, Ticks, TimerKey};

use crate::cell::TaskId;
use crate::interrupt::Interrupted;
use crate::job::Job;
use crate::local::Local;
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::socket::{Addresses, Attempt, Direction, Done, OpenSocket, Opened, SocketId};
use crate::sub_waits::SubWait;
use crate::task_ref::TaskRef;

/// The name of a trap, as observers and listings show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum TrapKind {
    /// Go to the end of the ready queue.
    Yield,
    /// Wait until a moment.
    Sleep,
    /// Wait until a moment, whatever is asked of the task meanwhile.
    Elapse,
    /// Wait until a socket may be read.
    ReadWait,
    /// Wait until a socket may be written.
    WriteWait,
    /// Wait in a wait queue.
    Park,
    /// Wait for the end of a task.
    Join,
    /// Wait for a future that the kernel does not know.
    FutureWait,
    /// Wait for a closure on a helper thread.
    Blocking,
    /// Wait for the addresses of a name.
    Lookup,
}

impl TrapKind {
    const ALL: [Self; 10] = [
        Self::Yield,
        Self::Sleep,
        Self::Elapse,
        Self::ReadWait,
        Self::WriteWait,
        Self::Park,
        Self::Join,
        Self::FutureWait,
        Self::Blocking,
        Self::Lookup,
    ];

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The trap's name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yield => "yield",
            Self::Sleep => "sleep",
            Self::Elapse => "elapse",
            Self::ReadWait => "read_wait",
            Self::WriteWait => "write_wait",
            Self::Park => "park",
            Self::Join => "join",
            Self::FutureWait => "future_wait",
            Self::Blocking => "blocking",
            Self::Lookup => "lookup",
        }
    }
}

impl fmt::Display for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a wait ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// So long after the first poll, by a fresh reading of the clock.
    After(Duration),
    /// At a moment.
    At(Deadline),
}

/// A suspending trap, as the kernel gets it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// [`TrapKind::Yield`]. No kernel gets it: a yield ends by itself.
    Yield,
    /// [`TrapKind::Sleep`].
    Sleep(Until),
    /// [`TrapKind::Elapse`]: no cause interrupts it.
    Elapse(Until),
    /// [`TrapKind::ReadWait`] or [`TrapKind::WriteWait`]: attempt this, now and each time that the
    /// socket is ready, until it can be done; and put there what has come of it.
    Attempt(SocketId, Attempt<'a>, &'a mut Outcome),
    /// [`TrapKind::Park`].
    Park(&'a WaitQueue),
    /// [`TrapKind::Join`], of a task that has not ended.
    Join(&'a TaskRef),
    /// [`TrapKind::FutureWait`], [`TrapKind::Blocking`] or [`TrapKind::Lookup`]. No kernel gets it:
    /// something else calls the poll's waker.
    Foreign(TrapKind),
}

impl Wait<'_> {
    /// The trap's name.
    #[inline(always)]
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::Yield => TrapKind::Yield,
            Self::Sleep(_) => TrapKind::Sleep,
            Self::Elapse(_) => TrapKind::Elapse,
            Self::Attempt(_, attempt, _) => match attempt.direction() {
                Direction::Read => TrapKind::ReadWait,
                Direction::Write => TrapKind::WriteWait,
            },
            Self::Park(_) => TrapKind::Park,
            Self::Join(_) => TrapKind::Join,
            Self::Foreign(kind) => *kind,
        }
    }
}

/// The task to notify, and, if its last poll had another waker than the task's own, the sub-wait
/// that keeps that waker. [`Local::notify`] notifies it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    pub(crate) task: TaskRef,
    pub(crate) sub_wait: SubWait,
}

impl Waiter {
    /// A task that polls with its own waker. The reference in it is not counted: it must not outlive
    /// `task`.
    #[inline(always)]
    pub(crate) fn lent(task: &TaskRef) -> ManuallyDrop<Self> {
        let task = ManuallyDrop::into_inner(task.uncounted());
        ManuallyDrop::new(Self { task, sub_wait: SubWait::NONE })
    }

    /// The task.
    #[inline]
    pub fn task(&self) -> &TaskRef {
        &self.task
    }
}

/// Names an entry of a kernel's tables. A kernel chooses it, below [`WaitKey::LIMIT`]; the future of
/// the wait keeps it and gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitKey(pub u64);

impl WaitKey {
    /// The least key that a kernel must not choose.
    pub const LIMIT: u64 = 1 << 62;
}

/// Room for the outcome of an [`Attempt`].
#[derive(Default, Debug)]
pub struct Outcome(Option<io::Result<Done<SocketId>>>);

impl Outcome {
    /// Puts it there. For the kernel, which answers then.
    #[inline]
    pub fn set(&mut self, outcome: io::Result<Done<SocketId>>) {
        self.0 = Some(outcome);
    }

    /// Takes it out.
    ///
    /// # Errors
    ///
    /// Those of the attempt.
    ///
    /// # Panics
    ///
    /// When the kernel answered and forgot to put it there.
    #[inline]
    pub fn take(&mut self) -> io::Result<Done<SocketId>> {
        self.0.take().expect("a kernel answers an attempt with its outcome (I1)")
    }
}

/// What became of a trap on its first poll.
#[derive(Clone, Copy, Debug)]
pub enum Begun {
    /// It was answered at once.
    Answered,
    /// It waits; the entry has this key.
    Entry(WaitKey),
    /// It was not executed: its moment has come already, or the task has had its share of answers
    /// ([`Local::take_answer`], [`Local::take_attempt`]) for this step. It is over in the task's next
    /// step, where all but sleeps are begun anew.
    NextStep,
    /// It waits for what never happens.
    Never,
}

/// What became of a wait at a later poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collected {
    /// It was satisfied; its entry is gone.
    Answered,
    /// It waits.
    Pending,
    /// It waits, and the entry has this key from now on.
    Entry(WaitKey),
    /// As [`Begun::NextStep`]; its entry is gone.
    NextStep,
}

/// A deadline that was disarmed.
#[derive(Debug)]
pub struct Disarmed {
    /// The waiter it was armed for. Drop it where user code may run.
    pub waiter: Waiter,
    /// If the deadline has passed: the number that [`Local::deadline_passed`] gave, and a reading of
    /// the clock then.
    pub passed: Option<(u64, Ticks)>,
}

/// What observers are told of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEvent {
    /// The wait begins; it is awaited there.
    Begins(&'static Location<'static>),
    /// The wait is over: it was satisfied, or interrupted.
    Over {
        /// It was interrupted.
        interrupted: bool,
    },
}

/// A kernel: executes what tasks ask for.
///
/// All methods are called on the kernel's own thread. Those marked *current* act for the task that
/// is being stepped and are called inside a step only; the others also between steps and runs.
pub trait TrapHandler {
    /// The near half: always the same one.
    fn local(&self) -> &Local;

    /// A fresh reading of the kernel's clock.
    fn now(&self) -> Ticks;

    /// How the clock's ticks relate to durations.
    fn rate(&self) -> Rate;

    // --- waits ---------------------------------------------------------------------------------

    /// Executes a trap. *Current*, but for the timers of graces: a [`Wait::Sleep`] may also begin, and be
    /// collected, right after a step.
    fn begin(&self, wait: Wait<'_>, waiter: &Waiter) -> Begun;

    /// Collects the answer of a trap that waits, or binds its entry to the waiter of this poll.
    /// *Current*, as [`begin`](Self::begin).
    fn collect(&self, wait: Wait<'_>, key: WaitKey, waiter: &Waiter) -> Collected;

    /// Takes back a trap that waits.
    fn withdraw(&self, wait: Wait<'_>, key: WaitKey);

    /// Tells of a wait of a task that is [observed](TaskRef::set_observed).
    fn observe(&self, task: &TaskRef, kind: TrapKind, event: WaitEvent) {
        let _ = (task, kind, event);
    }

    /// Notifies up to `count` waiters of a queue in the order in which they came; tells how many.
    fn notify(&self, queue: &WaitQueue, count: usize) -> usize;

    /// How many wait in a queue.
    fn queue_len(&self, queue: &WaitQueue) -> usize;

    /// The queue with this number is dropped. Waiters that are still in it wait for ever.
    fn forget_queue(&self, index: u32);

    // --- deadlines of scopes -------------------------------------------------------------------

    /// Sets a deadline. When it has passed, and the waits that were due no later have been notified,
    /// the kernel calls [`Local::deadline_passed`] with the waiter, once, and keeps the number.
    fn arm(&self, deadline: Deadline, waiter: Waiter) -> TimerKey;

    /// Whether an armed deadline has passed.
    fn has_passed(&self, timer: TimerKey) -> bool;

    /// Takes a deadline back.
    fn disarm(&self, timer: TimerKey) -> Option<Disarmed>;

    // --- tasks ---------------------------------------------------------------------------------

    /// Takes a new task in, numbers it ([`TaskRef::set_id`]) and lets it start in a later step.
    /// `false`: the kernel is shut down and will not run it.
    fn spawn(&self, task: &TaskRef) -> bool;

    /// Ends a task without another step of it: the kernel drops its future before the next step of
    /// any task.
    fn abort(&self, task: &TaskRef, reason: Interrupted);

    /// The task of that number, if it has not ended.
    fn find_task(&self, task: TaskId) -> Option<TaskRef>;

    // --- sockets -------------------------------------------------------------------------------

    /// Opens a socket, or takes one over.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for what this kernel does not have.
    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>>;

    /// Attempts something on a socket, without waiting. `None`: it cannot be done now.
    fn attempt(&self, socket: SocketId, attempt: Attempt<'_>)
    -> Option<io::Result<Done<SocketId>>>;

    // --- the outside ---------------------------------------------------------------------------

    /// What is neither time nor sockets.
    fn outside(&self) -> &dyn Outside;
}

/// What a kernel answers for the world around it, besides time and sockets.
pub trait Outside {
    /// What the wall clock shows.
    fn wall_time(&self) -> SystemTime;

    /// Fills a buffer with random bytes.
    fn random(&self, to: &mut [u8]);

    /// Starts a thread that is not the kernel's, or refuses to.
    ///
    /// # Errors
    ///
    /// The system's; `Unsupported` where there are no threads. The closure has been dropped.
    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Whether the system that the process runs on is this kernel's outside: its files, processes
    /// and signals. A kernel that simulates the world refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    ///
    /// # Errors
    ///
    /// The refusal.
    fn system(&self) -> io::Result<()>;

    /// Has the kernel let other threads run once before it sleeps next. See
    /// [`linger`](crate::linger). A kernel that never sleeps does nothing.
    fn linger(&self) {}

    /// Runs a job on a helper thread, when one is free, those first that came first. It reports its
    /// end by itself. Dropped, it reports that it will not be run.
    fn blocking(&self, job: Job);

    /// Looks up the addresses of a host name.
    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>);
}

/// Panics for a trap that is executed between steps, where there is no task to suspend.
#[cold]
#[track_caller]
pub(crate) fn outside_a_task(what: TrapKind, place: &'static Location<'static>) -> ! {
    panic!(
        "the trap `{what}` (at {place}) was polled inside a kernel but outside a task: \
         spawn a task and await it there"
    )
}
