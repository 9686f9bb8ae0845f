//! The stream of a connection, which counts its bytes, and notices the end of the client's side
//! while hyper does not read.
//!
//! hyper reads nothing while a handler of HTTP/1 runs or a response is being made. A client that
//! goes away, or that ends its side with the request, would not be noticed. So the connection
//! [looks ahead](Stream::look_ahead), and gives hyper what it has read.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::io::with_scratch;
use crate::requests::Requests;

/// How many bytes are read ahead at most. With some unread bytes, the end of the client's side is
/// noticed later.
const AHEAD: usize = 4 * 1024;

/// The stream of a connection, for the connection and for hyper.
pub(crate) struct Stream<S> {
    stream: RefCell<S>,
    requests: Rc<Requests>,
    /// What was read ahead and hyper has not got.
    ahead: RefCell<Vec<u8>>,
    /// Whether the client has ended its side.
    is_ended: Cell<bool>,
}

impl<S> Stream<S> {
    pub(crate) fn new(stream: S, requests: Rc<Requests>) -> Rc<Self> {
        let stream = RefCell::new(stream);
        Rc::new(Self { stream, requests, ahead: RefCell::default(), is_ended: Cell::default() })
    }

    /// Whether the client has ended its side.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.get()
    }

    fn count_written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.requests.set_blocked(written.is_pending());
        if let Poll::Ready(Ok(number)) = written {
            self.requests.count_moved(number);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> Stream<S> {
    /// Reads; no bytes are the end of the client's side.
    fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buffer))?;
        let number = buffer.filled().len() - before;
        self.requests.count_moved(number);
        if number == 0 && buffer.remaining() > 0 {
            self.is_ended.set(true);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads ahead, unless there are bytes that hyper has not got.
    ///
    /// # Errors
    ///
    /// The stream's. A stream that ends in the middle, such as TLS without the announcement of its
    /// end, has ended.
    pub(crate) fn look_ahead(&self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_ended.get() || !self.ahead.borrow().is_empty() {
            return Ok(());
        }
        with_scratch(|scratch| {
            let mut buffer = ReadBuf::new(&mut scratch[..AHEAD]);
            match self.poll_read(cx, &mut buffer) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => *self.ahead.borrow_mut() = buffer.filled().to_vec(),
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.is_ended.set(true);
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
            Ok(())
        })
    }
}

/// The stream as hyper has it.
pub(crate) struct Counted<S>(pub(crate) Rc<Stream<S>>);

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(stream) = &*self;
        let mut ahead = stream.ahead.borrow_mut();
        if !ahead.is_empty() {
            let number = ahead.len().min(buffer.remaining());
            buffer.put_slice(&ahead[..number]);
            match number == ahead.len() {
                true => *ahead = Vec::new(),
                false => drop(ahead.drain(..number)),
            }
            return Poll::Ready(Ok(()));
        }
        drop(ahead);
        if stream.is_ended.get() {
            return Poll::Ready(Ok(()));
        }
        stream.poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(cx, data);
        self.0.count_written(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.0.stream.borrow_mut()).poll_write_vectored(cx, data);
        self.0.count_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.stream.borrow().is_write_vectored()
    }

    // A TLS stream has taken what it encrypted, and waits here.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.0.stream.borrow_mut()).poll_flush(cx);
        self.0.requests.set_blocked(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }
}
