//! The body of a request.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Frame, SizeHint};

use crate::BoxError;

type Frames = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError>>>;

/// The body of a request: bytes, or a stream of them.
///
/// A body of bytes can be sent again, after a redirect or on another connection. A stream is read
/// once. The task of the connection polls the stream; an interruption of the task that sends the
/// request drops the stream.
///
/// # Examples
///
/// ```no_run
/// use pikake::http::Client;
/// use pikake::http::client::Body;
/// use std::convert::Infallible;
///
/// # async fn example() -> Result<(), pikake::http::client::Error> {
/// let parts = futures::stream::iter(["first", "second"].map(Ok::<_, Infallible>));
/// let client = Client::new();
/// client.put("http://localhost:8080/file").body(Body::from_stream(parts)).send().await?;
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Body(Content);

#[derive(Default)]
enum Content {
    #[default]
    Empty,
    Bytes(Bytes),
    Stream(Frames),
}

impl Body {
    /// A stream of bytes, which is sent as it comes: by HTTP/1.1 in chunks.
    pub fn from_stream<S, D, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<D, E>> + 'static,
        D: Into<Bytes>,
        E: Into<BoxError>,
    {
        Self(Content::Stream(Box::pin(StreamBody(Box::pin(stream)))))
    }

    /// Any other body of the crate `http-body`. If it knows its length, so does the server.
    pub fn from_frames<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Content::Stream(Box::pin(Boxed(Box::pin(body)))))
    }

    /// The bytes, if the body is no stream.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Content::Empty => Some(&[]),
            Content::Bytes(bytes) => Some(bytes),
            Content::Stream(_) => None,
        }
    }

    /// A copy, unless the body is a stream.
    pub(crate) fn try_clone(&self) -> Option<Self> {
        match &self.0 {
            Content::Empty => Some(Self::default()),
            Content::Bytes(bytes) => Some(Self(Content::Bytes(bytes.clone()))),
            Content::Stream(_) => None,
        }
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        let bytes = bytes.into();
        Self(if bytes.is_empty() { Content::Empty } else { Content::Bytes(bytes) })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Content::Empty => Poll::Ready(None),
            Content::Bytes(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Content::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Content::Stream(frames) => frames.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Empty => true,
            Content::Bytes(_) => false,
            Content::Stream(frames) => frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Empty => SizeHint::with_exact(0),
            Content::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(frames) => frames.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Content::Empty => f.write_str("Body(empty)"),
            Content::Bytes(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Content::Stream(_) => f.write_str("Body(stream)"),
        }
    }
}

/// A stream as frames of data.
struct StreamBody<S>(Pin<Box<S>>);

impl<S, D, E> http_body::Body for StreamBody<S>
where
    S: Stream<Item = Result<D, E>>,
    D: Into<Bytes>,
    E: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let item = ready!(self.0.as_mut().poll_next(cx));
        Poll::Ready(item.map(|item| item.map(|data| Frame::data(data.into())).map_err(Into::into)))
    }
}

/// A body with a boxed error.
struct Boxed<B>(Pin<Box<B>>);

impl<B> http_body::Body for Boxed<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.0.as_mut().poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
