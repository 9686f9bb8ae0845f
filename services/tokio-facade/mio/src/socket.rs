//! A descriptor, or a socket of a kernel.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use pikake_traps::{
    Address, Attempt, Bound, OpenSocket, Opened, SocketId, attempt, door, open_socket,
};
use socket2::SockRef;

use crate::owned::{Owned, id_of};
use crate::{Registered, Registry, stand_in};

/// A socket on its way into a kernel, or there.
#[derive(Debug)]
pub(crate) enum Socket {
    /// Not registered: its calls are the system's, on any thread.
    Fresh(OwnedFd),
    /// A connection is being made.
    Connecting(Bound<Owned>),
    /// A socket of the kernel.
    Kernel(Bound<Owned>),
}

/// Whether sockets are to be opened by the kernel, since they are no descriptors there.
pub(crate) fn is_simulated() -> bool {
    door::current_kernel().is_some() && pikake_traps::system().is_err()
}

impl Socket {
    /// Takes over a socket that the kernel has opened or accepted.
    pub(crate) fn own(id: SocketId) -> Self {
        Self::Kernel(Bound::new(Owned(id)))
    }

    /// Opens a socket in the current kernel.
    #[track_caller]
    pub(crate) fn open(what: OpenSocket<'_>) -> io::Result<Self> {
        let is_stream = matches!(what, OpenSocket::TcpStream(_) | OpenSocket::UnixStream(_));
        match open_socket(what)? {
            Opened::One(id) if is_stream => Ok(Self::Connecting(Bound::new(Owned(id)))),
            Opened::One(id) => Ok(Self::own(id)),
            Opened::Pair(..) => Err(io::Error::other("the kernel opened two sockets")),
        }
    }

    /// Opens two connected sockets in the current kernel.
    #[track_caller]
    pub(crate) fn open_pair(what: OpenSocket<'_>) -> io::Result<(Self, Self)> {
        match open_socket(what)? {
            Opened::Pair(one, other) => Ok((Self::own(one), Self::own(other))),
            Opened::One(_) => Err(io::Error::other("the kernel opened one socket")),
        }
    }

    /// Gives the current kernel a descriptor whose connection is being made.
    pub(crate) fn connecting(descriptor: OwnedFd) -> io::Result<Self> {
        match open_socket(OpenSocket::Adopt(descriptor))? {
            Opened::One(id) => Ok(Self::Connecting(Bound::new(Owned(id)))),
            Opened::Pair(..) => Err(io::Error::other("the kernel opened two sockets")),
        }
    }

    /// Gives the socket to the current kernel.
    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        if let Self::Fresh(descriptor) = self {
            *self = match is_simulated() {
                true => Self::Kernel(stand_in::claim(descriptor)?),
                false => Self::open(OpenSocket::Adopt(descriptor.try_clone()?))?,
            };
        }
        registry.put(match self {
            Self::Connecting(socket) => Registered::Connecting(id_of(socket)?),
            Self::Kernel(socket) => Registered::Socket(id_of(socket)?),
            Self::Fresh(_) => unreachable!("it was given to the kernel"),
        });
        Ok(())
    }

    /// Makes an attempt by the kernel, or the system's call on a fresh descriptor.
    fn make(
        &self,
        what: Attempt<'_>,
        call: impl FnOnce(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Fresh(descriptor) => Ok(call(descriptor)?),
            Self::Connecting(socket) | Self::Kernel(socket) => attempt(id_of(socket)?, what),
        }
    }

    /// Makes an attempt by the kernel.
    pub(crate) fn attempt(&self, what: Attempt<'_>) -> io::Result<usize> {
        self.make(what, |_| Err(rustix::io::Errno::NOTCONN))
    }

    pub(crate) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Fresh(descriptor) => Ok(rustix::io::read(descriptor, to)?),
            Self::Connecting(_) | Self::Kernel(_) => self.attempt(Attempt::Read(to)),
        }
    }

    pub(crate) fn write(&self, from: &[u8]) -> io::Result<usize> {
        self.make(Attempt::Write(from), |descriptor| rustix::io::write(descriptor, from))
    }

    pub(crate) fn read_vectored(&self, mut to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Fresh(descriptor) => Ok(rustix::io::readv(descriptor, to)?),
            Self::Connecting(_) | Self::Kernel(_) => self.attempt(Attempt::ReadVectored(&mut to)),
        }
    }

    pub(crate) fn write_vectored(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.make(Attempt::WriteVectored(from), |descriptor| rustix::io::writev(descriptor, from))
    }

    /// Calls `work` with the system's socket.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Unsupported`](io::ErrorKind::Unsupported) in a kernel without such
    /// sockets.
    pub(crate) fn by_system<R>(
        &self,
        work: impl FnOnce(SockRef<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Self::Fresh(descriptor) => work(SockRef::from(descriptor)),
            Self::Connecting(_) | Self::Kernel(_) => {
                let descriptor = self.descriptor()?;
                // SAFETY: the kernel keeps the descriptor open until the socket is closed, which
                // only the drop of `self` does.
                let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
                work(SockRef::from(&descriptor))
            }
        }
    }

    fn descriptor(&self) -> io::Result<RawFd> {
        match self {
            Self::Fresh(descriptor) => Ok(descriptor.as_raw_fd()),
            Self::Connecting(socket) | Self::Kernel(socket) => {
                let mut descriptor = None;
                attempt(id_of(socket)?, Attempt::Descriptor(&mut descriptor))?;
                descriptor.ok_or_else(|| io::ErrorKind::Unsupported.into())
            }
        }
    }

    /// The descriptor of the socket, for a program that asks for it.
    ///
    /// # Panics
    ///
    /// In a kernel whose sockets are no descriptors.
    #[track_caller]
    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor().unwrap_or_else(|error| panic!("this socket has no descriptor: {error}"))
    }

    /// The descriptor, taken out of the kernel.
    ///
    /// # Panics
    ///
    /// If the process is out of descriptors, or on another thread.
    #[track_caller]
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        match self {
            Self::Fresh(descriptor) => descriptor,
            Self::Connecting(socket) | Self::Kernel(socket) if is_simulated() => {
                stand_in::of(socket)
            }
            Self::Connecting(_) | Self::Kernel(_) => {
                let copy = self.by_system(|socket| socket.as_fd().try_clone_to_owned());
                copy.unwrap_or_else(|error| panic!("the socket cannot leave its kernel: {error}"))
            }
        }
    }

    pub(crate) fn local_address(&self) -> io::Result<Address> {
        self.address(|to| Attempt::LocalAddress(to))
    }

    pub(crate) fn peer_address(&self) -> io::Result<Address> {
        self.address(|to| Attempt::PeerAddress(to))
    }

    fn address(
        &self,
        ask: impl for<'a> FnOnce(&'a mut Option<Address>) -> Attempt<'a>,
    ) -> io::Result<Address> {
        let mut address = None;
        self.attempt(ask(&mut address))?;
        address.ok_or_else(|| io::Error::other("the kernel gave no address"))
    }

    /// A connection of a listener.
    pub(crate) fn accept(&self) -> io::Result<(Self, Address)> {
        let mut accepted = None;
        self.attempt(Attempt::Accept(&mut accepted))?;
        let (id, address) = accepted.ok_or_else(|| io::Error::other("nothing was accepted"))?;
        Ok((Self::own(id), address))
    }
}
