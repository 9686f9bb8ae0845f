//! Why nothing was put into a queue or a channel, or got out of one.
//!
//! What could not be put is in the error, so that nothing is lost.

use std::error::Error;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

/// Why nothing came out of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GetError {
    /// The queue is closed, and empty.
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

/// `UnexpectedEof` if the queue is closed; see the conversion from [`Interrupted`] otherwise.
impl From<GetError> for io::Error {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Closed => Self::new(io::ErrorKind::UnexpectedEof, error),
            GetError::Interrupted(why) => why.into(),
        }
    }
}

/// Why [`Queue::try_get`](crate::AnyQueue::try_get) got nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TryGetError {
    /// There is nothing that is not spoken for.
    Empty,
    /// There is nothing, and there will be nothing.
    Closed,
}

impl fmt::Display for TryGetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "nothing is there to be taken",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl Error for TryGetError {}

/// An item was not put into a queue or sent into a channel: why, and the item.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_sync::{NotPut, Queue};
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
    /// What was to be put.
    pub item: T,
    /// Why it was not.
    pub why: NotPut,
}

/// Why an item was not put.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotPut {
    /// Nobody takes anything any more.
    Closed,
    /// There is no room, and it was not to be waited for.
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

    /// The item, to be kept.
    pub fn into_item(self) -> T {
        self.item
    }

    /// The interruption, if that is why.
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
            Self::Closed => f.write_str("nobody takes anything any more"),
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

/// Gives the item up. `BrokenPipe` if nobody takes anything any more, `WouldBlock` if there is no
/// room, `TimedOut` after a deadline of its own; see the conversion from [`Interrupted`] otherwise.
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
        f.write_str("`task_done` was called more often than items were put: call it once for each")
    }
}

impl Error for NothingToDo {}
