//! Descriptors and pipes.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use pikake_traps::{OpenSocket, Opened, open_socket};
use rustix::fs::FileType;

use crate::event::Source;
use crate::{Interest, Registered, Registry, Token};

/// A descriptor of somebody else, which is registered by a duplicate.
#[derive(Debug)]
pub struct SourceFd<'a>(pub &'a RawFd);

impl Source for SourceFd<'_> {
    fn register(&mut self, registry: &Registry, _: Token, _: Interest) -> io::Result<()> {
        // Any value may come from a type that implements `AsRawFd` in safe code.
        if *self.0 < 0 {
            return Err(rustix::io::Errno::BADF.into());
        }
        // SAFETY: mio's contract, which tokio keeps: the descriptor is open during this call. The
        // number is not -1, which no `BorrowedFd` may have.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*self.0) };
        // As epoll, which has no events for these.
        let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode);
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            return Err(rustix::io::Errno::PERM.into());
        }
        // The kernel makes no call that could block, so the descriptor stays as its owner wants it.
        let flags = rustix::fs::fcntl_getfl(descriptor)?;
        let opened = open_socket(OpenSocket::Adopt(descriptor.try_clone_to_owned()?))?;
        // Does not fail for a descriptor whose flags were read.
        let _ = rustix::fs::fcntl_setfl(descriptor, flags);
        match opened {
            Opened::One(id) => registry.put(Registered::Descriptor(id)),
            Opened::Pair(..) => return Err(io::Error::other("the kernel opened two sockets")),
        }
        Ok(())
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        self.register(registry, token, interest)
    }

    fn deregister(&mut self, _: &Registry) -> io::Result<()> {
        Ok(())
    }
}

/// Pipes.
pub mod pipe {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::process::{ChildStderr, ChildStdin, ChildStdout};

    use rustix::pipe::{PipeFlags, pipe_with};

    use crate::socket::Socket;

    /// The end of a pipe that is written to.
    #[derive(Debug)]
    pub struct Sender(pub(crate) Socket);

    /// The end of a pipe that is read from.
    #[derive(Debug)]
    pub struct Receiver(pub(crate) Socket);

    crate::net::traits! { Sender: write; Receiver: read; }

    /// A pipe.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn new() -> io::Result<(Sender, Receiver)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Sender(Socket::Fresh(writer)), Receiver(Socket::Fresh(reader))))
    }

    macro_rules! conversions {
        ($($end:ident: $($child:ty)*;)*) => {
            $(
                impl $end {
                    /// Has reads and writes of the descriptor wait, or fail, when they would block.
                    ///
                    /// # Errors
                    ///
                    /// The system's.
                    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                        self.0.by_system(|socket| socket.set_nonblocking(nonblocking))
                    }

                    /// Makes a call on the descriptor.
                    ///
                    /// # Errors
                    ///
                    /// Those of the call.
                    pub fn try_io<R>(&self, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
                        call()
                    }
                }

                impl From<$end> for OwnedFd {
                    fn from(end: $end) -> Self {
                        end.0.into_descriptor()
                    }
                }

                $(
                    impl From<$child> for $end {
                        fn from(child: $child) -> Self {
                            Self(Socket::Fresh(child.into()))
                        }
                    }
                )*
            )*
        };
    }

    conversions! {
        Sender: ChildStdin;
        Receiver: ChildStdout ChildStderr;
    }
}
