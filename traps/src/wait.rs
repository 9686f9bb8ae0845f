//! A wait, as a kernel gets it and answers it.
//!
//! A suspending trap arrives as a [`Wait`] on the first poll of its future. The kernel executes the
//! trap during that poll. The kernel answers, or makes an entry in the table of the thing that ends
//! the wait and returns the entry's key.
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
//! (1) [`begin`](crate::TrapHandler::begin). (2) The event happens, and the kernel notifies the
//! entry's [`Waiter`] by [`Local::notify`](crate::Local::notify), once. (3)
//! [`collect`](crate::TrapHandler::collect), at each later poll, removes a satisfied entry, or
//! binds the entry to the task and waker of this poll. (4)
//! [`withdraw`](crate::TrapHandler::withdraw): the future was dropped or interrupted. If the entry
//! was notified by a queue, the next waiter of that queue is notified instead.

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

/// The end of a wait for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// This length after the first poll, by a fresh reading of the clock.
    After(Duration),
    /// At this moment.
    At(Deadline),
}

/// A suspending trap, as the kernel gets it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// [`TrapKind::Yield`]. Never passed to a kernel: the next step ends a yield.
    Yield,
    /// [`TrapKind::Sleep`].
    Sleep(Until),
    /// [`TrapKind::Elapse`], which no cause interrupts.
    Elapse(Until),
    /// [`TrapKind::ReadWait`] or [`TrapKind::WriteWait`]: make the attempt, now and each time that
    /// the socket is ready, until it succeeds or fails. Store its result in the [`Outcome`].
    Attempt(SocketId, Attempt<'a>, &'a mut Outcome),
    /// [`TrapKind::Park`], for a signal.
    Park(&'a WaitQueue),
    /// [`TrapKind::Park`], for this number of permits. When the wait is withdrawn, the trap serves
    /// the queue ([`Trap::left`](crate::Trap::left)).
    Take(&'a WaitQueue, usize),
    /// [`TrapKind::Join`], of a task that has not ended.
    Join(&'a TaskRef),
    /// [`TrapKind::FutureWait`], [`TrapKind::Blocking`] or [`TrapKind::Lookup`]. Never passed to a
    /// kernel: code outside of the kernel calls the poll's waker.
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

/// The task to notify by [`Local::notify`](crate::Local::notify). If the wait's last poll had
/// another waker than the task's own, also the sub-wait that keeps that waker.
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

    /// The waiter of a poll with the task's own waker.
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

    /// The waiter of a poll with the task's own waker. Its reference is not counted, so the waiter
    /// must not outlive `task`.
    #[inline(always)]
    pub(crate) fn uncounted(task: &TaskRef) -> ManuallyDrop<Self> {
        let task = ManuallyDrop::into_inner(task.uncounted());
        ManuallyDrop::new(Self { task, sub_wait: SubWait::NONE })
    }

    /// The task.
    #[inline]
    pub fn task(&self) -> &TaskRef {
        &self.task
    }
}

/// A slot for the outcome of an [`Attempt`].
#[derive(Default, Debug)]
pub struct Outcome(Option<io::Result<usize>>);

impl Outcome {
    /// Stores the outcome. For the kernel, before it answers.
    #[inline]
    pub fn set(&mut self, outcome: io::Result<usize>) {
        self.0 = Some(outcome);
    }

    /// Takes the outcome out.
    ///
    /// # Errors
    ///
    /// The attempt's error.
    ///
    /// # Panics
    ///
    /// When the kernel answered without storing an outcome.
    #[inline]
    pub fn take(&mut self) -> io::Result<usize> {
        self.0.take().expect("a kernel answers an attempt with its outcome (I1)")
    }
}

/// The result of a trap's first poll.
#[derive(Clone, Copy, Debug)]
pub enum Begun {
    /// The kernel answered the trap at once.
    Answered,
    /// The trap waits, and its entry has this key.
    Entry(WaitKey),
    /// The kernel did not execute the trap: its moment has come already, or the task has spent its
    /// quota for this step ([`Local::take_answer`](crate::Local::take_answer),
    /// [`Local::take_attempt`](crate::Local::take_attempt)). In the task's next step a sleep is
    /// over, and other traps begin anew.
    NextStep,
    /// The trap waits for an event that never happens.
    Never,
}

/// The result of a wait's later poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collected {
    /// The wait was satisfied, and its entry is gone.
    Answered,
    /// The wait is pending.
    Pending,
    /// The wait is pending, and its entry has this key from now on.
    Entry(WaitKey),
    /// As [`Begun::NextStep`]. The wait's entry is gone.
    NextStep,
}

/// A deadline that was disarmed.
#[derive(Debug)]
pub struct Disarmed {
    /// The waiter that the deadline was armed for. Drop the waiter where user code may run.
    pub waiter: Waiter,
    /// If the deadline has passed: the number that
    /// [`Local::deadline_passed`](crate::Local::deadline_passed) returned, and a reading of the
    /// clock from then.
    pub passed: Option<(u64, Ticks)>,
}

/// A wait's event that observers see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitEvent {
    /// The wait begins, awaited at this place.
    Begins(&'static Location<'static>),
    /// The wait is over: it was satisfied, or interrupted.
    Over {
        /// The wait was interrupted.
        interrupted: bool,
    },
}
