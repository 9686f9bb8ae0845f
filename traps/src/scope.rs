//! Scopes: regions of a task with a deadline of their own, and shields.
//!
//! A scope is a *frame* in its future. While the future is polled, the frame is in the chain of the
//! current scopes (`Local::innermost`). Nothing points to the frame at other times. A kernel names
//! a scope by the deadline that the scope armed, and sub-waits name the scope by its node. So a
//! scope follows polling, and holds for exactly the futures that are polled inside, also when
//! several scopes run side by side in one task.
//!
//! ```text
//!            (1)            (2)                (3)               (4)
//!   new ────────▶ opened ────────▶ armed ────────────▶ passed ────────▶ over
//!                    │                │ ▲ (5)             │ ▲ (5)        ▲
//!                    │                └─┘                 └─┘            │
//!                    └────────────────┴──────────────────────────────────┘
//! ```
//!
//! (1) The first poll. (2) The end of the first pending poll; a body that never waits costs no
//! timer. (3) The kernel flags the task and keeps the number of the moment; the next poll takes
//! both over (`Frame::update`). (4) The body is done, was dropped, or is dropped by the rules in
//! `cause/rules.rs`. (5) A poll by another task or with another waker (`Frame::rebind`).

use std::cell::{Cell, OnceCell};
use std::panic::Location;
use std::ptr::NonNull;
use std::time::Duration;

use pikake_time::Deadline;

use crate::cause::Cause;
use crate::cell::Header;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::names::{KernelId, WaitKey};
use crate::seen::SeenScope;

pub(crate) mod calls;
pub(crate) mod futures;

/// The state of a scope. See the head of this file.
pub(crate) struct Frame {
    /// The call that set the deadline; `None` for a shield.
    set_at: Option<&'static Location<'static>>,
    /// The time that the interrupted body may still run before it is dropped; `None`: without
    /// limit.
    grace: Cell<Option<Duration>>,
    kernel: Cell<KernelId>,
    /// The moment of the first poll; 0 before.
    opened: Cell<u64>,
    /// The scope around this one, during a poll.
    parent: Cell<Option<NonNull<Frame>>>,
    deadline: Cell<Deadline>,
    /// The entry of the armed deadline.
    timer: Cell<Option<WaitKey>>,
    /// The task for which the timer is armed, or which is flagged; only compared. A timer keeps its
    /// task, so no other task has the address meanwhile.
    task: Cell<Option<NonNull<Header>>>,
    pub(crate) node: Cell<SubWait>,
    /// The moment of a shield's last pending poll.
    stamp: Cell<u64>,
    /// The passed deadline, once a poll has found that it passed.
    passed: OnceCell<Box<ScopeCause>>,
}

/// A deadline that has passed.
struct ScopeCause {
    cause: Cause,
    /// The task that is flagged for the cause.
    flagged: Cell<Option<TaskRef>>,
}

impl Frame {
    fn new(set_at: Option<&'static Location<'static>>) -> Self {
        Self {
            set_at,
            grace: Cell::new(None),
            kernel: Cell::new(KernelId::NONE),
            opened: Cell::new(0),
            parent: Cell::new(None),
            deadline: Cell::new(Deadline::NEVER),
            timer: Cell::new(None),
            task: Cell::new(None),
            node: Cell::new(SubWait::NONE),
            stamp: Cell::new(0),
            passed: OnceCell::new(),
        }
    }

    pub(crate) fn is_shield(&self) -> bool {
        self.set_at.is_none()
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// The scope as listings show it.
    pub(crate) fn seen(&self) -> SeenScope {
        match self.set_at {
            Some(set_at) => SeenScope::Deadline {
                at: self.deadline.get(),
                set_at,
                has_grace: self.grace.get().is_some(),
            },
            None => SeenScope::Shield,
        }
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.passed.get().map(|passed| &passed.cause)
    }

    pub(crate) fn parent(&self) -> Option<&Frame> {
        // SAFETY: `parent` is called only while this frame is in the chain. The parent's body polls
        // this frame, so the parent is polled for longer than that.
        self.parent.get().map(|parent| unsafe { parent.as_ref() })
    }
}
