//! The body of a response, which counts what the client has not read.
//!
//! hyper asks a body for its parts and keeps each until it is written. A body that has no part
//! ready waits for the server; one whose parts hyper keeps, or that hyper does not ask, waits for
//! the client.

use std::fmt;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::BoxError;
use crate::access::Entry;
use crate::moved::Moved;
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
    entry: Option<Rc<Entry>>,
}

impl Sending {
    fn new(requests: &Rc<Requests>, is_complete: bool) -> Self {
        let cut_before = requests.body_begins();
        Self { requests: requests.clone(), is_due: false, is_complete, cut_before, entry: None }
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
        self.entry.iter().for_each(|entry| entry.end_body(self.is_complete));
    }
}

/// Whether hyper does not ask the body of this answer for its parts.
pub(crate) fn has_no_body(method: &Method, status: StatusCode) -> bool {
    method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

pin_project_lite::pin_project! {
    /// The body of a response.
    pub(crate) struct Reply<B> {
        #[pin]
        source: Source<B>,
        sending: Sending,
    }
}

pin_project_lite::pin_project! {
    /// Where a body comes from.
    #[project = SourceProjection]
    enum Source<B> {
        /// The service.
        Own { #[pin] body: B },
        /// The service of another kernel.
        Moved { body: Box<Moved> },
        /// The service panicked, was dropped or not called.
        Empty,
    }
}

impl<B: Body> Reply<B> {
    /// The response to a request of this method.
    pub(crate) fn own(
        response: Response<B>,
        method: &Method,
        requests: &Rc<Requests>,
    ) -> Response<Self> {
        Self::from_source(response.map(|body| Source::Own { body }), method, requests)
    }

    /// The response of another kernel.
    pub(crate) fn moved(
        response: Response<Moved>,
        method: &Method,
        requests: &Rc<Requests>,
    ) -> Response<Self> {
        Self::from_source(
            response.map(|body| Source::Moved { body: Box::new(body) }),
            method,
            requests,
        )
    }

    fn from_source(
        response: Response<Source<B>>,
        method: &Method,
        requests: &Rc<Requests>,
    ) -> Response<Self> {
        let has_no_body = has_no_body(method, response.status());
        response.map(|source| {
            let sending = Sending::new(requests, has_no_body || source.is_end_stream());
            Self { source, sending }
        })
    }

    pub(crate) fn empty(status: StatusCode, requests: &Rc<Requests>) -> Response<Self> {
        let sending = Sending::new(requests, true);
        let mut response = Response::new(Self { source: Source::Empty, sending });
        *response.status_mut() = status;
        response
    }
}

/// Has the access log wait for the end of a response.
pub(crate) fn log<B: Body>(
    response: &mut Response<Reply<B>>,
    entry: Option<Rc<Entry>>,
    outcome: &'static str,
) {
    if let Some(entry) = entry {
        let hint = response.body().source.size_hint();
        entry.answer(response.status(), outcome, response.headers(), hint);
        response.body_mut().sending.entry = Some(entry);
    }
}

type PolledFrame<D> = Poll<Option<Result<Frame<D>, BoxError>>>;

impl<B: Body> Source<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own { body } => body.is_end_stream(),
            Self::Moved { body } => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own { body } => body.size_hint(),
            Self::Moved { body } => body.size_hint(),
            Self::Empty => SizeHint::with_exact(0),
        }
    }

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<Data<B::Data>>
    where
        B::Error: Into<BoxError>,
    {
        match self.project() {
            SourceProjection::Own { body } => {
                let frame = ready!(body.poll_frame(cx));
                let frame = frame.map(|part| part.map(|frame| frame.map_data(Data::Own)));
                Poll::Ready(frame.map(|part| part.map_err(Into::into)))
            }
            SourceProjection::Moved { body } => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|part| part.map(|frame| frame.map_data(Data::Moved))))
            }
            SourceProjection::Empty => Poll::Ready(None),
        }
    }
}

impl<B> fmt::Debug for Reply<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Own { .. } => "own",
            Source::Moved { .. } => "moved",
            Source::Empty => "empty",
        };
        f.debug_struct("Reply").field("source", &source).finish_non_exhaustive()
    }
}

impl<B: Body> Body for Reply<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Part<B::Data>;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<Self::Data> {
        let mut this = self.project();
        let polled = this.source.as_mut().poll_frame(cx);
        let sending = this.sending;
        sending.is_complete = match &polled {
            Poll::Ready(Some(Ok(_))) => this.source.is_end_stream(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        sending.set_due(polled.is_pending());
        polled.map_ok(|frame| frame.map_data(|data| Part::new(data, sending)))
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

/// The bytes of a part.
enum Data<D> {
    Own(D),
    Moved(Bytes),
}

/// Calls a method of the bytes.
macro_rules! of_data {
    ($data:expr, $bytes:ident => $call:expr) => {
        match $data {
            Data::Own($bytes) => $call,
            Data::Moved($bytes) => $call,
        }
    };
}

/// A part of a response, dropped by hyper when it is written or its stream is reset.
pub(crate) struct Part<D: Buf> {
    data: Data<D>,
    requests: Rc<Requests>,
    /// The entry in the access log, and the length.
    logged: Option<(Rc<Entry>, u64)>,
}

impl<D: Buf> Part<D> {
    fn new(data: Data<D>, sending: &Sending) -> Self {
        sending.requests.part_begins();
        let logged = sending.entry.clone().map(|entry| {
            let length = of_data!(&data, data => data.remaining()) as u64;
            entry.take(length);
            (entry, length)
        });
        Self { data, requests: sending.requests.clone(), logged }
    }
}

impl<D: Buf> Drop for Part<D> {
    fn drop(&mut self) {
        self.requests.part_ends(!self.has_remaining());
        if let Some((entry, length)) = &self.logged {
            entry.write(*length, self.remaining() as u64);
        }
    }
}

impl<D: Buf> Buf for Part<D> {
    fn remaining(&self) -> usize {
        of_data!(&self.data, data => data.remaining())
    }

    fn chunk(&self) -> &[u8] {
        of_data!(&self.data, data => data.chunk())
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        of_data!(&self.data, data => data.chunks_vectored(to))
    }

    fn advance(&mut self, count: usize) {
        of_data!(&mut self.data, data => data.advance(count));
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        of_data!(&mut self.data, data => data.copy_to_bytes(length))
    }
}
