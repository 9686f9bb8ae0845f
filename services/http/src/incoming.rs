//! The body of a request, which knows whether a handler waits for it.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body;
use pikake_traps::Bound;

use crate::request::Line;

/// The body of a request, read from the connection as it is asked for.
///
/// It has no limit of its own: use `http_body_util::Limited`, or an extractor of axum, which has one.
/// While it is waited for, the client's time runs, see
/// [`stall_timeout`](crate::Server::stall_timeout); on another thread than the server's it does not.
///
/// # Errors
///
/// Its frames fail with a [`hyper::Error`] when the client has sent no proper body or has gone.
pub struct Incoming {
    body: body::Incoming,
    line: Bound<Rc<Line>>,
}

impl Incoming {
    pub(crate) fn new(body: body::Incoming, line: Rc<Line>) -> Self {
        Self { body, line: Bound::new(line) }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if self.line.is_home() {
            self.line.get().awaits_body.set(polled.is_pending());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.line.is_home() {
            self.line.get().awaits_body.set(false);
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.body).finish()
    }
}
