//! A socket that is a kernel's, and stays with it.

use std::fmt;
use std::io;

use pikake_traps::{Attempt, Bound, SocketId, attempt};

/// Closes a kernel's socket when dropped, which [`Bound`] does at home.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) SocketId);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = attempt(self.0, Attempt::Close);
    }
}

/// A socket was used outside of its kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElsewhereUsed;

impl fmt::Display for ElsewhereUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a socket was used on another thread, or in another kernel, than that which made it: a \
             kernel's sockets stay with it",
        )
    }
}

impl std::error::Error for ElsewhereUsed {}

/// The number of a kernel's socket.
///
/// # Errors
///
/// [`ElsewhereUsed`].
pub(crate) fn id_of(socket: &Bound<Owned>) -> io::Result<SocketId> {
    match socket.is_home() {
        true => Ok(socket.get().0),
        false => Err(io::Error::other(ElsewhereUsed)),
    }
}
