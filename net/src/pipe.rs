//! Pipes of the system: bytes in one direction, between two processes or within one.
//!
//! The ends of a pipe can be read or written, and nothing else. They are adopted by trap, as all
//! descriptors from outside, so a simulation refuses them.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use crate::error::{ReadExactError, WriteAllError};
use crate::socket::Socket;

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
pub struct PipeReader {
    socket: Socket,
}

/// The writing end of a pipe. Its drop closes it, and the reader reads the end.
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
    /// Reads some bytes, waiting until there are any. Returns 0 at the end of the stream (or for an
    /// empty buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is nothing to read. A read that is dropped or interrupted
    /// takes no bytes.
    ///
    /// # Errors
    ///
    /// The system's error; the interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if
    /// another task waits to read; [`Closed`](pikake_traps::Closed).
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        self.socket.read(buffer)
    }

    /// Reads into several buffers, filling each before the next.
    ///
    /// # Cancellation
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn read_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        self.socket.read_vectored(buffers)
    }

    /// Reads until the buffer is full.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is nothing to read. The error of an interruption has the
    /// number of bytes read; a drop loses it.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the pipe ended before, and as for
    /// [`read`](Self::read); with the number of bytes that were read.
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn read_exact(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), ReadExactError>> {
        self.socket.read_exact(buffer)
    }

    /// Reads some bytes. Never suspends.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing to read or the task has used
    /// up the attempts of its step; as for [`read`](Self::read).
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.try_read(buffer)
    }
}

impl PipeWriter {
    /// Writes some of the data, waiting until there is room, and returns the number of bytes.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no room. A write that is dropped or interrupted writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the reading end is closed; the interruption;
    /// [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to write;
    /// [`Closed`](pikake_traps::Closed).
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        self.socket.write(data)
    }

    /// Writes some of the data of several buffers, in their order, and returns the number of bytes.
    ///
    /// # Cancellation
    ///
    /// As for [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn write_vectored(
        &self,
        buffers: &[IoSlice<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        self.socket.write_vectored(buffers)
    }

    /// Writes all of the data.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no room. The error of an interruption has the number of
    /// bytes written; a drop loses it.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were written.
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        self.socket.write_all(data)
    }

    /// Writes some of the data. Never suspends.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room or the task has used up the
    /// attempts of its step; as for [`write`](Self::write).
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.socket.try_write(data)
    }
}
