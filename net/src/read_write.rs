//! What everything that carries bytes has in common.
//!
//! A socket is read by its own methods, and nobody imports a trait for that. But a buffered reader,
//! a codec or TLS does not care what is beneath it, and stacks on anything that can be read from and
//! written to: [`Read`] and [`Write`] say what that takes. They take `&self`, as sockets do, so
//! that one task may read while another writes, through TLS as well, without splitting anything.
//!
//! The contract is in what an interruption leaves behind, since that is what layers rely on: a read
//! that did not return has taken nothing, and a write that did not return tells what it took.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use crate::error::WriteAllError;
use crate::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::pipe::{PipeReader, PipeWriter};
use crate::tcp::TcpStream;
use crate::unix::UnixStream;

/// What bytes can be read from.
///
/// # Examples
///
/// ```
/// use pikake_net::Read;
/// use std::io;
///
/// /// Reads and throws away, and says how much that was.
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
pub trait Read {
    /// Reads what there is, waiting until there is something. 0 is the end (or of no room in the
    /// buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point while nothing is there. Dropped or interrupted, it has taken no bytes.
    /// Every implementation keeps to that; all that stacks on this relies on it.
    ///
    /// # Errors
    ///
    /// What the stream reports; the interruption.
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>>;
}

/// What bytes can be written to.
///
/// # Examples
///
/// ```
/// use pikake_net::Write;
/// use std::io;
///
/// async fn greet(to: impl Write) -> io::Result<()> {
///     to.write_all(b"hello\n").await?;
///     to.finish().await
/// }
/// ```
pub trait Write {
    /// Writes some of the data, waiting until there is room, and tells how much it was.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no room. Interrupted, it has written nothing, unless
    /// there is a [`WriteAllError`] in the error, which then says how much was taken (see
    /// [`WriteAllError::written_in`]). Dropped, a socket has taken nothing either.
    ///
    /// # Errors
    ///
    /// What the stream reports; the interruption.
    fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>>;

    /// Writes all of the data.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the error says how many bytes were taken. Dropped,
    /// nobody knows.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), with the number of bytes that were taken.
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

    /// Passes on what the stream still holds back. Sockets hold nothing back.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, nothing is lost: the next one goes on.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        async { Ok(()) }
    }

    /// Passes on what is held back, and says that no more will come: the peer reads the end of the
    /// stream. What it sends can still be read.
    ///
    /// # Cancellation
    ///
    /// As for [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    fn finish(&self) -> impl Future<Output = io::Result<()>>;
}

macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<T: Read + ?Sized> Read for $pointer {
            #[track_caller]
            fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
                (**self).read(buffer)
            }
        }

        impl<T: Write + ?Sized> Write for $pointer {
            #[track_caller]
            fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
                (**self).write(data)
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
