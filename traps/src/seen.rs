//! Waits as listings show them: the thing that a wait is for, the scopes around the wait, all waits
//! of a task.
//!
//! A kernel does not know what its tasks wait for. The futures of the waits know it, and can tell
//! it only while they are polled. So a look at a task takes three calls, all inside of the task's
//! kernel, such as in a closure of a [`KernelHandle`](crate::KernelHandle):
//!
//! 1. [`TaskRef::inspect`] schedules a poll of the task and of its sub-waits.
//! 2. The kernel steps the task. During that step each pending poll of a wait leaves a
//!    [`SeenWait`]. A look from outside of the kernel's steps lets the kernel make a turn
//!    meanwhile. A task that looks at others yields, until the other tasks are no longer
//!    [ready](TaskRef::is_ready).
//! 3. [`TaskRef::waits`] lists the waits of the task, and looks at no other task. If the task goes
//!    on, the details are gone after a few of its steps.
//!
//! Nothing of this costs anything in tasks that nobody inspects.

use std::fmt;
use std::panic::Location;

use pikake_time::Deadline;

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::local::Local;
use crate::names::{TaskId, TrapKind};
use crate::queue::WaitQueue;
use crate::socket::SocketId;
use crate::wait::Wait;

/// The thing that a wait is for, in words, and the tasks that can end the wait.
///
/// # Examples
///
/// ```
/// use pikake::traps::About;
///
/// let about = About::new("mutex `accounts`, held by task 3").owned_by([pikake::traps::TaskId(3)]);
/// assert_eq!(about.to_string(), "mutex `accounts`, held by task 3");
/// assert_eq!(about.owners(), [pikake::traps::TaskId(3)]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    text: Box<str>,
    owners: Vec<TaskId>,
    is_granted: bool,
}

impl About {
    /// A description without owners: any task, another thread or the system may end the wait.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self { text: text.into(), owners: Vec::new(), is_granted: false }
    }

    /// Names the tasks of the same kernel that can end the wait. Each of them can, and nothing else
    /// but a deadline or a cancel.
    pub fn owned_by(mut self, owners: impl IntoIterator<Item = TaskId>) -> Self {
        self.owners.extend(owners);
        self
    }

    /// Names the task that was granted the thing, and has not taken it. The task can end the wait
    /// when it polls the wait that the grant was for.
    pub fn granted_to(mut self, task: TaskId) -> Self {
        self.owners.push(task);
        self.is_granted = true;
        self
    }

    /// The description.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tasks of the same kernel that can end the wait. Empty if they are not known.
    pub fn owners(&self) -> &[TaskId] {
        &self.owners
    }

    /// Whether the owner was granted the thing, and has not taken it.
    pub fn is_granted(&self) -> bool {
        self.is_granted
    }
}

/// The description.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The description.
impl From<About> for String {
    fn from(about: About) -> Self {
        about.text.into()
    }
}

/// A thing of a kernel that several waits may be for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SeenThing {
    /// A wait queue. No two wait queues of a process have the same number at the same time.
    Queue(usize),
    /// A socket.
    Socket(SocketId),
    /// A task that is joined.
    Task(TaskId),
}

impl SeenThing {
    /// The thing that a wait is for; `None` if no other wait can be for it.
    pub(crate) fn of(wait: &Wait<'_>) -> Option<Self> {
        match wait {
            Wait::Park(queue) | Wait::Take(queue, _) => {
                Some(Self::Queue(std::ptr::from_ref::<WaitQueue>(queue).addr()))
            }
            Wait::Attempt(socket, ..) => Some(Self::Socket(*socket)),
            Wait::Join(task) => Some(Self::Task(task.id())),
            _ => None,
        }
    }
}

/// A scope around a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SeenScope {
    /// A scope with a deadline, which may have passed.
    #[non_exhaustive]
    Deadline {
        /// The deadline, by the kernel's clock.
        at: Deadline,
        /// The place of the call that set the deadline.
        set_at: &'static Location<'static>,
        /// Whether a grace after the deadline ends the scope, also behind a shield.
        has_grace: bool,
    },
    /// A shield, which hides the deadlines of the scopes around it, and a cancel.
    Shield,
}

/// A wait as listings show it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SeenWait {
    /// The trap.
    pub trap: TrapKind,
    /// The place where the task awaits the trap.
    pub place: &'static Location<'static>,
    /// The thing that the trap waits for, by [`Trap::about`](crate::Trap::about). `None` unless the
    /// task was [inspected](TaskRef::inspect).
    pub about: Option<About>,
    /// The thing itself, if other waits may be for the same one. `None` unless the task was
    /// inspected.
    pub thing: Option<SeenThing>,
    /// The scopes around the wait, the innermost first. Empty unless the task was inspected.
    pub scopes: Vec<SeenScope>,
    /// Whether the task polls the wait. `false`: the task has not polled the wait since the call of
    /// the wait's waker, as when a `select!` has left a combinator aside. Only a poll can end such
    /// a wait.
    pub is_polled: bool,
}

impl SeenWait {
    /// A wait of a task that was not inspected.
    pub(crate) fn plain(trap: TrapKind, place: &'static Location<'static>) -> Self {
        Self { trap, place, about: None, thing: None, scopes: Vec::new(), is_polled: true }
    }

    /// Whether a moment ends the wait, if nothing else does: the wait is for a moment or for the
    /// next step, or a deadline of a scope around the wait is to interrupt it, or the grace of such
    /// a scope is to drop it.
    pub fn ends_by_time(&self) -> bool {
        let is_timer = matches!(self.trap, TrapKind::Sleep | TrapKind::Elapse | TrapKind::Yield);
        let is_interruptible = self.trap != TrapKind::Elapse;
        let mut is_visible = is_interruptible;
        let ends_wait = |scope: &SeenScope| match scope {
            SeenScope::Deadline { at, has_grace, .. } => {
                !at.is_never() && (is_visible || *has_grace)
            }
            SeenScope::Shield => {
                is_visible = false;
                false
            }
        };
        is_timer || self.scopes.iter().any(ends_wait)
    }
}

impl Local {
    /// The scopes around the code that is being polled, the innermost first.
    fn seen_scopes(&self) -> Vec<SeenScope> {
        let mut scopes = Vec::new();
        let mut at = self.innermost();
        while let Some(scope) = at {
            scopes.push(scope.seen());
            at = scope.parent();
        }
        scopes
    }

    /// Notes a pending poll of a wait in an inspected task, for listings.
    pub(crate) fn note_seen(
        &self,
        task: &TaskRef,
        sub_wait: Option<SubWait>,
        (trap, place): (TrapKind, &'static Location<'static>),
        (about, thing): (Option<About>, Option<SeenThing>),
    ) {
        let seen =
            SeenWait { about, thing, scopes: self.seen_scopes(), ..SeenWait::plain(trap, place) };
        match sub_wait {
            Some(node) => self.sub_waits().set_seen(node, seen),
            None => task.note_seen(seen),
        }
    }
}

impl TaskRef {
    /// Schedules a step of the task, and polls of its sub-waits, and keeps all pending waits of
    /// that step for [`waits`](Self::waits), with all details. Each of the next few steps replaces
    /// them by its own, since combinators may need more than one. Then the details are gone.
    pub fn inspect(&self) {
        self.begin_inspection();
        door::reach(self.kernel(), |local| {
            local.make_ready(self);
            local.add_wakers(local.sub_waits().take_all_wakers(self));
            local.call_wakers();
        });
    }

    /// All pending waits of the task, without a look at other tasks: those of the last step that
    /// were polled with the task's own waker, and those that a combinator polls with other wakers.
    ///
    /// If the task was [inspected](Self::inspect) and stepped since, the list is complete, and has
    /// the details. Otherwise the list has only the last wait of those with the task's own waker.
    pub fn waits(&self) -> Vec<SeenWait> {
        let mut waits = self.seen_waits();
        door::reach(self.kernel(), |local| local.sub_waits().push_waits_of(self, &mut waits));
        waits
    }
}
