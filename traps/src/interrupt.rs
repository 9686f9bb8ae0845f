//! The errors of interrupted waits, and of joins.
//!
//! An interruption is an ordinary error value that an await returns. The value names the reason
//! ([`Interrupted::is_cancel`], [`Interrupted::is_timeout`]) and the owner: a deadline belongs to
//! the scope that set it, a cancel to the task as a whole. Code between the wait and the owner
//! passes the error on with `?`, like any other error. Only the owner turns the error into
//! [`TimedOut`].

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use crate::panic_place::{take_place, text_of};

/// Names a scope of a kernel, by the number of the moment at which the scope was opened. No two
/// scopes of a kernel have the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScopeId(pub u64);

/// The error of a wait that a deadline or a cancel interrupted.
///
/// The value is a pointer, so a `Result<(), Interrupted>` is one word. It is cheap to clone, and
/// may be sent to other threads.
///
/// # Examples
///
/// ```
/// use pikake::Interrupted;
///
/// let stop = Interrupted::cancelled("client went away");
/// assert!(stop.is_cancel());
/// assert_eq!(stop.to_string(), "cancelled: client went away");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Interrupted(Arc<Cause>);

#[derive(Clone, PartialEq, Eq)]
enum Cause {
    /// The deadline of this scope passed. The call at this place had set the deadline.
    TimedOut(ScopeId, &'static Location<'static>),
    /// The task was asked to end, perhaps with a reason.
    Cancelled(Option<Box<str>>),
}

impl Interrupted {
    /// The interruption of a task that was asked to end, with the reason.
    ///
    /// An empty text is no reason.
    pub fn cancelled(reason: &str) -> Self {
        Self(Arc::new(Cause::Cancelled((!reason.is_empty()).then(|| reason.into()))))
    }

    /// The interruption of all waits inside the scope whose deadline passed.
    pub(crate) fn timed_out(scope: ScopeId, set_at: &'static Location<'static>) -> Self {
        Self(Arc::new(Cause::TimedOut(scope, set_at)))
    }

    /// The same interruption, of which nobody else has a clone.
    pub(crate) fn not_held(self) -> Self {
        if self.is_held() { Self(Arc::new(Cause::clone(&self.0))) } else { self }
    }

    /// Whether a clone of this value exists.
    pub(crate) fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether the task was asked to end.
    pub fn is_cancel(&self) -> bool {
        matches!(*self.0, Cause::Cancelled(_))
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(*self.0, Cause::TimedOut(..))
    }

    /// The reason of a cancel, if there is one.
    pub fn reason(&self) -> Option<&str> {
        match &*self.0 {
            Cause::Cancelled(reason) => reason.as_deref(),
            Cause::TimedOut(..) => None,
        }
    }

    /// The scope whose deadline passed; `None` for a cancel, which belongs to the whole task.
    pub fn owner(&self) -> Option<ScopeId> {
        match *self.0 {
            Cause::TimedOut(scope, _) => Some(scope),
            Cause::Cancelled(_) => None,
        }
    }
}

/// The text of [`Display`](fmt::Display), with the name of the type, and the place of the call that
/// set the deadline.
impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interrupted({self}")?;
        if let Cause::TimedOut(_, set_at) = *self.0 {
            write!(f, ", set at {set_at}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Cause::TimedOut(..) => f.write_str("a deadline passed"),
            Cause::Cancelled(None) => f.write_str("cancelled"),
            Cause::Cancelled(Some(reason)) => write!(f, "cancelled: {reason}"),
        }
    }
}

impl std::error::Error for Interrupted {}

/// An interruption inside an I/O error.
///
/// A deadline becomes the kind `TimedOut`, a cancel `Other`. The kind is never
/// [`std::io::ErrorKind::Interrupted`], because the standard library and other crates retry on that
/// one. The [`Interrupted`] is the [source](std::error::Error::source) of the error, also of one
/// that passes its sources on, as `#[error(transparent)]` of `thiserror` does.
///
/// # Examples
///
/// ```
/// use pikake::Interrupted;
/// use std::{error::Error, io};
///
/// let error = io::Error::from(Interrupted::cancelled("stop"));
/// assert_eq!(error.kind(), io::ErrorKind::Other);
/// let inside = error.source().and_then(|e| e.downcast_ref::<Interrupted>());
/// assert_eq!(inside.and_then(Interrupted::reason), Some("stop"));
/// ```
impl From<Interrupted> for std::io::Error {
    fn from(interrupted: Interrupted) -> Self {
        let kind = if interrupted.is_timeout() {
            std::io::ErrorKind::TimedOut
        } else {
            std::io::ErrorKind::Other
        };
        Self::new(kind, InIoError(interrupted))
    }
}

/// The payload of an I/O error. [`std::io::Error::source`] is the source of the payload, and not
/// the payload.
struct InIoError(Interrupted);

impl fmt::Debug for InIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for InIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for InIoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The deadline of [`timeout_after`](crate::timeout_after) passed, and interrupted or dropped the
/// body.
#[doc(alias = "Elapsed")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for TimedOut {}

impl From<TimedOut> for std::io::Error {
    fn from(timed_out: TimedOut) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, timed_out)
    }
}

/// The reason why the join of a task gave no value.
#[doc(alias = "JoinError")]
#[non_exhaustive]
pub enum TaskError {
    /// The task ended by a cancel, without a value: it was dropped unpolled, aborted, dropped by
    /// the rules of interruption, or dropped with its kernel.
    Cancelled(Interrupted),
    /// The task panicked.
    Panicked(Panic),
    /// The joining task was interrupted. The joined task goes on.
    Interrupted(Interrupted),
    /// The kernel was stopped before the task ended. Only `try_run` reports it.
    Stopped,
}

impl TaskError {
    /// Whether the task ended by a cancel.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }

    /// The text of the task's panic, if its payload is a text.
    pub fn panic_message(&self) -> Option<&str> {
        self.panic()?.message()
    }

    /// The task's panic, if it panicked.
    pub fn panic(&self) -> Option<&Panic> {
        match self {
            Self::Panicked(panic) => Some(panic),
            _ => None,
        }
    }
}

/// For code that uses `?` on joins and on other waits.
impl From<Interrupted> for TaskError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// An interruption of the wait is the interruption itself. Any other end of the task is an error of
/// the kind `Other`.
impl From<TaskError> for std::io::Error {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Interrupted(interrupted) => interrupted.into(),
            error => Self::other(error),
        }
    }
}

/// The panic of a task.
pub struct Panic(Box<Panicked>);

/// Boxed, so that the outcome of a task that does not panic is small.
struct Panicked {
    message: Option<Box<str>>,
    place: Option<Box<str>>,
    /// The mutex makes the error `Sync`, and has no other use.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl Panic {
    /// The panic with this payload, which the calling thread has just caught.
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = text_of(&*payload).map(Into::into);
        let place = take_place(&*payload);
        Self(Box::new(Panicked { message, place, payload: Mutex::new(payload) }))
    }

    /// The text of the panic, if its payload is a text.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// The file, line and column of the panic, as `src/main.rs:7:5`.
    ///
    /// `None` unless [`note_panic_places`](crate::note_panic_places) was called before the panic,
    /// as `#[pikake::main]` does.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// The payload, for [`std::panic::resume_unwind`].
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message().unwrap_or("(not a text)")).finish()
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled(why) => {
                f.debug_tuple("Cancelled").field(&format_args!("{why}")).finish()
            }
            Self::Panicked(panic) => panic.fmt(f),
            Self::Interrupted(why) => why.fmt(f),
            Self::Stopped => f.write_str("Stopped"),
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled(why) => write!(f, "the task ended by a cancel ({why})"),
            Self::Panicked(panic) => match panic.message() {
                Some(text) => write!(f, "the task panicked: {text}"),
                None => f.write_str("the task panicked"),
            },
            Self::Interrupted(why) => write!(f, "waiting for the task was cut short ({why})"),
            Self::Stopped => f.write_str("the kernel was stopped before the task ended"),
        }
    }
}

impl std::error::Error for TaskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Interrupted(why) => Some(why),
            // A cancel of another task is no interruption of the one that has this error.
            Self::Cancelled(_) | Self::Panicked(_) | Self::Stopped => None,
        }
    }
}
