//! A descriptor that the kernel has adopted, and only waits for.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;

use pikake_traps::{SocketId, Sockets, sockets, sockets_of};

/// Closes what the kernel has adopted when it is dropped.
#[derive(Debug)]
pub(crate) struct Adopted(SocketId);

impl Adopted {
    #[track_caller]
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        sockets(|traps| traps.adopt(descriptor)).map(Self)
    }

    pub(crate) fn id(&self) -> SocketId {
        self.0
    }

    /// Attempts to read what nobody looks at.
    pub(crate) fn drain(&self) -> io::Result<()> {
        let read = |traps: &dyn Sockets| traps.read(self.0, &mut [IoSliceMut::new(&mut [0; 64])]);
        sockets_of(self.0, read).map(drop)
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // It fails if its kernel has ended, which has closed it.
        let _ = sockets_of(self.0, |traps| traps.close(self.0));
    }
}
