//! A response, and its body as it comes.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::HeaderMap;
use http::response::Parts;
use http::{Method, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use pikake_traps::{Interrupted, future_wait, timeout_after};
use serde::de::DeserializeOwned;
use url::Url;

use super::decode::Decoder;
use super::error::{Error, ErrorKind};
use super::exchange::{Answer, Hold, Outgoing};
use crate::BoxError;

/// The longest body of a redirect that is read, so that its connection can be used again.
const DRAINED: u64 = 16 * 1024;

/// How long the reading of such a body may take.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The most that is reserved for a body because the server announces its length.
const RESERVED: u64 = 64 * 1024;

/// Reads the short body of a response that nobody wants, and gives its connection back; or else
/// closes it.
///
/// # Errors
///
/// The interruption of the caller, which ends the request.
pub(crate) async fn drain(mut body: Incoming, hold: Hold) -> Result<(), Interrupted> {
    let is_short = body.size_hint().upper().is_some_and(|length| length <= DRAINED);
    if !is_short {
        return Ok(());
    }
    let reading = async {
        while !body.is_end_stream() {
            let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            match future_wait(frame).await? {
                Some(Ok(_)) => {}
                Some(Err(_)) => return Ok::<_, Interrupted>(false),
                None => break,
            }
        }
        Ok(true)
    };
    if timeout_after(DRAIN_TIMEOUT, reading).await.unwrap_or(Ok(false))? {
        hold.give_back();
    }
    Ok(())
}

/// A response: its head, and the body that is still to be read.
///
/// The connection is kept for the next request when the body has been read to its end. The drop of
/// a response before that closes the HTTP/1.1 connection, or resets the stream of the HTTP/2 one.
///
/// # Examples
///
/// ```no_run
/// use pikake::http::Client;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut response = Client::new().get("http://localhost:8080/large").send().await?;
/// println!("{}, {:?} bytes", response.status(), response.content_length());
/// while let Some(bytes) = response.chunk().await? {
///     println!("{} more", bytes.len());
/// }
/// # Ok(()) }
/// ```
pub struct Response {
    head: Parts,
    peer: SocketAddr,
    body: ResponseBody,
}

impl Response {
    pub(crate) fn new(answer: Answer, outgoing: Outgoing, decodes: bool) -> Self {
        let Answer { response, hold, peer } = answer;
        let (mut head, incoming) = response.into_parts();
        let has_body = decodes && !incoming.is_end_stream();
        let decoder = has_body.then(|| Decoder::for_response(&mut head.headers)).flatten();
        let Outgoing { method, url, .. } = outgoing;
        let mut body = ResponseBody {
            incoming,
            hold: Some(hold),
            decoder,
            limit: None,
            taken: 0,
            asked: Rc::new((method, url)),
        };
        if body.incoming.is_end_stream() {
            body.give_back();
        }
        Self { head, peer, body }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The version of HTTP that the server speaks.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The headers. If the body is decoded, those that describe its encoded form are removed.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The URL of the response, after redirects.
    pub fn url(&self) -> &Url {
        &self.body.asked.1
    }

    /// The address of the server, or of the proxy.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The length of the body, if the server announces it and the client does not decode it.
    pub fn content_length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Returns an error for a status of 400 to 599, and the response otherwise.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Status`].
    pub fn error_for_status(self) -> Result<Self, Error> {
        let status = self.status();
        if status.is_client_error() || status.is_server_error() {
            return Err(self.body.error(ErrorKind::Status(status)));
        }
        Ok(self)
    }

    /// Limits the length of the body, after its decoding. Without a limit, a server can fill the
    /// memory of a program that takes the whole body.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.body.limit = Some(bytes);
        self
    }

    /// The next part of the body; `None` at its end.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop loses nothing: the next call continues.
    ///
    /// # Errors
    ///
    /// [`Error`]: the body is cut, invalid or longer than its [`limit`](Self::limit); the
    /// interruption.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        self.body.chunk().await
    }

    /// The whole body.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop loses the body.
    ///
    /// # Errors
    ///
    /// As for [`chunk`](Self::chunk).
    pub async fn bytes(mut self) -> Result<Bytes, Error> {
        self.body.collected().await
    }

    /// The whole body as text in UTF-8. Replacement characters (U+FFFD) stand for what is invalid.
    ///
    /// # Cancellation
    ///
    /// As for [`bytes`](Self::bytes).
    ///
    /// # Errors
    ///
    /// As for [`chunk`](Self::chunk).
    pub async fn text(self) -> Result<String, Error> {
        let bytes = self.bytes().await?;
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The whole body, from JSON.
    ///
    /// # Cancellation
    ///
    /// As for [`bytes`](Self::bytes).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decode`]; as for [`chunk`](Self::chunk).
    pub async fn json<T: DeserializeOwned>(mut self) -> Result<T, Error> {
        let bytes = self.body.collected().await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| self.body.error(ErrorKind::Decode).because(error))
    }

    /// The body alone, which implements [`http_body::Body`].
    pub fn into_body(self) -> ResponseBody {
        self.body
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("url", &self.url().as_str())
            .field("status", &self.status())
            .field("version", &self.version())
            .field("headers", self.headers())
            .finish_non_exhaustive()
    }
}

/// The body of a response, read from the connection on demand.
pub struct ResponseBody {
    incoming: Incoming,
    /// `None` at the end, or after an error.
    hold: Option<Hold>,
    decoder: Option<Decoder>,
    limit: Option<u64>,
    taken: u64,
    asked: Rc<(Method, Url)>,
}

impl ResponseBody {
    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, &self.asked.0, Some(&self.asked.1))
    }

    /// Gives the connection back, since the body has ended.
    fn give_back(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.give_back();
        }
    }

    /// An error after which nothing more is read.
    fn fail(&mut self, kind: ErrorKind, cause: Option<BoxError>) -> Error {
        self.hold = None;
        let error = self.error(kind);
        match cause {
            Some(cause) => error.because(cause),
            None => error.because(format!("the limit is {} bytes", self.limit.unwrap_or_default())),
        }
    }

    /// The next frame as it comes, still encoded.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = match std::task::ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => Some(Err(self.fail(ErrorKind::Body, Some(error.into())))),
            None => {
                self.give_back();
                None
            }
        };
        // A body whose length is known has ended with its last byte.
        if self.incoming.is_end_stream() {
            self.give_back();
        }
        Poll::Ready(frame)
    }

    fn poll_decoded(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            let Some(decoder) = &mut self.decoder else { return self.poll_incoming(cx) };
            match decoder.next() {
                Ok(Some(output)) => return Poll::Ready(Some(Ok(Frame::data(output)))),
                Ok(None) => {}
                Err(error) => {
                    self.decoder = None;
                    return Poll::Ready(Some(
                        Err(self.fail(ErrorKind::Decode, Some(error.into()))),
                    ));
                }
            }
            match std::task::ready!(self.poll_incoming(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if let Some(decoder) = &mut self.decoder {
                            decoder.push(data);
                        }
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let finished = self.decoder.take().map(|mut decoder| decoder.finish());
                    return Poll::Ready(match finished {
                        Some(Ok(output)) if !output.is_empty() => Some(Ok(Frame::data(output))),
                        Some(Err(error)) => {
                            Some(Err(self.fail(ErrorKind::Decode, Some(error.into()))))
                        }
                        Some(Ok(_)) | None => None,
                    });
                }
            }
        }
    }

    /// The next part of the body; `None` at its end. See [`Response::chunk`].
    ///
    /// # Cancellation
    ///
    /// As for [`Response::chunk`].
    ///
    /// # Errors
    ///
    /// As for [`Response::chunk`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx));
            match future_wait(frame).await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match frame?.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    // Empty, or trailers.
                    Ok(_) | Err(_) => {}
                },
                Err(interrupted) => {
                    return Err(self.error(ErrorKind::Interrupted).because(interrupted));
                }
            }
        }
    }

    async fn collected(&mut self) -> Result<Bytes, Error> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let announced = self.size_hint().lower().min(RESERVED) as usize;
        let mut all = BytesMut::with_capacity(first.len() + second.len() + announced);
        all.extend_from_slice(&first);
        all.extend_from_slice(&second);
        while let Some(more) = self.chunk().await? {
            all.extend_from_slice(&more);
        }
        Ok(all.freeze())
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = std::task::ready!(self.poll_decoded(cx));
        if let Some(Ok(frame)) = &frame {
            self.taken += frame.data_ref().map_or(0, |data| data.len() as u64);
            if self.limit.is_some_and(|limit| self.taken > limit) {
                return Poll::Ready(Some(Err(self.fail(ErrorKind::TooLong, None))));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        if self.decoder.is_some() {
            return false;
        }
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.decoder.is_some() {
            return SizeHint::default();
        }
        self.incoming.size_hint()
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("taken", &self.taken).finish_non_exhaustive()
    }
}
