//! The reasons why a server ends.

use std::{fmt, io};

use pikake_traps::{Closed, Interrupted};

/// The reason why a server has ended. See [`serve`](crate::serve()) and
/// [`serve_until`](crate::serve_until).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// [`Closing::begin`](crate::Closing::begin) was called.
    Asked,
    /// Its task was interrupted.
    Interrupted(Interrupted),
    /// The listener was closed ([`Closed`]): no connection follows.
    Closed,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("the server was asked to end"),
            Self::Interrupted(why) => write!(f, "the server was interrupted: {why}"),
            Self::Closed => f.write_str("the server's listener was closed"),
        }
    }
}

/// Whether the error of a listener says that it was closed.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inside| inside.is::<Closed>())
}
