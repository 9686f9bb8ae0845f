//! The body of a response.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use crate::request::Requests;

/// Counts a body among those of its connection, and among those that hyper waits for.
struct Sending {
    requests: Rc<Requests>,
    /// Whether hyper has asked for a part, and none was ready.
    is_due: bool,
}

impl Sending {
    fn new(requests: &Rc<Requests>) -> Self {
        requests.replies.set(requests.replies.get() + 1);
        Self { requests: requests.clone(), is_due: false }
    }

    fn set_due(&mut self, is_due: bool) {
        if self.is_due != is_due {
            self.is_due = is_due;
            let due = &self.requests.replies_due;
            due.set(if is_due { due.get() + 1 } else { due.get() - 1 });
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.set_due(false);
        self.requests.replies.set(self.requests.replies.get() - 1);
    }
}

pin_project_lite::pin_project! {
    /// The body of a response: the service's own, or an empty one if the service panicked, was dropped or not called.
    pub struct Reply<B> {
        #[pin]
        own: Option<B>,
        sending: Option<Sending>,
    }
}

impl<B> Reply<B> {
    pub(crate) const EMPTY: Self = Self { own: None, sending: None };

    pub(crate) fn own(body: B, requests: &Rc<Requests>) -> Self {
        Self { own: Some(body), sending: Some(Sending::new(requests)) }
    }
}

impl<B> fmt::Debug for Reply<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_own", &self.own.is_some()).finish_non_exhaustive()
    }
}

impl<B: Body> Body for Reply<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let Some(body) = this.own.as_pin_mut() else { return Poll::Ready(None) };
        let polled = body.poll_frame(cx);
        if let Some(sending) = this.sending {
            sending.set_due(polled.is_pending());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.own.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.own.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
