//! The body of a response, which records whether the client keeps it waiting.
//!
//! hyper asks a body for its parts and keeps each until it is written. A body that has no part
//! ready while none is kept waits for the server; any other waits for the client.

use std::cell::Cell;
use std::fmt;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::request::Requests;

/// A response that is being sent: until hyper has dropped its body and all its parts.
struct Sending {
    requests: Rc<Requests>,
    /// Whether hyper has asked for a part, and none was ready.
    is_asked: Cell<bool>,
    /// The parts that hyper keeps.
    kept: Cell<usize>,
    is_due: Cell<bool>,
    /// The bytes that hyper takes before it asks no more, if the response has a length.
    left: Cell<Option<u64>>,
    /// Whether hyper has all parts.
    is_complete: Cell<bool>,
    /// Whether hyper dropped a part before it was written.
    is_cut: Cell<bool>,
}

impl Sending {
    fn new(requests: &Rc<Requests>, left: Option<u64>, is_complete: bool) -> Self {
        requests.replies.set(requests.replies.get() + 1);
        Self {
            requests: requests.clone(),
            is_asked: Cell::default(),
            kept: Cell::default(),
            is_due: Cell::default(),
            left: Cell::new(left),
            is_complete: Cell::new(is_complete || left == Some(0)),
            is_cut: Cell::default(),
        }
    }

    /// Notes a frame that hyper gets.
    fn note_frame<D: Buf>(&self, frame: &Frame<D>, is_last: bool) {
        let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
        self.left.set(self.left.get().map(|left| left.saturating_sub(length)));
        self.is_complete.set(is_last || self.left.get() == Some(0));
    }

    fn set_asked(&self, is_asked: bool) {
        self.is_asked.set(is_asked);
        self.update();
    }

    fn update(&self) {
        let is_due = self.is_asked.get() && self.kept.get() == 0;
        if self.is_due.replace(is_due) != is_due {
            let due = &self.requests.replies_due;
            due.set(if is_due { due.get() + 1 } else { due.get() - 1 });
            if is_due && !self.is_cut.get() {
                self.requests.note_progress();
            }
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.set_asked(false);
        self.requests.replies.set(self.requests.replies.get() - 1);
        if self.is_complete.get() && !self.is_cut.get() {
            self.requests.note_progress();
        }
    }
}

pin_project_lite::pin_project! {
    /// The body of a response: the service's own, or an empty one if the service panicked, was
    /// dropped or not called.
    pub(crate) struct Reply<B> {
        #[pin]
        own: Option<B>,
        sending: Rc<Sending>,
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
        let length = response.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        response.map(|body| {
            let sending = Sending::new(requests, length, has_no_body || body.is_end_stream());
            Self { own: Some(body), sending: Rc::new(sending) }
        })
    }

    pub(crate) fn empty(status: StatusCode, requests: &Rc<Requests>) -> Response<Self> {
        let sending = Rc::new(Sending::new(requests, None, true));
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
        let sending = &*this.sending;
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            sending.note_frame(frame, body.is_end_stream());
        } else if let Poll::Ready(None) = polled {
            sending.is_complete.set(true);
        }
        sending.set_asked(polled.is_pending());
        polled.map_ok(|frame| frame.map_data(|data| Part::new(data, sending)))
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
    sending: Rc<Sending>,
}

impl<D: Buf> Part<D> {
    fn new(data: D, sending: &Rc<Sending>) -> Self {
        sending.kept.set(sending.kept.get() + 1);
        Self { data, sending: sending.clone() }
    }
}

impl<D: Buf> Drop for Part<D> {
    fn drop(&mut self) {
        let Self { data, sending } = self;
        sending.is_cut.set(sending.is_cut.get() || data.has_remaining());
        sending.kept.set(sending.kept.get() - 1);
        sending.update();
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
