//! hyper's stream traits for streams of `tokio::io`.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::ReadBufCursor;
use tokio::io::ReadBuf;

/// How much is read at a time. hyper's own buffers are rarely larger.
const SCRATCH: usize = 64 * 1024;

/// A stream with the traits of `tokio::io`, for hyper.
///
/// Every stream of pikake has these traits with the feature `io-traits`, and so has a wrapper such
/// as TLS.
///
/// Data is read into a buffer of the thread and copied to hyper's, which only unsafe code could
/// fill directly. So an idle connection holds no buffer.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pikake::http::Io;
/// use pikake::net::TcpStream;
///
/// let stream = Io::new(TcpStream::connect("127.0.0.1:80").await?);
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// As for the stream: an interruption is an error of the connection.
#[derive(Debug)]
pub struct Io<S>(S);

impl<S> Io<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> Self {
        Self(stream)
    }

    /// The stream.
    pub fn get(&self) -> &S {
        &self.0
    }

    /// Unwraps the stream.
    pub fn into_inner(self) -> S {
        self.0
    }
}

thread_local! {
    static FREE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with the thread's buffer; a nested call gets a new one.
pub(crate) fn with_scratch<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut scratch = FREE.take();
    scratch.resize(SCRATCH, 0);
    let result = work(&mut scratch);
    FREE.set(scratch);
    result
}

impl<S: tokio::io::AsyncRead + Unpin> hyper::rt::Read for Io<S> {
    #[track_caller]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let room = to.remaining().min(SCRATCH);
        with_scratch(|scratch| {
            let mut buffer = ReadBuf::new(&mut scratch[..room]);
            ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
            to.put_slice(buffer.filled());
            Poll::Ready(Ok(()))
        })
    }
}

impl<S: tokio::io::AsyncWrite + Unpin> hyper::rt::Write for Io<S> {
    #[track_caller]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    #[track_caller]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
