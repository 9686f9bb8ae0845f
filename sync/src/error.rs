//! Errors of queues and channels. A failed `put` or `send` returns the item in its error.

use std::error::Error;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

/// Why `get` returned no item.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GetError {
    /// The queue is closed and empty.
    Closed,
    /// The wait was interrupted.
    Interrupted(Interrupted),
}

impl From<Interrupted> for GetError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the queue is closed and empty"),
            Self::Interrupted(why) => write!(f, "waiting for an item was cut short ({why})"),
        }
    }
}

impl Error for GetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Closed => None,
            Self::Interrupted(why) => Some(why),
        }
    }
}

/// `UnexpectedEof` if the queue is closed. Otherwise as the conversion from [`Interrupted`].
impl From<GetError> for io::Error {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Closed => Self::new(io::ErrorKind::UnexpectedEof, error),
            GetError::Interrupted(why) => why.into(),
        }
    }
}

/// Why [`Queue::try_get`](crate::AnyQueue::try_get) returned no item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TryGetError {
    /// The queue is empty, or its items are granted to waiters.
    Empty,
    /// The queue is closed and empty.
    Closed,
}

impl fmt::Display for TryGetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no item is available",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl Error for TryGetError {}

/// An item was not put into a queue or not sent. The error holds the item.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::{NotPut, Queue};
///
/// let queue = Queue::unbounded();
/// queue.close();
/// let error = queue.put("parcel").await.unwrap_err();
/// assert_eq!((error.item, error.why), ("parcel", NotPut::Closed));
/// # });
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutError<T> {
    /// The item.
    pub item: T,
    /// Why the item was not put.
    pub why: NotPut,
}

/// Why an item was not put.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotPut {
    /// The queue is closed, or the receiver is gone.
    Closed,
    /// There is no room, and the call does not wait.
    Full,
    /// There was no room in time.
    TimedOut,
    /// The wait for room was interrupted.
    Interrupted(Interrupted),
}

impl<T> PutError<T> {
    pub(crate) fn new(item: T, why: NotPut) -> Self {
        Self { item, why }
    }

    /// The item.
    pub fn into_item(self) -> T {
        self.item
    }

    /// The interruption, if the wait was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match &self.why {
            NotPut::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}

impl fmt::Display for NotPut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the queue or channel is closed"),
            Self::Full => f.write_str("there is no room"),
            Self::TimedOut => f.write_str("there was no room in time"),
            Self::Interrupted(why) => write!(f, "waiting for room was cut short ({why})"),
        }
    }
}

impl Error for NotPut {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted(why) => Some(why),
            _ => None,
        }
    }
}

impl<T> fmt::Display for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an item was not put: {}", self.why)
    }
}

impl<T> fmt::Debug for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutError").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<T> Error for PutError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.why)
    }
}

/// Drops the item. `BrokenPipe` if the queue is closed, `WouldBlock` if it is full, `TimedOut`
/// after the timeout of the call. Otherwise as the conversion from [`Interrupted`].
impl<T> From<PutError<T>> for io::Error {
    fn from(error: PutError<T>) -> Self {
        let kind = match error.why {
            NotPut::Closed => io::ErrorKind::BrokenPipe,
            NotPut::Full => io::ErrorKind::WouldBlock,
            NotPut::TimedOut => io::ErrorKind::TimedOut,
            NotPut::Interrupted(why) => return why.into(),
        };
        Self::new(kind, error.why)
    }
}

/// [`Queue::task_done`](crate::AnyQueue::task_done) was called more often than items were put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NothingToDo;

impl fmt::Display for NothingToDo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`task_done` was called more often than items were put: call it once per item")
    }
}

impl Error for NothingToDo {}
