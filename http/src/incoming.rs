//! The body of a request, which knows whether a handler waits for it.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body;
use pikake_traps::Bound;

use crate::request::Requests;

/// The body of a request, read from the connection as it is asked for.
///
/// It has no limit of its own: use `http_body_util::Limited`, or an extractor of axum, which has one.
/// While it is waited for, the client's time runs, see
/// [`stall_timeout`](crate::Server::stall_timeout).
///
/// # Errors
///
/// Its frames fail with a [`hyper::Error`] when the client has sent no proper body or has gone.
pub struct Incoming {
    body: body::Incoming,
    requests: Bound<Rc<Requests>>,
    is_awaited: bool,
}

impl Incoming {
    pub(crate) fn new(body: body::Incoming, requests: Rc<Requests>) -> Self {
        Self { body, requests: Bound::new(requests), is_awaited: false }
    }

    fn set_awaited(&mut self, is_awaited: bool) {
        if self.is_awaited == is_awaited {
            return;
        }
        self.is_awaited = is_awaited;
        let awaited = &self.requests.get().bodies_awaited;
        awaited.set(if is_awaited { awaited.get() + 1 } else { awaited.get() - 1 });
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
        self.set_awaited(polled.is_pending());
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
        // Elsewhere it was taken to another thread, and is counted as awaited, as it is there.
        if self.is_awaited && self.requests.is_home() {
            self.set_awaited(false);
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.body).finish()
    }
}
