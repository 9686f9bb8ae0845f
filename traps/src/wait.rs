//! A wait, as a kernel gets it: the place to wait at, and the waiter.
//!
//! ```text
//!            (1)            (2)
//!   park ─────────▶ entry ────────▶ satisfied
//!                    │ ▲ (3)            │
//!                    │ └──┘             │ (3) collect removes the entry
//!                    ▼                  ▼
//!                  gone ◀───────────────┘ (4) leave
//! ```
//!
//! (1) [`park`](crate::TrapHandler::park). (2) The event happens, and the kernel notifies the
//! entry's [`Waiter`] by [`Local::notify`](crate::Local::notify), once. (3)
//! [`collect`](crate::TrapHandler::collect), at each later poll, removes a satisfied entry, or
//! binds the entry to the task and waker of this poll. (4) [`leave`](crate::TrapHandler::leave):
//! the future was dropped or interrupted.

use std::io;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::time::Duration;

use pikake_time::{Deadline, Ticks};

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::names::WaitKey;
use crate::queue::WaitQueue;
use crate::socket::{Attempt, SocketId};

/// The end of a wait for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// This length after the first poll, by a fresh reading of the clock.
    After(Duration),
    /// At this moment.
    At(Deadline),
}

/// A place where a kernel lets a task wait. These are all that there are: a trap is a rule for one
/// or two of them.
///
/// Each call of a wait brings its place, with the same thing as the calls before.
#[derive(Debug)]
pub enum WaitPlace<'a> {
    /// A moment: the clock reaches it.
    Moment(Ticks),
    /// The deadline of a scope. When it passes, the kernel keeps a [`Passed`], and stores it in
    /// this slot in [`collect`](crate::TrapHandler::collect) or
    /// [`leave`](crate::TrapHandler::leave).
    Deadline(Ticks, &'a mut Option<Passed>),
    /// The end of a queue: for this number of permits, or for a signal. A trap that collects
    /// permits calls [`WaitQueue::collected`]. If the kernel says that an entry had been notified
    /// which the trap [leaves](crate::Entry::leave), the trap calls [`WaitQueue::returned`], or
    /// passes the signal on by [`WaitQueue::wake`].
    Queue(&'a WaitQueue, Option<usize>),
    /// The direction of a socket that the attempt needs. The kernel makes the attempt, now and at
    /// each poll for which the socket is ready, until it succeeds or fails. It stores the result in
    /// the [`Outcome`].
    Socket(SocketId, Attempt<'a>, &'a mut Outcome),
    /// The end of a task that has not ended.
    End(&'a TaskRef),
}

/// The result of [`park`](crate::TrapHandler::park) and [`collect`](crate::TrapHandler::collect).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    /// The wait is satisfied, and has no entry.
    Satisfied,
    /// The wait is pending, and its entry has this key.
    Waits(WaitKey),
    /// The kernel did nothing, since the task has spent its quota for this step
    /// ([`Local::take_answer`](crate::Local::take_answer),
    /// [`Local::take_attempt`](crate::Local::take_attempt)). There is no entry; the wait begins
    /// anew in the task's next step.
    Deferred,
    /// The wait is for an event that never happens, and has no entry.
    Never,
}

/// A deadline that has passed.
#[derive(Debug)]
pub struct Passed {
    /// The number that [`Local::deadline_passed`](crate::Local::deadline_passed) returned.
    pub number: u64,
    /// A reading of the clock from then.
    pub at: Ticks,
    /// The waiter of the entry. Drop the waiter where user code may run.
    pub waiter: Waiter,
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
    pub(crate) fn sub_wait(&self) -> SubWait {
        self.sub_wait
    }

    pub(crate) fn into_task(self) -> TaskRef {
        self.task
    }

    /// The waiter of a poll. Its reference is not counted, so the waiter must not outlive `task`.
    #[inline(always)]
    pub(crate) fn uncounted(task: &TaskRef, sub_wait: SubWait) -> ManuallyDrop<Self> {
        let task = ManuallyDrop::into_inner(task.uncounted());
        ManuallyDrop::new(Self { task, sub_wait })
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
