//! What a task sees when it is interrupted, and how a task ends.
//!
//! An interruption is an ordinary error value that an await returns. It says why
//! ([`Interrupted::is_cancel`], [`Interrupted::is_timeout`]) and who owns it: a deadline belongs to
//! the scope that set it, a cancel to the task as a whole. Code between the two passes it on with
//! `?`, like any other error; only the owner turns it into [`TimedOut`].

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::catch::text_of;

/// Names one scope of one kernel: the number of the moment at which it was opened, which no other
/// scope of that kernel has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScopeId(pub u64);

/// The error of a wait that was cut short by a deadline or by a cancel.
///
/// It is small, cheap to clone, and may be sent to other threads.
///
/// # Examples
///
/// ```
/// use pikake_traps::Interrupted;
///
/// let stop = Interrupted::cancelled("client went away");
/// assert!(stop.is_cancel());
/// assert_eq!(stop.to_string(), "cancelled: client went away");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Interrupted(Cause);

#[derive(Clone, PartialEq, Eq)]
enum Cause {
    /// A deadline passed; the scope that set it.
    TimedOut(ScopeId),
    /// Somebody asked the task to end; what they said.
    Cancelled(Option<Arc<str>>),
}

impl Interrupted {
    /// The interruption of a task that was asked to end, with the words of whoever asked.
    ///
    /// An empty reason means that none was given.
    pub fn cancelled(reason: &str) -> Self {
        Self(Cause::Cancelled((!reason.is_empty()).then(|| Arc::from(reason))))
    }

    /// The interruption of everything inside the scope whose deadline passed.
    pub(crate) fn timed_out(scope: ScopeId) -> Self {
        Self(Cause::TimedOut(scope))
    }

    /// Whether the task was asked to end.
    pub fn is_cancel(&self) -> bool {
        matches!(self.0, Cause::Cancelled(_))
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self.0, Cause::TimedOut(_))
    }

    /// What whoever cancelled the task said, if it was a cancel and they said anything.
    pub fn reason(&self) -> Option<&str> {
        match &self.0 {
            Cause::Cancelled(reason) => reason.as_deref(),
            Cause::TimedOut(_) => None,
        }
    }

    /// The scope whose deadline passed; `None` for a cancel, which belongs to the whole task.
    pub fn owner(&self) -> Option<ScopeId> {
        match self.0 {
            Cause::TimedOut(scope) => Some(scope),
            Cause::Cancelled(_) => None,
        }
    }
}

/// The text that [`Display`](fmt::Display) gives, in the name of the type.
impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupted").field(&format_args!("{self}")).finish()
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::TimedOut(_) => f.write_str("a deadline passed"),
            Cause::Cancelled(None) => f.write_str("cancelled"),
            Cause::Cancelled(Some(reason)) => write!(f, "cancelled: {reason}"),
        }
    }
}

impl std::error::Error for Interrupted {}

/// An interruption inside an I/O error.
///
/// Its kind is never [`std::io::ErrorKind::Interrupted`], because standard library and ecosystem
/// retry on that one: a deadline becomes `TimedOut`, a cancel `Other`. The [`Interrupted`] is the
/// error's payload: `error.get_ref()` and `downcast_ref` find it.
///
/// # Examples
///
/// ```
/// use pikake_traps::Interrupted;
/// use std::io;
///
/// let error = io::Error::from(Interrupted::cancelled("stop"));
/// assert_eq!(error.kind(), io::ErrorKind::Other);
/// let inside = error.get_ref().and_then(|e| e.downcast_ref::<Interrupted>());
/// assert_eq!(inside.and_then(Interrupted::reason), Some("stop"));
/// ```
impl From<Interrupted> for std::io::Error {
    fn from(interrupted: Interrupted) -> Self {
        let kind = if interrupted.is_timeout() {
            std::io::ErrorKind::TimedOut
        } else {
            std::io::ErrorKind::Other
        };
        Self::new(kind, interrupted)
    }
}

/// The deadline of [`timeout_after`](crate::timeout_after) passed and its body was told so.
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

/// Why joining a task gave no value.
#[non_exhaustive]
pub enum TaskError {
    /// The task was cancelled and ended without a value of its own: it was dropped unpolled,
    /// aborted, or dropped with its kernel.
    Cancelled(Interrupted),
    /// The task panicked.
    Panicked(Panic),
    /// Not the task but the one that waited for it was interrupted. The task goes on.
    Interrupted(Interrupted),
    /// The kernel was stopped before the task ended. Only `try_run` reports it.
    Stopped,
}

impl TaskError {
    /// Whether the task ended by a cancel.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }

    /// What the task panicked with, where that is a text.
    pub fn panic_message(&self) -> Option<&str> {
        match self {
            Self::Panicked(panic) => panic.message(),
            _ => None,
        }
    }
}

/// So that joining and other waits can share a `?`.
impl From<Interrupted> for TaskError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// What a task panicked with.
pub struct Panic(Box<Panicked>);

/// Boxed, so that the outcome of a task that does not panic is small.
struct Panicked {
    message: Option<Box<str>>,
    /// The mutex makes the error one that threads may share; it is locked for nothing else.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl Panic {
    /// Keeps what a closure panicked with.
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = text_of(&*payload).map(Into::into);
        Self(Box::new(Panicked { message, payload: Mutex::new(payload) }))
    }

    /// The text of the panic, where it is one.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// What [`std::panic::resume_unwind`] takes to go on with the panic.
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
            Self::Cancelled(why) | Self::Interrupted(why) => Some(why),
            Self::Panicked(_) | Self::Stopped => None,
        }
    }
}
