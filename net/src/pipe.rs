//! Pipes of the system: bytes in one direction, between two processes or within one.
//!
//! The ends of a pipe can be read or written, and nothing else. They are adopted by trap, as all
//! descriptors from outside, so a simulation refuses them.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use pikake_traps::Direction;

use crate::error::{ReadExactError, WriteAllError};
use crate::socket::Socket;
use crate::stream::{reading, writing};

/// Opens a pipe: bytes written to one end are read from the other.
///
/// Child processes inherit neither end. For an inherited end, see `from_fd` and the pipes of
/// [`std::io::pipe`].
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// let (reader, writer) = pikake::net::pipe()?;
/// writer.write_all(b"hello").await?;
/// let mut buffer = [0; 16];
/// assert_eq!(reader.read(&mut buffer).await?, 5);
/// # Ok(()) }
/// # pikake::run(example()).unwrap();
/// ```
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel without descriptors; else the
/// system's.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = open()?;
    Ok((PipeReader::from_fd(reader)?, PipeWriter::from_fd(writer)?))
}

#[cfg(not(target_vendor = "apple"))]
fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// There is no system call that opens both ends with the flag.
#[cfg(target_vendor = "apple")]
fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe()?;
    for end in [&reader, &writer] {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((reader, writer))
}

/// The reading end of a pipe. Its drop closes it, and the writer gets an error.
#[doc(alias("ChildStdout", "ChildStderr", "Receiver"))]
pub struct PipeReader {
    socket: Socket,
}

/// The writing end of a pipe. Its drop closes it, and the reader reads the end.
#[doc(alias("ChildStdin", "Sender"))]
pub struct PipeWriter {
    socket: Socket,
}

macro_rules! both {
    ($($end:ident)*) => {$(
        impl $end {
            /// Takes over a descriptor of a pipe, or another that is read or written like one. It
            /// becomes non-blocking, with all its duplicates.
            ///
            /// # Errors
            ///
            /// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel without descriptors;
            /// otherwise the system's error.
            ///
            /// # Panics
            ///
            /// Outside a kernel.
            #[track_caller]
            pub fn from_fd(descriptor: OwnedFd) -> io::Result<Self> {
                Socket::adopt(descriptor).map(|socket| Self { socket })
            }

            /// Closes this end, even if other tasks still hold it. A second call has no effect.
            pub fn close(&self) {
                self.socket.close();
            }
        }

        impl fmt::Debug for $end {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($end)).field(&self.socket).finish()
            }
        }
    )*};
}

both!(PipeReader PipeWriter);

impl PipeReader {
    reading!("pikake::net::PipeReader");
}

impl PipeWriter {
    writing!("pikake::net::PipeWriter");
}
