//! Messages on a stream, by a codec.
//!
//! A reader buffers bytes until a message is whole. A writer buffers the bytes that the stream did
//! not take, and sends them first. So neither loses its position in the stream by an interruption.

use std::cell::RefCell;
use std::fmt;
use std::io;

use crate::buffered::{LimitExceeded, ReadBuffer, fill};
use crate::codec::{Decode, Encode};
use crate::error::WriteAllError;
use crate::read_write::{Read, Write};

/// Reads messages from a stream.
///
/// # Examples
///
/// ```
/// use pikake::net::{FramedReader, FramedWriter, LineCodec, MemoryStream};
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
    buffer: RefCell<ReadBuffer>,
}

impl<R, D> FramedReader<R, D> {
    /// Creates a reader. To read and write the same stream, pass a reference to both.
    pub fn new(inner: R, codec: D) -> Self {
        Self { inner, codec, buffer: RefCell::default() }
    }

    /// The stream, the codec, and the buffered bytes.
    pub fn into_parts(self) -> (R, D, Vec<u8>) {
        let rest = self.buffer.borrow().to_vec();
        (self.inner, self.codec, rest)
    }
}

impl<R: Read, D: Decode> FramedReader<R, D> {
    /// The next message; `None` at the end of the stream.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no whole message. A call that is dropped or interrupted
    /// keeps the bytes buffered, and the next call continues.
    ///
    /// # Errors
    ///
    /// The codec's error; the stream's error; the interruption; [`LimitExceeded`] if the codec
    /// finds no message within its limit.
    pub async fn next(&mut self) -> io::Result<Option<D::Item>> {
        loop {
            let buffer = self.buffer.get_mut();
            if let Some(message) = self.codec.decode(buffer)? {
                return Ok(Some(message));
            }
            let limit = self.codec.limit();
            if buffer.len() > limit {
                return Err(LimitExceeded { limit }.into());
            }
            if fill(&self.buffer, &self.inner, limit).await? == 0 {
                let buffer = self.buffer.get_mut();
                return match buffer.is_empty() {
                    true => Ok(None),
                    false => self.codec.decode_rest(buffer),
                };
            }
        }
    }
}

impl<R: fmt::Debug, D: fmt::Debug> fmt::Debug for FramedReader<R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramedReader")
            .field("inner", &self.inner)
            .field("codec", &self.codec)
            .field("buffered", &self.buffer.borrow().len())
            .finish()
    }
}

/// Writes messages to a stream. See [`FramedReader`].
pub struct FramedWriter<W, E> {
    inner: W,
    codec: E,
    /// Encoded messages; the stream has not taken the bytes from `sent` on.
    pending: Vec<u8>,
    sent: usize,
}

impl<W, E> FramedWriter<W, E> {
    /// Creates a writer.
    pub fn new(inner: W, codec: E) -> Self {
        Self { inner, codec, pending: Vec::new(), sent: 0 }
    }

    /// The stream, the codec, and the bytes that are not written yet.
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
    /// An interruption point. The error of an interruption says whether the message counts as sent:
    /// its rest then goes out with the next message, or by [`flush`](Self::flush). If the future is
    /// dropped, a message that was begun counts as sent.
    ///
    /// # Errors
    ///
    /// The codec's error; the stream's error; the interruption.
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

    /// Writes the rest that an interrupted [`send`](Self::send) has left.
    ///
    /// # Cancellation
    ///
    /// An interruption point; a drop loses nothing.
    ///
    /// # Errors
    ///
    /// The stream's error; the interruption.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.drain().await?;
        self.inner.flush().await
    }

    /// As [`flush`](Self::flush), and ends this direction of the stream.
    ///
    /// # Cancellation
    ///
    /// An interruption point; a drop loses nothing.
    ///
    /// # Errors
    ///
    /// The stream's error; the interruption.
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

/// A message was not sent, or only in part.
#[derive(Debug)]
#[non_exhaustive]
pub struct SendMessageError {
    /// Whether the message counts as sent: its rest goes out before the next message. Otherwise no
    /// byte was written, and the message can be sent again.
    pub is_taken: bool,
    /// The cause: the codec's error, the stream's error, or an interruption.
    pub source: io::Error,
}

impl fmt::Display for SendMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.is_taken {
            true => "the message was written in part, and the rest goes out with the next write",
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
