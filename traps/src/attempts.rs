//! Sockets without a wait: opening them, and attempts that are made once.

use std::io;

use crate::door;
use crate::socket::{Attempt, Closed, OpenSocket, Opened, SocketId};

/// Opens a socket in the current kernel, or takes one over.
///
/// # Errors
///
/// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for a kind that the kernel does not
/// have.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn open_socket(what: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
    door::with(|local| local.kernel().open(what))
}

/// Makes an attempt on a socket, without waiting; also outside its kernel's turn. Returns the
/// number of bytes that were moved.
///
/// # Errors
///
/// [`WouldBlock`](io::ErrorKind::WouldBlock) if the attempt would block, or the task has spent its
/// quota of attempts for this step; [`Closed`], also if the socket's kernel has ended or belongs to
/// another thread; else the system's.
#[inline]
pub fn attempt(socket: SocketId, attempt: Attempt<'_>) -> io::Result<usize> {
    let outcome = door::reach(socket.kernel, |local| {
        let outcome = local.kernel().attempt(socket, attempt);
        local.call_wakers();
        outcome
    });
    match outcome {
        Some(Some(outcome)) => outcome,
        Some(None) => Err(io::ErrorKind::WouldBlock.into()),
        None => Err(Closed.into()),
    }
}
