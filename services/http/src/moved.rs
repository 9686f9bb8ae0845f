//! The body of an answer, on its way from the kernel that made it to the kernel of the connection.
//!
//! The first part, if it is ready, crosses with the head. The rest goes on in a task of the kernel
//! that made the body, which sends the parts as bytes, a few ahead of the client. The drop of the
//! [`Moved`] ends that task, and the end of that task before the body's is an error here.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pikake_traps::{Builder, future_wait};
use tokio::sync::mpsc;

use crate::BoxError;

/// How many parts of a body wait for the client.
const PARTS_AHEAD: usize = 2;

/// The name of the tasks that send bodies.
const BODY_NAME: &str = "http body";

type Part = Result<Frame<Bytes>, BoxError>;

/// A body that another kernel makes.
pub(crate) struct Moved {
    first: Option<Part>,
    /// The other parts, and `None` after the last one.
    rest: Option<mpsc::Receiver<Option<Part>>>,
    hint: SizeHint,
}

/// Takes the first part of an answer's body along, and sends the others. A body that is not read is
/// not asked.
pub(crate) async fn send_body<B>(response: Response<B>, is_unread: bool) -> Response<Moved>
where
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    let mut body = Box::pin(body);
    let mut moved = Moved { first: None, rest: None, hint: body.size_hint() };
    let mut has_more = !is_unread && !body.is_end_stream();
    if has_more {
        let first = poll_fn(|cx| Poll::Ready(poll_part(body.as_mut(), cx))).await;
        has_more = match first {
            Poll::Pending => true,
            Poll::Ready(part) => {
                let has_more = matches!(part, Some(Ok(_))) && !body.is_end_stream();
                moved.first = part;
                has_more
            }
        };
    }
    if has_more {
        let (sender, rest) = mpsc::channel(PARTS_AHEAD);
        moved.rest = Some(rest);
        Builder::new().name(BODY_NAME).spawn(send_rest(body, sender)).detach();
    }
    Response::from_parts(head, moved)
}

fn poll_part<B>(body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Option<Part>>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let to_bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
    let frame = ready!(body.poll_frame(cx));
    Poll::Ready(frame.map(|part| part.map(|frame| frame.map_data(to_bytes)).map_err(Into::into)))
}

async fn send_rest<B>(mut body: Pin<Box<B>>, sender: mpsc::Sender<Option<Part>>)
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut gone = pin!(sender.closed());
    loop {
        let part = poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => poll_part(body.as_mut(), cx).map(Some),
        });
        let Some(part) = part.await else { return };
        let is_last = !matches!(part, Some(Ok(_)));
        if !matches!(future_wait(sender.send(part)).await, Ok(Ok(()))) || is_last {
            return;
        }
    }
}

impl Body for Moved {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        let part = match (self.first.take(), self.rest.as_mut()) {
            (Some(first), _) => Some(first),
            (None, None) => None,
            (None, Some(rest)) => match ready!(rest.poll_recv(cx)) {
                Some(part) => part,
                None => Some(Err(io::Error::other("the kernel of the response has ended").into())),
            },
        };
        match part.as_ref() {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let (lower, upper) = (self.hint.lower(), self.hint.upper());
                self.hint = SizeHint::new();
                self.hint.set_lower(lower.saturating_sub(length));
                upper
                    .into_iter()
                    .for_each(|upper| self.hint.set_upper(upper.saturating_sub(length)));
            }
            Some(Err(_)) | None => self.rest = None,
        }
        Poll::Ready(part)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moved").field("hint", &self.hint).finish_non_exhaustive()
    }
}
