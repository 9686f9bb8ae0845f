//! How a source becomes known to the kernel.

use std::cell::Cell;
use std::io;

use pikake_traps::SocketId;

use crate::{Interest, Token};

/// A source that the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registered {
    /// A socket, which its source owns and makes attempts on.
    Socket(SocketId),
    /// As `Socket`, while its connection is being made: ready when
    /// [`Attempt::Connected`](pikake_traps::Attempt::Connected) is done.
    Connecting(SocketId),
    /// A duplicate of a descriptor, which the registration owns. The reads and writes do not go
    /// through the kernel, so the system is asked whether it is ready:
    /// [`Attempt::Poll`](pikake_traps::Attempt::Poll).
    Descriptor(SocketId),
}

/// Takes the registration of one source.
#[derive(Debug, Default)]
pub struct Registry(Cell<Option<Registered>>);

impl Registry {
    /// A registry for one source.
    pub fn new() -> Self {
        Self::default()
    }

    /// The source that was registered.
    pub fn take(&self) -> Option<Registered> {
        self.0.take()
    }

    pub(crate) fn put(&self, registered: Registered) {
        self.0.set(Some(registered));
    }
}

/// A source of events.
pub trait Source {
    /// Gives the source to the current kernel, and notes it in the registry.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](io::ErrorKind::Unsupported) for a descriptor in a kernel whose
    /// sockets are none.
    fn register(&mut self, registry: &Registry, token: Token, interest: Interest)
    -> io::Result<()>;

    /// As [`register`](Self::register).
    ///
    /// # Errors
    ///
    /// As for `register`.
    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()>;

    /// Forgets the registration. The socket stays open until its source is dropped.
    ///
    /// # Errors
    ///
    /// None of a socket.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()>;
}
