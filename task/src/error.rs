//! What went wrong in a group: every failure, none hidden behind another.

use std::error::Error;
use std::fmt;
use std::io;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskError, TaskId, TaskRef};

/// An error of any type, as members of a group return them.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Why a member of a group gave no value: it panicked, was cancelled, or returned an error.
pub struct Failure {
    task: TaskId,
    name: Box<str>,
    spawned_at: &'static Location<'static>,
    error: BoxError,
}

impl Failure {
    pub(crate) fn new(task: &TaskRef, error: BoxError) -> Self {
        Self { task: task.id(), name: task.name().into(), spawned_at: task.spawned_at(), error }
    }

    /// The task's number.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The task's name; empty where none was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }

    /// What it failed with: a [`TaskError`] if it panicked or was cancelled, otherwise the error
    /// that it returned. `downcast_ref` tells.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }

    /// What it failed with, to be kept.
    pub fn into_error(self) -> Box<dyn Error + Send + Sync> {
        self.error
    }

    /// What the member panicked with, if it did and that is a text.
    pub fn panic_message(&self) -> Option<&str> {
        self.task_error()?.panic_message()
    }

    /// Whether the member panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.task_error(), Some(TaskError::Panicked(_)))
    }

    /// Whether somebody outside the group cancelled the member.
    pub fn is_cancelled(&self) -> bool {
        self.task_error().is_some_and(TaskError::is_cancelled)
    }

    fn task_error(&self) -> Option<&TaskError> {
        self.error.downcast_ref()
    }

    /// Says in the log what nobody is told otherwise.
    pub(crate) fn log(&self) {
        let (task, name, spawned_at) = (self.task.0, &*self.name, self.spawned_at);
        let error = &self.error;
        match self.is_panic() {
            true => tracing::error!(task, name, %spawned_at, %error, "a member of a group crashed"),
            false => tracing::warn!(task, name, %spawned_at, %error, "a member of a group failed"),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("task", &self.task.0)
            .field("name", &self.name)
            .field("spawned_at", &format_args!("{}", self.spawned_at))
            .field("error", &self.error)
            .finish()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.task)?;
        if !self.name.is_empty() {
            write!(f, " `{}`", self.name)?;
        }
        write!(f, " (spawned at {}): {}", self.spawned_at, self.error)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

/// Why joining a group did not give what was wanted.
///
/// All members have ended when this is returned. It tells all that is known: whether the one that
/// joined was [interrupted](Self::interrupted), and every [failure](Self::failures). If there was
/// neither, the group had no member whose value could have been returned.
///
/// Its source is the interruption, if there was one, otherwise the first failure.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake_task::TaskGroup;
///
/// let mut group = TaskGroup::new();
/// group.spawn_named("reader", async { "12".parse::<u8>() });
/// group.spawn_named("writer", async { "many".parse::<u8>() });
/// let error = group.try_join_all().await.unwrap_err();
/// assert_eq!(error.failures().len(), 1);
/// assert_eq!(error.failures()[0].name(), "writer");
/// # }
/// # pikake_sim::example(example());
/// ```
pub struct GroupError(Box<Inside>);

#[derive(Default)]
struct Inside {
    interrupted: Option<Interrupted>,
    failures: Vec<Failure>,
    aftermath: Vec<Failure>,
}

impl GroupError {
    pub(crate) fn new(
        interrupted: Option<Interrupted>,
        failures: Vec<Failure>,
        aftermath: Vec<Failure>,
    ) -> Self {
        Self(Box::new(Inside { interrupted, failures, aftermath }))
    }

    /// The interruption of the one that joined, if that is why the group was ended.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        self.0.interrupted.as_ref()
    }

    /// The members that failed, in the order in which they did.
    ///
    /// A member that the group had asked to end is among them only if it panicked.
    pub fn failures(&self) -> &[Failure] {
        &self.0.failures
    }

    /// The failures, to be kept.
    pub fn into_failures(self) -> Vec<Failure> {
        self.0.failures
    }

    /// The errors that members returned after the group had asked them to end.
    ///
    /// Mostly they say just that, which is why they are not counted as failures. A member whose
    /// cleanup went wrong tells so here.
    pub fn aftermath(&self) -> &[Failure] {
        &self.0.aftermath
    }

    /// Whether nothing went wrong, but there was no member whose value could have been returned.
    pub fn had_no_members(&self) -> bool {
        self.0.interrupted.is_none() && self.0.failures.is_empty()
    }
}

/// So that a block can use `?` on its waits.
impl From<Interrupted> for GroupError {
    fn from(interrupted: Interrupted) -> Self {
        Self::new(Some(interrupted), Vec::new(), Vec::new())
    }
}

/// The kind is that of the interruption, if there was one (see the conversion from
/// [`Interrupted`]), otherwise `Other`.
impl From<GroupError> for io::Error {
    fn from(error: GroupError) -> Self {
        let is_timeout = error.interrupted().is_some_and(Interrupted::is_timeout);
        let kind = if is_timeout { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
        Self::new(kind, error)
    }
}

impl fmt::Debug for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupError")
            .field("interrupted", &self.0.interrupted)
            .field("failures", &self.0.failures)
            .field("aftermath", &self.0.aftermath)
            .finish()
    }
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failures = &self.0.failures;
        match (&self.0.interrupted, failures.is_empty()) {
            (None, true) => return f.write_str("the group had no member that could give a value"),
            (Some(why), true) => return write!(f, "joining the group was cut short ({why})"),
            (Some(why), false) => write!(f, "joining the group was cut short ({why}), and ")?,
            (None, false) => {}
        }
        match &**failures {
            [only] => write!(f, "a task of the group failed: {only}"),
            _ => write!(f, "{} tasks of the group failed, first {}", failures.len(), failures[0]),
        }
    }
}

impl Error for GroupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.interrupted {
            Some(why) => Some(why),
            None => self.0.failures.first().map(|failure| failure as _),
        }
    }
}

/// The group takes no further members: it has been joined or dropped, or its members are being
/// asked to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupEnded;

impl fmt::Display for GroupEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the task group has ended and takes no further members: spawn before it is joined, or \
             from a member that it still waits for",
        )
    }
}

impl Error for GroupEnded {}
