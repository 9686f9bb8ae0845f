//! Descriptors in place of simulated sockets.
//!
//! Some programs take a stream of tokio apart (`into_std`), set an option of the system's socket,
//! and make a stream of it again (`from_std`). A simulated socket has no descriptor. So it is kept
//! here, under a descriptor of a socket that is never connected.
//!
//! A program may close that descriptor instead, which nobody sees. So its socket stays open until
//! the end of its kernel, and leaves this list when the next one comes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use pikake_traps::{Attempt, Bound, Closed, SocketId, attempt};
use socket2::{Domain, Socket as SystemSocket, Type};

use crate::owned::{Owned, id_of};

thread_local! {
    /// The sockets that are represented, each with a duplicate of its descriptor, which keeps the
    /// inode from being used again.
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

struct Kept {
    copy: OwnedFd,
    id: SocketId,
    socket: Bound<Owned>,
}

impl Kept {
    /// Whether the socket's kernel has not ended.
    fn is_open(&self) -> bool {
        let closed = attempt(self.id, Attempt::LocalAddress(&mut None)).err();
        !closed.and_then(|error| error.into_inner()).is_some_and(|error| error.is::<Closed>())
    }
}

/// A descriptor in place of a simulated socket.
///
/// # Panics
///
/// If the process is out of descriptors, or the socket is of another kernel.
#[track_caller]
pub(crate) fn of(socket: Bound<Owned>) -> OwnedFd {
    let id = id_of(&socket).unwrap_or_else(|error| panic!("{error}"));
    // Nothing is borrowed while sockets are asked and dropped.
    let (open, ended): (Vec<_>, Vec<_>) = KEPT.take().into_iter().partition(Kept::is_open);
    KEPT.with_borrow_mut(|kept| kept.extend(open));
    drop(ended);
    let made = SystemSocket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)
        .and_then(|made| Ok((made.try_clone()?, made)));
    let (copy, made) = made.unwrap_or_else(|error| panic!("no descriptor can be had: {error}"));
    KEPT.with_borrow_mut(|kept| kept.push(Kept { copy: copy.into(), id, socket }));
    made.into()
}

/// The simulated socket that a descriptor represents.
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported) for another descriptor: a simulated kernel has none.
pub(crate) fn claim(descriptor: &OwnedFd) -> io::Result<Bound<Owned>> {
    let inode =
        |descriptor: &OwnedFd| rustix::fs::fstat(descriptor.as_fd()).map(|stat| stat.st_ino);
    let wanted = inode(descriptor)?;
    let found = KEPT.with_borrow_mut(|kept| {
        let index = kept.iter().position(|kept| inode(&kept.copy) == Ok(wanted))?;
        Some(kept.swap_remove(index))
    });
    found.map(|kept| kept.socket).ok_or_else(|| io::ErrorKind::Unsupported.into())
}
