//! The body of a request, which records whether a handler waits for it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body;

use crate::requests::RequestLine;

/// The body of a request, read from the connection on demand.
///
/// The body has no size limit: use `http_body_util::Limited`, or an extractor of axum, which has
/// one. While a handler waits for the body, the client's time runs, see
/// [`stall_timeout`](crate::Server::stall_timeout).
///
/// # Errors
///
/// Its frames fail with a [`hyper::Error`] if the client sends an invalid body or disconnects.
pub struct Incoming {
    body: body::Incoming,
    /// `None` for a request without a body.
    line: Option<Arc<RequestLine>>,
}

impl Incoming {
    pub(crate) fn new(body: body::Incoming, line: &Arc<RequestLine>) -> Self {
        let line = (!body.is_end_stream()).then(|| line.clone());
        Self { body, line }
    }

    fn note(&self, awaits_body: bool) {
        if let Some(line) = &self.line {
            line.body.set_awaited(awaits_body);
        }
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
        self.note(polled.is_pending());
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
        self.note(false);
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.body).finish()
    }
}
