//! Waits as listings show them: the thing that a wait is for, and the scopes around the wait. See
//! `listing.rs`.

use std::fmt;
use std::panic::Location;

use pikake_time::Deadline;

use crate::kind::TrapKind;
use crate::names::TaskId;
use crate::queue::WaitQueue;
use crate::socket::SocketId;

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
    thing: Option<SeenThing>,
}

impl About {
    /// A description without owners: any task, another thread or the system may end the wait.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self { text: text.into(), owners: Vec::new(), is_granted: false, thing: None }
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

    /// Names the thing itself, if other waits may be for the same one.
    pub fn of(self, thing: SeenThing) -> Self {
        Self { thing: Some(thing), ..self }
    }

    pub(crate) fn thing(&self) -> Option<SeenThing> {
        self.thing
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
    /// A wait queue.
    pub(crate) fn queue(queue: &WaitQueue) -> Self {
        Self::Queue(std::ptr::from_ref(queue).addr())
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
    /// task was [inspected](crate::TaskRef::inspect).
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
        let mut is_visible = self.trap.is_interruptible();
        let ends_wait = |scope: &SeenScope| match scope {
            SeenScope::Deadline { at, has_grace, .. } => {
                !at.is_never() && (is_visible || *has_grace)
            }
            SeenScope::Shield => {
                is_visible = false;
                false
            }
        };
        self.trap.is_timer() || self.scopes.iter().any(ends_wait)
    }
}
