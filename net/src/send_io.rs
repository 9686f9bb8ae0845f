//! A `Send` wrapper of a stream, for libraries that require it.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use pikake_traps::Bound;

/// A `Send` and `Sync` wrapper of a stream, which stays on its kernel's thread.
///
/// The wrapper implements the traits of `tokio::io` and `futures_io` that the stream does. On
/// another thread, a use panics, and a drop sends the stream back to its kernel, which closes it;
/// see [`Bound`].
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::{SendIo, TcpStream};
///
/// let stream = SendIo::new(TcpStream::connect("127.0.0.1:5672").await?);
/// let boxed: Box<dyn std::any::Any + Send> = Box::new(stream);
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// As for the stream inside.
// Also here, where the documentation reads it.
#[cfg(feature = "io-traits")]
#[derive(Debug)]
pub struct SendIo<S: Unpin + 'static>(Bound<S>);

impl<S: Unpin> SendIo<S> {
    /// Binds a stream to the current kernel's thread.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn new(stream: S) -> Self {
        Self(Bound::new(stream))
    }

    /// The stream.
    ///
    /// # Panics
    ///
    /// On another thread than the stream's own.
    #[track_caller]
    pub fn get(&self) -> &S {
        self.0.get()
    }

    /// Unwraps the stream.
    ///
    /// # Panics
    ///
    /// On another thread than the stream's own.
    #[track_caller]
    pub fn into_inner(self) -> S {
        self.0.into_inner()
    }

    #[track_caller]
    fn inside(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(self.get_mut().0.get_mut())
    }
}

impl<S: tokio::io::AsyncRead + Unpin> tokio::io::AsyncRead for SendIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inside().poll_read(cx, buffer)
    }
}

impl<S: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for SendIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inside().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inside().poll_shutdown(cx)
    }
}

impl<S: futures_io::AsyncRead + Unpin> futures_io::AsyncRead for SendIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_read(cx, buffer)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_read_vectored(cx, buffers)
    }
}

impl<S: futures_io::AsyncWrite + Unpin> futures_io::AsyncWrite for SendIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inside().poll_write_vectored(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inside().poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inside().poll_close(cx)
    }
}
