//! The two directions of a stream, as separate values.
//!
//! Reading and writing are independent, and often belong to two parts of a program. A function that
//! takes a borrowed half cannot use the other direction. An owned half can move into another task;
//! the two halves share the socket, which is closed when both are dropped.
//!
//! Dropping the writing half ends its direction: the peer reads the end of the stream.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::rc::Rc;

use pikake_traps::Direction;

use crate::error::{ReadExactError, ReuniteError, WriteAllError};
use crate::socket::Socket;
use crate::stream::{peeking, reading, writing};
use crate::tcp::TcpStream;

/// The direction of a stream that is read from, borrowed. See [`TcpStream::split`].
#[derive(Clone, Copy, Debug)]
pub struct ReadHalf<'a> {
    socket: &'a Socket,
}

/// The direction of a stream that is written to, borrowed. See [`TcpStream::split`].
#[derive(Clone, Copy, Debug)]
pub struct WriteHalf<'a> {
    socket: &'a Socket,
}

/// The direction of a stream that is read from, owned. See [`TcpStream::into_split`].
pub struct OwnedReadHalf<S = TcpStream> {
    socket: Rc<Socket>,
    family: PhantomData<S>,
}

/// The direction of a stream that is written to, owned. Dropping it ends that direction. See
/// [`TcpStream::into_split`].
pub struct OwnedWriteHalf<S = TcpStream> {
    socket: Rc<Socket>,
    family: PhantomData<S>,
    /// Whether the drop ends the direction.
    ends: bool,
}

pub(crate) fn borrowed(socket: &Socket) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf { socket }, WriteHalf { socket })
}

pub(crate) fn owned<S>(socket: Socket) -> (OwnedReadHalf<S>, OwnedWriteHalf<S>) {
    let socket = Rc::new(socket);
    let read = OwnedReadHalf { socket: socket.clone(), family: PhantomData };
    (read, OwnedWriteHalf { socket, family: PhantomData, ends: true })
}

pub(crate) fn whole<S>(
    read: OwnedReadHalf<S>,
    write: OwnedWriteHalf<S>,
) -> Result<Socket, ReuniteError<S>> {
    if !Rc::ptr_eq(&read.socket, &write.socket) {
        return Err(ReuniteError { read, write });
    }
    write.forget();
    Ok(Rc::into_inner(read.socket).expect("only the two halves share a socket"))
}

impl ReadHalf<'_> {
    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        self.socket
    }

    reading!("pikake::net::ReadHalf<'_>");
    peeking!("pikake::net::ReadHalf<'_>");
}

impl WriteHalf<'_> {
    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        self.socket
    }

    /// Ends this direction: the peer reads the end of the stream.
    ///
    /// # Errors
    ///
    /// As for [`TcpStream::shutdown`].
    pub fn shutdown(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    writing!("pikake::net::WriteHalf<'_>");
}

impl<S> OwnedReadHalf<S> {
    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    reading!("pikake::net::OwnedReadHalf");
    peeking!("pikake::net::OwnedReadHalf");
}

impl<S> OwnedWriteHalf<S> {
    /// Ends this direction: the peer reads the end of the stream.
    ///
    /// # Errors
    ///
    /// As for [`TcpStream::shutdown`].
    pub fn shutdown(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Drops the half without ending its direction, which then ends with the other half.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(stream: pikake::net::TcpStream) -> std::io::Result<()> {
    /// let (read, write) = stream.into_split();
    /// write.forget(); // some servers close the connection at the end of their input
    /// let mut buffer = [0; 4096];
    /// let length = read.read(&mut buffer).await?;
    /// # Ok(()) }
    /// ```
    pub fn forget(mut self) {
        self.ends = false;
    }

    writing!("pikake::net::OwnedWriteHalf");
}

impl<S> Drop for OwnedWriteHalf<S> {
    fn drop(&mut self) {
        if self.ends {
            // `shutdown` fails if the connection has ended already.
            drop(self.socket.shutdown(Shutdown::Write));
        }
    }
}

impl<S> fmt::Debug for OwnedReadHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedReadHalf").field("socket", &self.socket).finish()
    }
}

impl<S> fmt::Debug for OwnedWriteHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedWriteHalf").field("socket", &self.socket).finish()
    }
}
