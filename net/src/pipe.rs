//! Pipes of the system: bytes in one direction, between two processes or within one.
//!
//! A pipe is no socket: it can be read or written and nothing else. Its ends are adopted by trap,
//! as whatever comes from outside, so a simulation refuses them.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use crate::error::{ReadExactError, WriteAllError};
use crate::socket::Socket;

/// Opens a pipe: what is written to one end is read from the other.
///
/// Neither end is inherited by child processes. For one that is, see the pipes of
/// [`std::io::pipe`] and `from_fd`.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// let (reader, writer) = pikake_net::pipe()?;
/// writer.write_all(b"hello").await?;
/// let mut buffer = [0; 16];
/// assert_eq!(reader.read(&mut buffer).await?, 5);
/// # Ok(()) }
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
    let (reader, writer) = io::pipe()?;
    Ok((PipeReader::from_fd(reader.into())?, PipeWriter::from_fd(writer.into())?))
}

/// The end of a pipe that is read from. Dropping it closes it, and whoever writes is told.
pub struct PipeReader {
    socket: Socket,
}

/// The end of a pipe that is written to. Dropping it closes it: the reader comes to the end.
pub struct PipeWriter {
    socket: Socket,
}

macro_rules! both {
    ($($end:ident)*) => {$(
        impl $end {
            /// Takes over a descriptor, of a pipe or of anything else that is read or written as
            /// one. It is made non-blocking, as is every duplicate of it.
            ///
            /// # Errors
            ///
            /// [`Unsupported`](io::ErrorKind::Unsupported), from a kernel without descriptors; else
            /// the system's.
            ///
            /// # Panics
            ///
            /// Outside a kernel.
            #[track_caller]
            pub fn from_fd(descriptor: OwnedFd) -> io::Result<Self> {
                Socket::adopt(descriptor).map(|socket| Self { socket })
            }

            /// Closes this end while others may still hold it, as dropping it does when nobody
            /// does. Closing it again does nothing.
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
    /// Reads what there is, waiting until there is something. 0 is the end (or of no room in the
    /// buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point while nothing is there. Dropped or interrupted, it has taken no bytes.
    ///
    /// # Errors
    ///
    /// The system's; the interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if another task
    /// waits to read; [`Closed`](pikake_traps::Closed).
    ///
    /// # Panics
    ///
    /// When polled outside a task of its kernel.
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
    /// When polled outside a task of its kernel.
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
    /// An interruption point while nothing is there. Interrupted, the error says how many bytes are
    /// in the buffer. Dropped, nobody knows.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the pipe ended before, and as for
    /// [`read`](Self::read); with the number of bytes that were read.
    ///
    /// # Panics
    ///
    /// When polled outside a task of its kernel.
    #[track_caller]
    pub fn read_exact(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), ReadExactError>> {
        self.socket.read_exact(buffer)
    }

    /// Reads what there is. Never suspends.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing is there, or if the task has had its
    /// share of attempts for this step; what [`read`](Self::read) reports.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.try_read(buffer)
    }
}

impl PipeWriter {
    /// Writes some of the data, waiting until there is room, and tells how much it was.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no room. Dropped or interrupted, it has written nothing.
    ///
    /// # Errors
    ///
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) if nobody reads any more; the interruption;
    /// [`ResourceBusy`](pikake_traps::ResourceBusy) if another task waits to write;
    /// [`Closed`](pikake_traps::Closed).
    ///
    /// # Panics
    ///
    /// When polled outside a task of its kernel.
    #[track_caller]
    pub fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        self.socket.write(data)
    }

    /// Writes some of the data of several buffers, in their order, and tells how much it was.
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
    /// When polled outside a task of its kernel.
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
    /// An interruption point while there is no room. Interrupted, the error says how many bytes were
    /// written. Dropped, nobody knows.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were written.
    ///
    /// # Panics
    ///
    /// When polled outside a task of its kernel.
    #[track_caller]
    pub fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        self.socket.write_all(data)
    }

    /// Writes some of the data. Never suspends.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room, or if the task has had its
    /// share of attempts for this step; what [`write`](Self::write) reports.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.socket.try_write(data)
    }
}
