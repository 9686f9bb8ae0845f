//! The traits of byte streams.
//!
//! Sockets have methods of their own, so reading a socket needs no trait. A buffered reader, a
//! codec or TLS stacks on any stream that implements [`Read`] and [`Write`]. Their methods take
//! `&self`, as those of sockets, so one task may read while another writes, through TLS as well,
//! without a split.
//!
//! Layers rely on the state after an interruption: a read that did not return has taken nothing,
//! and a write that did not return reports how many bytes it took.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use crate::chunk::make_room;
use crate::error::{ReadExactError, WriteAllError};
use crate::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::pipe::{PipeReader, PipeWriter};
use crate::tcp::TcpStream;
use crate::unix::UnixStream;

/// A source of bytes.
///
/// # Examples
///
/// ```
/// use pikake::net::Read;
/// use std::io;
///
/// /// Reads and discards all bytes, and returns their number.
/// async fn drain(from: impl Read) -> io::Result<usize> {
///     let (mut all, mut buffer) = (0, [0; 4096]);
///     loop {
///         match from.read(&mut buffer).await? {
///             0 => return Ok(all),
///             length => all += length,
///         }
///     }
/// }
/// ```
#[doc(alias("AsyncRead", "AsyncReadExt"))]
pub trait Read {
    /// Reads some bytes, waiting until there are any. Returns 0 at the end of the stream (or for an
    /// empty buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is nothing to read. A read that is dropped or interrupted
    /// takes no bytes. All implementations must guarantee this, since layers rely on it.
    ///
    /// # Errors
    ///
    /// The stream's error; the interruption.
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>>;

    /// Reads some bytes behind those in a vector, waiting until there are any.
    ///
    /// Reads as much as the vector's capacity holds; one that is full grows by 16 KiB. Returns 0 at
    /// the end of the stream. Sockets read into the capacity itself; by default, it is zeroed
    /// before.
    ///
    /// # Cancellation
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    fn read_buf(&self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
        async move {
            make_room(buffer);
            let mut zeroed = Zeroed { length: buffer.len(), buffer };
            zeroed.buffer.resize(zeroed.buffer.capacity(), 0);
            let read = self.read(&mut zeroed.buffer[zeroed.length..]).await?;
            zeroed.length += read;
            Ok(read)
        }
    }

    /// Waits until a read most likely has bytes, or the stream has ended.
    ///
    /// A hint: the read may still wait. A layer that waits here holds no buffer meanwhile. By
    /// default, it does not wait.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// The stream's error; the interruption.
    fn readable(&self) -> impl Future<Output = io::Result<()>> {
        async { Ok(()) }
    }
}

/// A vector whose capacity is zeroed for a read. Its drop cuts it to the bytes that it has.
struct Zeroed<'a> {
    buffer: &'a mut Vec<u8>,
    length: usize,
}

impl Drop for Zeroed<'_> {
    fn drop(&mut self) {
        self.buffer.truncate(self.length);
    }
}

/// A sink of bytes.
///
/// # Examples
///
/// ```
/// use pikake::net::Write;
/// use std::io;
///
/// async fn greet(to: impl Write) -> io::Result<()> {
///     to.write_all(b"hello\n").await?;
///     to.finish().await
/// }
/// ```
#[doc(alias("AsyncWrite", "AsyncWriteExt"))]
pub trait Write {
    /// Writes some of the data, waiting until there is room, and returns the number of bytes.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no room. An interrupted write has written nothing,
    /// unless its error contains a [`WriteAllError`] with the number of bytes (see
    /// [`WriteAllError::written_in`]). A dropped write to a socket has written nothing.
    ///
    /// # Errors
    ///
    /// The stream's error; the interruption.
    fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>>;

    /// Writes what the stream takes now, and returns the number of bytes. Never suspends.
    ///
    /// By default, a stream takes nothing.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the stream takes nothing now; otherwise as for
    /// [`write`](Self::write).
    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let _ = data;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Writes all of the data.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The error of an interruption has the number of bytes written; a drop
    /// loses it.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were written.
    fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        async move {
            let mut written = 0;
            while written < data.len() {
                match self.write(&data[written..]).await {
                    Ok(0) => return Err(WriteAllError::no_room(written)),
                    Ok(more) => written += more,
                    Err(source) => {
                        written += WriteAllError::written_in(&source);
                        return Err(WriteAllError { written, source });
                    }
                }
            }
            Ok(())
        }
    }

    /// Writes the bytes that the stream buffers. Sockets buffer none.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop loses nothing: the next call continues.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        async { Ok(()) }
    }

    /// Writes the bytes that the stream buffers, and ends this direction: the peer reads the end of
    /// the stream. The other direction continues.
    ///
    /// # Cancellation
    ///
    /// As for [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    #[doc(alias = "shutdown")]
    fn finish(&self) -> impl Future<Output = io::Result<()>>;
}

/// Reads until the buffer is full.
pub(crate) async fn read_exact(from: &impl Read, buffer: &mut [u8]) -> Result<(), ReadExactError> {
    let mut read = 0;
    while read < buffer.len() {
        match from.read(&mut buffer[read..]).await {
            Ok(0) => return Err(ReadExactError::at_end(read)),
            Ok(more) => read += more,
            Err(source) => return Err(ReadExactError { read, source }),
        }
    }
    Ok(())
}

macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<T: Read + ?Sized> Read for $pointer {
            #[track_caller]
            fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
                (**self).read(buffer)
            }

            #[track_caller]
            fn read_buf(&self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
                (**self).read_buf(buffer)
            }

            #[track_caller]
            fn readable(&self) -> impl Future<Output = io::Result<()>> {
                (**self).readable()
            }
        }

        impl<T: Write + ?Sized> Write for $pointer {
            #[track_caller]
            fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
                (**self).write(data)
            }

            fn try_write(&self, data: &[u8]) -> io::Result<usize> {
                (**self).try_write(data)
            }

            #[track_caller]
            fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
                (**self).write_all(data)
            }

            #[track_caller]
            fn flush(&self) -> impl Future<Output = io::Result<()>> {
                (**self).flush()
            }

            #[track_caller]
            fn finish(&self) -> impl Future<Output = io::Result<()>> {
                (**self).finish()
            }
        }
    )*};
}

through!(&T, Rc<T>, Box<T>);

macro_rules! sockets_read {
    ($([$($generic:ident)?] $type:ty),*) => {$(
        impl$(<$generic>)? Read for $type {
            #[track_caller]
            fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
                Self::read(self, buffer)
            }

            #[track_caller]
            fn read_buf(&self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
                Self::read_buf(self, buffer)
            }

            #[track_caller]
            fn readable(&self) -> impl Future<Output = io::Result<()>> {
                Self::readable(self)
            }
        }
    )*};
}

macro_rules! sockets_write {
    ($([$($generic:ident)?] $type:ty, |$socket:ident| $end:expr;)*) => {$(
        impl$(<$generic>)? Write for $type {
            #[track_caller]
            fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
                Self::write(self, data)
            }

            fn try_write(&self, data: &[u8]) -> io::Result<usize> {
                Self::try_write(self, data)
            }

            #[track_caller]
            fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
                Self::write_all(self, data)
            }

            async fn finish(&self) -> io::Result<()> {
                let $socket = self;
                $end
            }
        }
    )*};
}

sockets_read!([] TcpStream, [] UnixStream, [] PipeReader, [] ReadHalf<'_>, [S] OwnedReadHalf<S>);

sockets_write! {
    [] TcpStream, |socket| socket.shutdown(Shutdown::Write);
    [] UnixStream, |socket| socket.shutdown(Shutdown::Write);
    [] PipeWriter, |pipe| { pipe.close(); Ok(()) };
    [] WriteHalf<'_>, |half| half.shutdown();
    [S] OwnedWriteHalf<S>, |half| half.shutdown();
}
