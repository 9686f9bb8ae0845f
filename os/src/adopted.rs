//! A descriptor that a kernel has adopted in order to wait for it.

use std::io;
use std::os::fd::OwnedFd;

use pikake_traps::{Attempt, OpenSocket, Opened, SocketId, attempt, open_socket};

/// An adopted descriptor. Its drop closes it.
#[derive(Debug)]
pub(crate) struct Adopted(SocketId);

impl Adopted {
    #[track_caller]
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        match open_socket(OpenSocket::Adopt(descriptor))? {
            Opened::One(id) => Ok(Self(id)),
            other => panic!("a kernel answered another request: {other:?} (I1)"),
        }
    }

    pub(crate) fn id(&self) -> SocketId {
        self.0
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // `Close` fails if the kernel has ended, which has closed the descriptor.
        let _ = attempt(self.0, Attempt::Close);
    }
}
