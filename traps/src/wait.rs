//! A wait, as a kernel gets it and answers it.
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
//! (1) [`begin`](crate::TrapHandler::begin). (2) What was waited for happens: the kernel notifies the entry's
//! [`Waiter`] by [`Local::notify`](crate::Local::notify), once. (3) [`collect`](crate::TrapHandler::collect), at each later poll: it
//! ends the entry, or binds it to the task and waker of this poll. (4)
//! [`withdraw`](crate::TrapHandler::withdraw): the future was dropped or interrupted. If the entry was notified
//! by a queue, the next waiter of that queue is notified instead.

use std::io;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::time::Duration;

use pikake_time::{Deadline, Ticks};

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::names::{TrapKind, WaitKey};
use crate::queue::WaitQueue;
use crate::socket::{Attempt, Direction, SocketId};

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
    /// [`TrapKind::Park`], for a signal.
    Park(&'a WaitQueue),
    /// [`TrapKind::Park`], for so many permits. When the wait is taken back, the trap has the queue served
    /// ([`Trap::left`](crate::Trap::left)).
    Take(&'a WaitQueue, usize),
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
                Some(Direction::Write) => TrapKind::WriteWait,
                _ => TrapKind::ReadWait,
            },
            Self::Park(_) | Self::Take(..) => TrapKind::Park,
            Self::Join(_) => TrapKind::Join,
            Self::Foreign(kind) => *kind,
        }
    }
}

/// The task to notify, and, if its last poll had another waker than the task's own, the sub-wait
/// that keeps that waker. [`Local::notify`](crate::Local::notify) notifies it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    task: TaskRef,
    sub_wait: SubWait,
}

impl Waiter {
    #[inline(always)]
    pub(crate) fn new(task: &TaskRef, sub_wait: SubWait) -> Self {
        Self { task: task.clone(), sub_wait }
    }

    /// A task that polls with its own waker.
    pub(crate) fn of_task(task: &TaskRef) -> Self {
        Self::new(task, SubWait::NONE)
    }

    #[inline(always)]
    pub(crate) fn sub_wait(&self) -> SubWait {
        self.sub_wait
    }

    pub(crate) fn into_task(self) -> TaskRef {
        self.task
    }

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

/// Room for the outcome of an [`Attempt`].
#[derive(Default, Debug)]
pub struct Outcome(Option<io::Result<usize>>);

impl Outcome {
    /// Puts it there. For the kernel, which answers then.
    #[inline]
    pub fn set(&mut self, outcome: io::Result<usize>) {
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
    pub fn take(&mut self) -> io::Result<usize> {
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
    /// ([`Local::take_answer`](crate::Local::take_answer), [`Local::take_attempt`](crate::Local::take_attempt)) for this step. It is over in the task's next
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
    /// If the deadline has passed: the number that [`Local::deadline_passed`](crate::Local::deadline_passed) gave, and a reading of
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
