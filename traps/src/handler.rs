//! The kernel's side of the door: what a kernel must be able to do.
//!
//! Whoever implements [`TrapHandler`] is a kernel. The crate's front page has the specification of
//! each trap; this file has its shape.
//!
//! A suspending trap arrives as a [`Wait`] through [`TrapHandler::execute`], on the first poll of
//! its future. The kernel executes it there and then. It either answers, or *parks*: it makes a
//! wait record, remembers in it the current task, the current scope and the waker of the poll, and
//! gives its key back. From then on exactly one of two things happens to the record (I1):
//!
//! ```text
//!              (1)                 (2)
//!   execute ────────▶ parked ────────────▶ answered
//!                     │    ▲ (3)              │
//!                     │    └──┘               │ (4) poll_again gives the answer
//!                     │                       ▼
//!                     └───────▶ withdrawn ◀───┘ (5) the future was dropped
//! ```
//!
//! (1) [`TrapHandler::execute`]. (2) What was waited for happens, or the wait is interrupted; the
//! record's task is made ready, or the record's own waker is called if the poll's waker was a
//! combinator's. (3) [`TrapHandler::poll_again`] finds nothing new and rebinds the record to the
//! task, scope and waker of this poll. (4) The answer is collected and the record is gone.
//! (5) [`TrapHandler::withdraw`]: timer, queue place and interest are taken back, and a wake that
//! the record got from a queue and nobody saw goes to the next in that queue.
//!
//! Methods take `&self` and may be called from inside one another's consequences, so a kernel must
//! not run user code while it holds a borrow of its own state (I10): no poll, no drop of a future,
//! an output or a closure, no call, clone or drop of a waker that is not a task's own.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::Location;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use pikake_time::{Deadline, Rate, Ticks};

use crate::cell::TaskId;
use crate::home::LocalHome;
use crate::interrupt::{Interrupted, ScopeId};
use crate::job::Job;
use crate::queue::WaitQueue;
use crate::reply::Reply;
use crate::socket::{Direction, SocketId, Sockets};
use crate::task_ref::TaskRef;
use crate::yielding::LightYield;

/// The name of a trap, as observers and listings show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
    /// So long after the trap is executed, by a fresh reading of the clock.
    After(Duration),
    /// At a moment.
    At(Deadline),
}

/// A suspending trap, as the kernel gets it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// [`TrapKind::Yield`].
    Yield,
    /// [`TrapKind::Sleep`].
    Sleep(Until),
    /// [`TrapKind::Elapse`]: never told of a cause, and to the rules of interruption as if it were not
    /// there.
    Elapse(Until),
    /// [`TrapKind::ReadWait`] or [`TrapKind::WriteWait`].
    Ready {
        /// The socket.
        socket: SocketId,
        /// Which of its two readinesses.
        direction: Direction,
        /// Where the kernel says that it refuses; it then answers `Ok` at once.
        refusal: &'a Cell<Option<Refusal>>,
    },
    /// [`TrapKind::Park`].
    Park(&'a WaitQueue),
    /// [`TrapKind::Join`].
    Join(&'a TaskRef),
    /// [`TrapKind::FutureWait`], [`TrapKind::Blocking`] or [`TrapKind::Lookup`]: something else
    /// calls the poll's waker, and only an interruption answers the record.
    Foreign(TrapKind),
}

impl Wait<'_> {
    /// The trap's name.
    pub fn kind(&self) -> TrapKind {
        match self {
            Self::Yield => TrapKind::Yield,
            Self::Sleep(_) => TrapKind::Sleep,
            Self::Elapse(_) => TrapKind::Elapse,
            Self::Ready { direction: Direction::Read, .. } => TrapKind::ReadWait,
            Self::Ready { direction: Direction::Write, .. } => TrapKind::WriteWait,
            Self::Park(_) => TrapKind::Park,
            Self::Join(_) => TrapKind::Join,
            Self::Foreign(kind) => *kind,
        }
    }
}

/// Why a kernel does not execute a readiness trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another record waits for the same direction of the same socket.
    Busy,
    /// There is no such socket any more.
    Closed,
}

/// What became of a trap on its first poll.
#[derive(Debug)]
pub enum Executed {
    /// It was answered at once.
    Answered(Result<(), Interrupted>),
    /// It waits, under this key.
    Parked(RecordKey),
}

/// Names a wait record of a kernel. Owned by the trap's future, which gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecordKey(pub u32);

/// What a scope is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScopeKind {
    /// To interrupt what is inside when the time has come.
    Deadline {
        /// When.
        until: Until,
        /// How long what was interrupted may still run before it is dropped; `None`: without limit.
        grace: Option<Duration>,
    },
    /// To keep interruptions of what is around away from what is inside.
    Shield,
}

/// What to do after a scope's body was polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// It waits, or may still see the interruption.
    Keep,
    /// It was due to be interrupted and waits on nothing the kernel knows of: drop it.
    Drop,
}

/// What a scope had come to when it was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScopeEnd {
    /// An await inside returned the scope's interruption.
    pub interrupted: bool,
    /// How long after its deadline it was closed; zero if that was in time.
    pub late: Duration,
}

/// A kernel: executes what tasks ask for.
///
/// All methods are called on the kernel's own thread. Those marked *current* act for the task that
/// is being stepped and are called inside a step only; the caller sees to that.
pub trait TrapHandler {
    /// The kernel's address for other threads: always the same one.
    fn home(&self) -> &LocalHome;

    // --- traps that may suspend ---------------------------------------------------------------

    /// Executes a trap for the current task, in the current scope, with the poll's waker.
    ///
    /// `place` is where the trap was awaited. Outside a step there is no current task; the kernel
    /// panics with [`outside_a_task`].
    fn execute(
        &self,
        wait: Wait<'_>,
        place: &'static Location<'static>,
        cx: &mut Context<'_>,
    ) -> Executed;

    /// Executes the trap that parks in a wait queue, if nothing speaks against parking at once;
    /// `None` if it is to be [executed](Self::execute) like others. A kernel may leave it at that.
    fn park(
        &self,
        queue: &WaitQueue,
        place: &'static Location<'static>,
        cx: &Context<'_>,
    ) -> Option<RecordKey> {
        let _ = (queue, place, cx);
        None
    }

    /// Collects the answer of a parked trap, or rebinds its record to the current task and scope
    /// and to the poll's waker.
    fn poll_again(&self, record: RecordKey, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>>;

    /// Takes back a trap whose future is dropped before it collected an answer. Also outside a
    /// turn.
    fn withdraw(&self, record: RecordKey);

    // --- tasks ---------------------------------------------------------------------------------

    /// Takes a new task in and lets it start in a later step. `false`: the kernel is shut down
    /// and will not run it.
    fn spawn(&self, task: &TaskRef) -> bool;

    /// The current task; `None` between steps.
    fn current(&self) -> Option<TaskRef>;

    /// Has the kernel let other threads run once before it sleeps next. See
    /// [`linger`](crate::linger). A kernel that never sleeps does nothing.
    fn linger(&self) {}

    /// The task of that number, if it has not ended. For those who show something; a kernel that
    /// cannot tell says nothing.
    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        let _ = task;
        None
    }

    /// Makes a task ready, unless it is ready already or has ended.
    fn wake(&self, task: TaskRef);

    /// Notes a light yield of the current task in the current scope, if it may be one. *Current.*
    ///
    /// A kernel that leaves [`Ledger::light`](crate::Ledger::light) as it is has no light yields.
    fn begin_light_yield(&self) -> bool {
        false
    }

    /// A light yield is dropped, or polled while its task is [`Flag::Troubled`](crate::Flag::Troubled) or where
    /// it was not before. Gives the record that was made of it, if there is one; otherwise it does
    /// not count any more. Also outside a turn.
    fn end_light_yield(&self, light: LightYield) -> Option<RecordKey> {
        let _ = light;
        None
    }

    /// A light yield was polled that ended when the task's step began. *Current.*
    fn let_light_yield_pass(&self) {}

    /// Asks a task to end: interrupts what it waits for, or the next wait of it that suspends.
    ///
    /// A task that was never stepped is dropped unpolled. A second request changes nothing. Also
    /// outside a turn.
    fn cancel(&self, task: &TaskRef, reason: Interrupted);

    /// Ends a task without another step of it: its future is dropped by the kernel before the next
    /// step of any task. Also outside a turn.
    fn abort(&self, task: &TaskRef, reason: Interrupted);

    // --- wait queues ---------------------------------------------------------------------------

    /// Wakes up to `count` records of a queue in the order in which they parked; tells how many.
    /// Also outside a turn.
    fn wake_queue(&self, queue: &WaitQueue, count: usize) -> usize;

    /// How many records wait in a queue. Also outside a turn.
    fn queue_len(&self, queue: &WaitQueue) -> usize;

    /// The queue with this number is dropped. A record that is still in it waits for ever. Also
    /// outside a turn.
    fn forget_queue(&self, index: u32);

    // --- scopes --------------------------------------------------------------------------------

    /// Opens a scope of the current task, inside the current scope, and makes it the current one
    /// as [`enter_scope`](Self::enter_scope) does. *Current.*
    fn open_scope(&self, kind: ScopeKind, cx: &mut Context<'_>) -> (ScopeId, Option<ScopeId>);

    /// Makes an open scope the current one for the poll that follows, rebinding it to the current
    /// task and scope and to the poll's waker. Gives the scope to go back to. *Current.*
    fn enter_scope(&self, scope: ScopeId, cx: &mut Context<'_>) -> Option<ScopeId>;

    /// Goes back to the scope that was current before, after a poll. `pending`: the body is not
    /// done. *Current.*
    fn leave_scope(&self, scope: ScopeId, back_to: Option<ScopeId>, pending: bool) -> Polled;

    /// Ends a scope; its deadline can be observed no more (I9). `completed`: its body returned, and
    /// what a shield held back is due to the branch that goes on. Also outside a turn.
    fn close_scope(&self, scope: ScopeId, completed: bool) -> ScopeEnd;

    /// Leaves a scope whose body has returned, and closes it. *Current.*
    fn finish_scope(&self, scope: ScopeId, back_to: Option<ScopeId>) -> ScopeEnd {
        self.leave_scope(scope, back_to, false);
        self.close_scope(scope, true)
    }

    /// Collects the interruption that the next wait here which would suspend would get. *Current.*
    fn check_interrupt(&self) -> Option<Interrupted>;

    /// The same, without collecting it. *Current.*
    fn pending_interrupt(&self) -> Option<Interrupted>;

    // --- time ----------------------------------------------------------------------------------

    /// A fresh reading of the kernel's clock.
    fn now(&self) -> Ticks;

    /// How the clock's ticks relate to durations.
    fn rate(&self) -> Rate;

    // --- the outside ---------------------------------------------------------------------------

    /// What the wall clock shows. Without a clock of its own, a kernel asks the system.
    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Fills a buffer with random bytes. Without a source of its own, a kernel asks the system.
    fn random(&self, to: &mut [u8]) {
        crate::outside::system_random(to);
    }

    /// Starts a thread that is not the kernel's, or refuses to.
    ///
    /// # Errors
    ///
    /// The system's; `Unsupported` where there are no threads. The closure has been dropped.
    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        crate::outside::system_thread(name, life)
    }

    /// The socket traps.
    fn sockets(&self) -> &dyn Sockets;

    /// Whether the system that the process runs on is this kernel's outside: its files, processes
    /// and signals. A kernel that simulates the world refuses, with
    /// [`Unsupported`](std::io::ErrorKind::Unsupported).
    ///
    /// # Errors
    ///
    /// The refusal.
    fn system(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Runs a job on a helper thread, when one is free, those first that came first. It reports its
    /// end by itself. Dropped, it reports that it will not be run.
    fn blocking(&self, job: Job);

    /// Looks up the addresses of a host name.
    fn lookup(&self, host: &str, port: u16, reply: Reply<crate::Addresses>);
}

/// Panics for a trap that is executed between steps, where there is no task to suspend.
///
/// # Panics
///
/// Always.
#[cold]
#[track_caller]
pub fn outside_a_task(what: TrapKind, place: &'static Location<'static>) -> ! {
    panic!(
        "the trap `{what}` (at {place}) was polled inside a kernel but outside a task: \
         spawn a task and await it there"
    )
}
