//! Errors of queues and channels. A failed `put` or `send` returns the item in its error.

use std::error::Error;
use std::fmt;
use std::io;

use pikake_traps::Interrupted;

/// A lock is held, or others wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TryLockError;

impl fmt::Display for TryLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lock is held, or others wait for it")
    }
}

impl Error for TryLockError {}

/// An item was sent to nobody: there are no receivers. The error holds the item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there are no receivers")
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendError").finish_non_exhaustive()
    }
}

impl<T> Error for SendError<T> {}

/// Drops the item. The kind is `BrokenPipe`.
impl<T> From<SendError<T>> for io::Error {
    fn from(error: SendError<T>) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, error.to_string())
    }
}

/// Why [`Queue::try_get`](crate::AnyQueue::try_get) returned no item.
#[doc(alias = "TryRecvError")]
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

/// An item was not put into a queue or not sent, by a call that waits for room. The error holds the
/// item.
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
///
/// The error is `Send` if the item is. A `Box<dyn Error + Send + Sync>` can have the reason of any:
///
/// ```
/// use pikake::sync::Queue;
/// use std::error::Error;
/// use std::rc::Rc;
///
/// async fn put(queue: &Queue<Rc<str>>) -> Result<(), Box<dyn Error + Send + Sync>> {
///     queue.put("parcel".into()).await.map_err(|error| error.why)?;
///     Ok(())
/// }
/// # pikake::sim::example(async { put(&Queue::unbounded()).await }).unwrap();
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
    /// The wait for room was interrupted.
    Interrupted(Interrupted),
}

impl<T> PutError<T> {
    pub(crate) fn new(item: T, why: NotPut) -> Self {
        Self { item, why }
    }

    /// The item.
    #[doc(alias = "into_inner")]
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

/// `BrokenPipe` if the queue is closed. Otherwise as the conversion from [`Interrupted`].
impl From<NotPut> for io::Error {
    fn from(why: NotPut) -> Self {
        match why {
            NotPut::Interrupted(why) => why.into(),
            NotPut::Closed => Self::new(io::ErrorKind::BrokenPipe, why),
        }
    }
}

/// Drops the item. Otherwise as the conversion from [`NotPut`].
impl<T> From<PutError<T>> for io::Error {
    fn from(error: PutError<T>) -> Self {
        error.why.into()
    }
}

/// An item was not put into a queue or not sent, by a call that no interruption can end: it does
/// not wait, or blocks a thread. The error holds the item.
// Exhaustive, as in tokio: a `match` names both reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TryPutError<T> {
    /// There is no room, or was none in time.
    Full(T),
    /// The queue is closed, or the receiver is gone.
    Closed(T),
}

impl<T> TryPutError<T> {
    /// The item.
    #[doc(alias = "into_inner")]
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Closed(item) => item,
        }
    }
}

impl<T> fmt::Display for TryPutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("an item was not put: there is no room"),
            Self::Closed(_) => write!(f, "an item was not put: {}", NotPut::Closed),
        }
    }
}

impl<T> fmt::Debug for TryPutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> Error for TryPutError<T> {}

/// Drops the item. `WouldBlock` if there is no room, `BrokenPipe` if the queue is closed.
impl<T> From<TryPutError<T>> for io::Error {
    fn from(error: TryPutError<T>) -> Self {
        let kind = match error {
            TryPutError::Full(_) => io::ErrorKind::WouldBlock,
            TryPutError::Closed(_) => io::ErrorKind::BrokenPipe,
        };
        Self::new(kind, error.to_string())
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
