//! The body of a response, which counts what the client has not read.
//!
//! hyper asks a body for its parts and keeps each until it is written. A body that has no part
//! ready waits for the server; one whose parts hyper keeps, or that hyper does not ask, waits for
//! the client.

use std::fmt;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::requests::Requests;

/// A response that is being sent: until hyper has dropped its body.
struct Sending {
    requests: Rc<Requests>,
    /// Whether hyper has asked for a part, and none was ready.
    is_due: bool,
    /// Whether hyper has all parts.
    is_complete: bool,
    /// The parts of the connection that hyper had dropped unwritten when this response began.
    cut_before: u32,
}

impl Sending {
    fn new(requests: &Rc<Requests>, is_complete: bool) -> Self {
        let cut_before = requests.body_begins();
        Self { requests: requests.clone(), is_due: false, is_complete, cut_before }
    }

    fn set_due(&mut self, is_due: bool) {
        if std::mem::replace(&mut self.is_due, is_due) != is_due {
            self.requests.body_is_due(is_due);
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.set_due(false);
        self.requests.body_ends(self.is_complete, self.cut_before);
    }
}

pin_project_lite::pin_project! {
    /// The body of a response: the service's own, or an empty one if the service panicked, was
    /// dropped or not called.
    pub(crate) struct Reply<B> {
        #[pin]
        own: Option<B>,
        sending: Sending,
    }
}

impl<B: Body> Reply<B> {
    /// The response to a request of this method.
    pub(crate) fn own(
        response: Response<B>,
        method: &Method,
        requests: &Rc<Requests>,
    ) -> Response<Self> {
        // hyper does not ask these for their parts.
        let has_no_body = method == Method::HEAD
            || matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        response.map(|body| {
            let sending = Sending::new(requests, has_no_body || body.is_end_stream());
            Self { own: Some(body), sending }
        })
    }

    pub(crate) fn empty(status: StatusCode, requests: &Rc<Requests>) -> Response<Self> {
        let sending = Sending::new(requests, true);
        let mut response = Response::new(Self { own: None, sending });
        *response.status_mut() = status;
        response
    }
}

impl<B> fmt::Debug for Reply<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_own", &self.own.is_some()).finish_non_exhaustive()
    }
}

impl<B: Body> Body for Reply<B> {
    type Data = Part<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(mut body) = this.own.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let polled = body.as_mut().poll_frame(cx);
        let sending = this.sending;
        sending.is_complete = match &polled {
            Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        sending.set_due(polled.is_pending());
        polled.map_ok(|frame| frame.map_data(|data| Part::new(data, &sending.requests)))
    }

    fn is_end_stream(&self) -> bool {
        self.own.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.own.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

/// A part of a response, dropped by hyper when it is written or its stream is reset.
pub(crate) struct Part<D: Buf> {
    data: D,
    requests: Rc<Requests>,
}

impl<D: Buf> Part<D> {
    fn new(data: D, requests: &Rc<Requests>) -> Self {
        requests.part_begins();
        Self { data, requests: requests.clone() }
    }
}

impl<D: Buf> Drop for Part<D> {
    fn drop(&mut self) {
        self.requests.part_ends(!self.data.has_remaining());
    }
}

impl<D: Buf> Buf for Part<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(to)
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.data.copy_to_bytes(length)
    }
}
