//! A descriptor that the kernel has adopted, and only waits for.

use std::io;
use std::os::fd::OwnedFd;

use pikake_traps::{Attempt, OpenSocket, Opened, SocketId, attempt, open_socket};

/// Closes what the kernel has adopted when it is dropped.
#[derive(Debug)]
pub(crate) struct Adopted(SocketId);

impl Adopted {
    #[track_caller]
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        match open_socket(OpenSocket::Adopt(descriptor))? {
            Opened::One(id) => Ok(Self(id)),
            other => panic!("a kernel answers what it was asked, not with {other:?} (I1)"),
        }
    }

    pub(crate) fn id(&self) -> SocketId {
        self.0
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // It fails if its kernel has ended, which has closed it.
        let _ = attempt(self.0, Attempt::Close);
    }
}
