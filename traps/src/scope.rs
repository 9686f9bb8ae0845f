//! Scopes: regions of a task with a deadline of their own, and shields.
//!
//! A scope is a *frame* in its future. While the future is polled the frame is in the chain of the
//! scopes around what is polled (`Local::innermost`), and at no other time does anybody have its address:
//! a kernel knows a scope by the deadline that it armed, sub-waits know it by its node. So a scope follows
//! polling, and holds for exactly what is polled inside it, also when several run side by side in one
//! task.
//!
//! ```text
//!            (1)            (2)                (3)               (4)
//!   new ────────▶ opened ────────▶ armed ────────────▶ passed ────────▶ over
//!                    │                │ ▲ (5)             │ ▲ (5)        ▲
//!                    │                └─┘                 └─┘            │
//!                    └────────────────┴──────────────────────────────────┘
//! ```
//!
//! (1) The first poll. (2) The end of the first poll that is pending; a body that never waits costs no
//! timer. (3) The kernel: it flags the task and keeps the number of the moment; the next poll takes both
//! over (`Frame::look`). (4) The body is done, was dropped, or is dropped by the rule in `cause.rs`. (5)
//! A poll by another task or with another waker (`Frame::rebind`).

use std::cell::{Cell, OnceCell};
use std::ptr::{self, NonNull};

use pikake_time::{Deadline, TimerKey};

use crate::cause::Cause;
use crate::cell::Header;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::names::KernelId;

pub(crate) mod futures;

/// A scope, as those inside of it see it. See the head of this file.
pub(crate) struct Frame {
    is_shield: bool,
    kernel: Cell<KernelId>,
    /// The moment of the first poll; 0 before.
    opened: Cell<u64>,
    /// The scope around it, during a poll.
    parent: Cell<*const Frame>,
    deadline: Cell<Deadline>,
    timer: Cell<Option<TimerKey>>,
    /// The task that polled it last, and that the timer is armed for; to be compared. A timer keeps
    /// its task, so no other one has that address meanwhile.
    task: Cell<Option<NonNull<Header>>>,
    node: Cell<SubWait>,
    /// What the timer is armed for, besides the task.
    armed_node: Cell<SubWait>,
    /// Of a shield: the moment of its last pending poll.
    stamp: Cell<u64>,
    /// The deadline has passed, and the scope knows: of that task.
    passed: OnceCell<Box<Passed>>,
}

/// A deadline that has passed.
struct Passed {
    cause: Cause,
    /// The task that is flagged for it.
    flagged: Cell<Option<TaskRef>>,
}

impl Frame {
    fn new(is_shield: bool) -> Self {
        Self {
            is_shield,
            kernel: Cell::new(KernelId::NONE),
            opened: Cell::new(0),
            parent: Cell::new(ptr::null()),
            deadline: Cell::new(Deadline::NEVER),
            timer: Cell::new(None),
            task: Cell::new(None),
            node: Cell::new(SubWait::NONE),
            armed_node: Cell::new(SubWait::NONE),
            stamp: Cell::new(0),
            passed: OnceCell::new(),
        }
    }

    pub(crate) fn is_shield(&self) -> bool {
        self.is_shield
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened.get()
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.passed.get().map(|passed| &passed.cause)
    }

    pub(crate) fn parent(&self) -> Option<&Frame> {
        // SAFETY: only while this frame is in the chain is its parent asked for, and the parent is
        // polled for longer than that: its body is what polls this one.
        unsafe { self.parent.get().as_ref() }
    }
}
