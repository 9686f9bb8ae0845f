//! The body of what is sent back: the service's, or none.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

pin_project_lite::pin_project! {
    /// The body of a response: the service's own, or an empty one where the service gave none,
    /// since it panicked or was dropped.
    pub struct Reply<B> {
        #[pin]
        own: Option<B>,
    }
}

impl<B> Reply<B> {
    pub(crate) const EMPTY: Self = Self { own: None };

    pub(crate) fn own(body: B) -> Self {
        Self { own: Some(body) }
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
        match self.project().own.as_pin_mut() {
            Some(body) => body.poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.own.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.own.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
