//! The errors of a group: every failure of its members.

use std::error::Error;
use std::fmt;
use std::io;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskError, TaskId, TaskRef};

/// An error of any type, from a member of a group.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The failure of a group's member, which panicked, was cancelled, or returned an error.
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

    /// The task's name; empty for a task without a name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The place where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }

    /// The error: a [`TaskError`] if the member panicked or was cancelled, otherwise the member's
    /// own. Use `downcast_ref` to find out.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }

    /// Turns the failure into its error.
    pub fn into_error(self) -> Box<dyn Error + Send + Sync> {
        self.error
    }

    /// The text of the member's panic, if it panicked and the payload is a text.
    pub fn panic_message(&self) -> Option<&str> {
        self.task_error()?.panic_message()
    }

    /// Whether the member panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.task_error(), Some(TaskError::Panicked(_)))
    }

    /// Whether the member was cancelled from outside the group.
    pub fn is_cancelled(&self) -> bool {
        self.task_error().is_some_and(TaskError::is_cancelled)
    }

    fn task_error(&self) -> Option<&TaskError> {
        self.error.downcast_ref()
    }

    /// Logs a failure that no caller gets.
    pub(crate) fn log(&self) {
        let (task, name, spawned_at) = (self.task.0, &*self.name, self.spawned_at);
        let error = &self.error;
        let panic = self.task_error().and_then(TaskError::panic);
        match panic {
            Some(panic) => tracing::error!(
                task,
                name,
                %spawned_at,
                panicked_at = panic.place().map(display),
                %error,
                "a member of a group crashed"
            ),
            None => tracing::warn!(task, name, %spawned_at, %error, "a member of a group failed"),
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

/// The error of joining a group.
///
/// All members have ended when a join returns this error. The error has the
/// [interruption](Self::interrupted) of the joiner, if any, and every [failure](Self::failures).
/// Without both, the group had no member whose value could have been returned.
///
/// The source is the interruption, if there was one, otherwise the first failure.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake::TaskGroup;
///
/// let mut group = TaskGroup::new();
/// group.spawn_named("reader", async { "12".parse::<u8>() });
/// group.spawn_named("writer", async { "many".parse::<u8>() });
/// let error = group.try_join_all().await.unwrap_err();
/// assert_eq!(error.failures().len(), 1);
/// assert_eq!(error.failures()[0].name(), "writer");
/// # }
/// # pikake::sim::example(example());
/// ```
pub struct GroupError(Box<Inner>);

#[derive(Default)]
struct Inner {
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
        Self(Box::new(Inner { interrupted, failures, aftermath }))
    }

    /// The interruption of the joiner, if it ended the group.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        self.0.interrupted.as_ref()
    }

    /// The members that failed, in the order of their ends.
    ///
    /// A member that the group had asked to end is in the list only if it panicked.
    pub fn failures(&self) -> &[Failure] {
        &self.0.failures
    }

    /// Turns the error into its failures.
    pub fn into_failures(self) -> Vec<Failure> {
        self.0.failures
    }

    /// The errors that members returned after the group had asked them to end.
    ///
    /// Mostly they are that very request, so they do not count as failures. Errors of cleanup are
    /// here, too.
    pub fn aftermath(&self) -> &[Failure] {
        &self.0.aftermath
    }

    /// Whether there was no failure, but also no member whose value could have been returned.
    pub fn had_no_members(&self) -> bool {
        self.0.interrupted.is_none() && self.0.failures.is_empty()
    }
}

/// For a block that uses `?` on its waits.
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
