//! Messages instead of bytes: a codec on a stream.
//!
//! Reading keeps what has arrived until there is a whole message. Writing keeps what the stream did
//! not take yet, and sends it before all else. So neither loses its place in the stream when it is
//! interrupted.

use std::cell::RefCell;
use std::fmt;
use std::io;

use crate::buffered::{Buffer, LimitExceeded, fill};
use crate::codec::{Decode, Decoded, Encode};
use crate::error::WriteAllError;
use crate::read_write::{Read, Write};

/// Reads messages from a stream.
///
/// # Examples
///
/// ```
/// use pikake_net::{FramedReader, FramedWriter, LineCodec, MemoryStream};
///
/// # async fn example() -> std::io::Result<()> {
/// let (one, other) = MemoryStream::pair(1024);
/// let mut writer = FramedWriter::new(one, LineCodec::new());
/// writer.send("hello").await?;
/// let mut reader = FramedReader::new(other, LineCodec::new());
/// assert_eq!(reader.next().await?.as_deref(), Some("hello"));
/// # Ok(()) }
/// ```
pub struct FramedReader<R, D> {
    inner: R,
    codec: D,
    buffer: RefCell<Buffer>,
}

impl<R, D> FramedReader<R, D> {
    /// Reads from a stream. For the other direction of the same stream, give a reference to each.
    pub fn new(inner: R, codec: D) -> Self {
        Self { inner, codec, buffer: RefCell::default() }
    }

    /// The stream, the codec, and what has arrived and was not taken.
    pub fn into_parts(self) -> (R, D, Vec<u8>) {
        let rest = self.buffer.borrow().bytes().to_vec();
        (self.inner, self.codec, rest)
    }
}

impl<R: Read, D: Decode> FramedReader<R, D> {
    /// The next message; `None` at the end of the stream.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no whole message. Dropped or interrupted, it has taken
    /// nothing: what has arrived is kept, and the next call goes on.
    ///
    /// # Errors
    ///
    /// The codec's; what the stream reports; the interruption; [`LimitExceeded`] if the codec finds
    /// no message within its limit.
    pub async fn next(&mut self) -> io::Result<Option<D::Item>> {
        loop {
            {
                let buffer = self.buffer.get_mut();
                if let Decoded::Item(message, length) = self.codec.decode(buffer.bytes())? {
                    buffer.consume(length);
                    return Ok(Some(message));
                }
                let limit = self.codec.limit();
                if buffer.bytes().len() > limit {
                    return Err(LimitExceeded { limit }.into());
                }
            }
            if fill(&self.buffer, &self.inner).await? == 0 {
                let buffer = self.buffer.get_mut();
                if buffer.bytes().is_empty() {
                    return Ok(None);
                }
                let message = self.codec.decode_rest(buffer.bytes())?;
                buffer.consume(buffer.bytes().len());
                return Ok(message);
            }
        }
    }
}

impl<R: fmt::Debug, D: fmt::Debug> fmt::Debug for FramedReader<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedReader")
            .field("inner", &self.inner)
            .field("codec", &self.codec)
            .field("buffered", &self.buffer.borrow().bytes().len())
            .finish()
    }
}

/// Writes messages to a stream. See [`FramedReader`].
pub struct FramedWriter<W, E> {
    inner: W,
    codec: E,
    /// What the stream has not taken yet, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
}

impl<W, E> FramedWriter<W, E> {
    /// Writes to a stream.
    pub fn new(inner: W, codec: E) -> Self {
        Self { inner, codec, pending: Vec::new(), sent: 0 }
    }

    /// The stream, the codec, and what is still to be written.
    pub fn into_parts(self) -> (W, E, Vec<u8>) {
        let pending = self.pending[self.sent..].to_vec();
        (self.inner, self.codec, pending)
    }
}

impl<W: Write, E: Encode> FramedWriter<W, E> {
    /// Sends a message, and waits until the stream has taken it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the error says whether the message counts as sent: what
    /// the stream has not taken of it then follows with the next message, or by
    /// [`flush`](Self::flush). Dropped, the message counts as sent if it was begun; nobody knows.
    ///
    /// # Errors
    ///
    /// The codec's; what the stream reports; the interruption.
    pub async fn send(&mut self, message: &E::Item) -> Result<(), SendMessageError> {
        let not_taken = |source| SendMessageError { is_taken: false, source };
        self.drain().await.map_err(not_taken)?;
        let encoded = self.codec.encode(message, &mut self.pending);
        if let Err(error) = encoded {
            self.pending.clear();
            return Err(not_taken(error));
        }
        self.drain().await.map_err(|source| SendMessageError { is_taken: true, source })?;
        self.inner.flush().await.map_err(|source| SendMessageError { is_taken: true, source })
    }

    /// Has the stream take what an interrupted [`send`](Self::send) has left.
    ///
    /// # Cancellation
    ///
    /// An interruption point; nothing is lost.
    ///
    /// # Errors
    ///
    /// What the stream reports; the interruption.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.drain().await?;
        self.inner.flush().await
    }

    /// As [`flush`](Self::flush), and ends the direction.
    ///
    /// # Cancellation
    ///
    /// An interruption point; nothing is lost.
    ///
    /// # Errors
    ///
    /// What the stream reports; the interruption.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.drain().await?;
        self.inner.finish().await
    }

    async fn drain(&mut self) -> io::Result<()> {
        while self.sent < self.pending.len() {
            match self.inner.write(&self.pending[self.sent..]).await {
                Ok(0) => return Err(WriteAllError::no_room(0).into()),
                Ok(length) => self.sent += length,
                Err(error) => {
                    self.sent += WriteAllError::written_in(&error);
                    return Err(error);
                }
            }
        }
        self.pending.clear();
        self.sent = 0;
        Ok(())
    }
}

impl<W: fmt::Debug, E: fmt::Debug> fmt::Debug for FramedWriter<W, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedWriter")
            .field("inner", &self.inner)
            .field("codec", &self.codec)
            .field("pending", &(self.pending.len() - self.sent))
            .finish()
    }
}

/// A message was not sent, or not all of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct SendMessageError {
    /// Whether the message counts as sent: the rest of it goes before the next one. If not, nothing
    /// of it was written, and it can be sent again.
    pub is_taken: bool,
    /// Why: the codec's error, the stream's, or an interruption.
    pub source: io::Error,
}

impl fmt::Display for SendMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.is_taken {
            true => "not all of the message was written, and the rest will follow",
            false => "the message was not sent",
        };
        write!(f, "{what}: {}", self.source)
    }
}

impl std::error::Error for SendMessageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<SendMessageError> for io::Error {
    fn from(error: SendMessageError) -> Self {
        Self::new(error.source.kind(), error)
    }
}
