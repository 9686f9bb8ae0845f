//! Why a caller got no object.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pikake_traps::Interrupted;

use crate::holder::{Holder, holders_text};

/// Why [`Pool::get`](crate::Pool::get) gave no lease.
#[non_exhaustive]
pub enum GetError<E> {
    /// All objects were in use for as long as the caller waited.
    Exhausted(Exhausted),
    /// No object could be made, and none is in use that could come back.
    Create(CreateError<E>),
    /// A new object failed its [verification](crate::Verify::Always), and none is in use that could
    /// come back.
    Verify(Arc<E>),
    /// The pool is closed: by [`close`](crate::Pool::close), or since its kernel has ended.
    Closed,
    /// The wait was interrupted.
    Interrupted(Interrupted),
}

impl<E> GetError<E> {
    /// Whether the wait was interrupted, by a cancel or by a deadline around the call.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted(_))
    }
}

impl<E> Clone for GetError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Exhausted(exhausted) => Self::Exhausted(exhausted.clone()),
            Self::Create(error) => Self::Create(error.clone()),
            Self::Verify(error) => Self::Verify(error.clone()),
            Self::Closed => Self::Closed,
            Self::Interrupted(why) => Self::Interrupted(why.clone()),
        }
    }
}

impl<E> From<Interrupted> for GetError<E> {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// [`TimedOut`](io::ErrorKind::TimedOut) if all objects were in use,
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the pool is closed. An interruption is converted as
/// everywhere. Any other error has the kind `Other`.
impl<E: Error + Send + Sync + 'static> From<GetError<E>> for io::Error {
    fn from(error: GetError<E>) -> Self {
        let kind = match error {
            GetError::Interrupted(interrupted) => return interrupted.into(),
            GetError::Exhausted(_) => io::ErrorKind::TimedOut,
            GetError::Closed => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl<E: fmt::Display> fmt::Display for GetError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(exhausted) => exhausted.fmt(f),
            Self::Create(error) => error.fmt(f),
            Self::Verify(error) => write!(f, "a new object failed its verification: {error}"),
            Self::Closed => f.write_str("the pool is closed"),
            Self::Interrupted(why) => write!(f, "waiting for an object was cut short ({why})"),
        }
    }
}

impl<E: fmt::Display> fmt::Debug for GetError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GetError({self})")
    }
}

impl<E: Error + 'static> Error for GetError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Create(error) => error.source(),
            Self::Verify(error) => Some(&**error),
            Self::Interrupted(why) => Some(why),
            Self::Exhausted(_) | Self::Closed => None,
        }
    }
}

/// All objects of a pool were in use for as long as the caller waited.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exhausted {
    /// The name of the pool; empty without one.
    pub pool: String,
    /// How long the caller waited.
    pub waited: Duration,
    /// The greatest number of objects.
    pub limit: usize,
    /// The number of leases that are not dropped.
    pub leased: usize,
    /// The holders of the oldest leases, the oldest first: five at most, so that many callers who
    /// give up cost little.
    pub holders: Vec<Holder>,
    /// How many objects all pools of the [common limit](crate::Limit) have, and that limit.
    pub common: Option<(usize, usize)>,
    /// The last failure of a creation, if the last one failed.
    pub creation_failed: Option<String>,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, waited, limit, leased, holders, common, creation_failed } = self;
        f.write_str("the pool ")?;
        if !pool.is_empty() {
            write!(f, "`{pool}` ")?;
        }
        write!(f, "gave no object within {waited:?}: {leased} of {limit} are in use")?;
        if !holders.is_empty() {
            write!(f, ", {}", holders_text(holders, *leased))?;
        }
        if let Some((used, limit)) = common {
            write!(f, "; the pools of the common limit have {used} of {limit} objects")?;
        }
        if let Some(failure) = creation_failed {
            write!(f, "; the last creation failed: {failure}")?;
        }
        Ok(())
    }
}

impl Error for Exhausted {}

/// An object could not be made. All callers that waited for the creation get the same error.
#[non_exhaustive]
pub struct CreateError<E> {
    /// The manager's error. `None` if the creation took too long, or panicked; the kernel has
    /// logged the panic. The [verification](crate::Verify::Always) of the new object is a part of
    /// its creation.
    pub error: Option<Arc<E>>,
    /// Whether the creation took longer than [`create_within`](crate::Builder::create_within), or
    /// the verification of the new object longer than
    /// [`clean_within`](crate::Builder::clean_within).
    pub is_timeout: bool,
    /// How many attempts have failed since the last one that succeeded. Creations at the same time
    /// are one attempt.
    pub attempts: u32,
    /// In how much time the pool tries again, if it is asked; until then callers get this error at
    /// once.
    pub next_attempt: Duration,
}

impl<E> CreateError<E> {
    /// The error of a creation, before the pool knows of it.
    pub(crate) fn new(error: Option<E>, is_timeout: bool) -> Self {
        let (attempts, next_attempt) = (1, Duration::ZERO);
        Self { error: error.map(Arc::new), is_timeout, attempts, next_attempt }
    }
}

impl<E> Clone for CreateError<E> {
    fn clone(&self) -> Self {
        Self { error: self.error.clone(), ..*self }
    }
}

impl<E: fmt::Display> fmt::Display for CreateError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, is_timeout, attempts, next_attempt } = self;
        match error {
            Some(error) => write!(f, "an object could not be made: {error}")?,
            None if *is_timeout => f.write_str("the creation of an object took too long")?,
            None => f.write_str("the creation of an object panicked")?,
        }
        write!(f, " (attempt {attempts}; the next one in {next_attempt:?})")
    }
}

impl<E: fmt::Display> fmt::Debug for CreateError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CreateError({self})")
    }
}

impl<E: Error + 'static> Error for CreateError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.as_ref().map(|error| &**error as _)
    }
}

/// An object was not added to a pool, and is returned.
#[non_exhaustive]
pub struct AddError<T> {
    /// The object.
    pub object: T,
    /// Why the pool did not take the object.
    pub why: NotAdded,
}

/// Why a pool did not take an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotAdded {
    /// The pool has as many objects as its limit allows.
    Full,
    /// The pool is closed.
    Closed,
}

impl<T> fmt::Display for AddError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the object was not added: the pool is ")?;
        f.write_str(match self.why {
            NotAdded::Full => "full",
            NotAdded::Closed => "closed",
        })
    }
}

impl<T> fmt::Debug for AddError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddError").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<T> Error for AddError<T> {}
