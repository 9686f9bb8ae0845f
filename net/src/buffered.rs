//! Reading lines and other pieces whose length the peer decides.
//!
//! The reader buffers the bytes until a piece is whole, and removes them only then. So an
//! interruption loses nothing: the next call returns the piece from its beginning. A *limit* stops
//! a peer that never ends its line: the buffer exceeds it by one read at most.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Deref;

use bytes::Bytes;
use pikake_traps::{Direction, ResourceBusy};

use crate::chunk::{CHUNK, give_memory, take_memory};
use crate::codec::text_of;
use crate::error::ReadExactError;
use crate::read_write::{Read, Write, read_exact};

/// The default limit of a line or another piece that is read as a whole. Header lines and commands
/// of the usual protocols are far shorter.
pub const DEFAULT_READ_LIMIT: usize = 64 * 1024;

/// A piece exceeded its reader's limit. The payload of an [`io::Error`] of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitExceeded {
    /// The limit, in bytes.
    pub limit: usize,
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the peer sent more than {} bytes without the end of a message; close the \
             connection, or raise the reader's limit",
            self.limit
        )
    }
}

impl std::error::Error for LimitExceeded {}

impl From<LimitExceeded> for io::Error {
    fn from(exceeded: LimitExceeded) -> Self {
        Self::new(io::ErrorKind::InvalidData, exceeded)
    }
}

/// A message of at least this length is handed out with the memory into which it was read.
const LARGE: usize = CHUNK;

/// Bytes that were read from a stream and that no message has taken yet. See
/// [`Decode`](crate::Decode).
///
/// An empty buffer has no memory: a reader that waits for the first byte of a message holds none.
#[derive(Default)]
pub struct ReadBuffer {
    /// The bytes from `start` on.
    memory: Vec<u8>,
    start: usize,
    /// The length of the last message, and of what was before it. The next one may be as long.
    expected: usize,
    /// A read fills the buffer, and has its memory.
    is_filling: bool,
}

impl ReadBuffer {
    /// Removes the first `length` bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[track_caller]
    pub fn advance(&mut self, length: usize) {
        assert!(length <= self.len(), "at most the bytes that were read are removed");
        self.start += length;
        if self.start == self.memory.len() {
            self.start = 0;
            give_memory(std::mem::take(&mut self.memory));
        }
    }

    /// Removes the first `length` bytes, and returns them. A long message is not copied, if it has
    /// most of the memory into which it was read.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    #[track_caller]
    pub fn split_to(&mut self, length: usize) -> Bytes {
        self.expected = self.start + length;
        if length < LARGE || length < self.memory.capacity() / 2 {
            let bytes = Bytes::copy_from_slice(&self[..length]);
            self.advance(length);
            return bytes;
        }
        assert!(length <= self.len(), "at most the bytes that were read are removed");
        let rest = self.memory.split_off(self.expected);
        let memory = std::mem::replace(&mut self.memory, rest);
        Bytes::from(memory).slice(std::mem::take(&mut self.start)..)
    }

    /// The memory, with room for a read: for a message as long as the last one, or for as much as
    /// there is, so the reads of a long message grow; up to `limit`, and for a chunk at least.
    fn take_memory(&mut self, limit: usize) -> Vec<u8> {
        let mut memory = std::mem::take(&mut self.memory);
        memory.drain(..std::mem::take(&mut self.start));
        let length = memory.len();
        let more = length.max(self.expected.saturating_sub(length));
        let more = more.min(limit.saturating_sub(length)).max(CHUNK);
        if memory.capacity() == 0 && more <= CHUNK {
            return take_memory();
        }
        if memory.capacity() - length < CHUNK / 2 {
            memory.reserve_exact(more);
        }
        memory
    }
}

/// Bytes to decode, for tests of a codec.
impl From<Vec<u8>> for ReadBuffer {
    fn from(memory: Vec<u8>) -> Self {
        Self { memory, ..Self::default() }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

impl fmt::Debug for ReadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("length", &self.len()).finish_non_exhaustive()
    }
}

/// A read that fills a buffer, with the buffer's memory. Its drop puts the memory back.
struct Filling<'a> {
    slot: &'a RefCell<ReadBuffer>,
    memory: Vec<u8>,
}

impl<'a> Filling<'a> {
    fn begin(slot: &'a RefCell<ReadBuffer>) -> io::Result<Self> {
        match std::mem::replace(&mut slot.borrow_mut().is_filling, true) {
            true => Err(ResourceBusy(Direction::Read).into()),
            false => Ok(Self { slot, memory: Vec::new() }),
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let mut buffer = self.slot.borrow_mut();
        buffer.is_filling = false;
        let memory = std::mem::take(&mut self.memory);
        match memory.is_empty() {
            true => give_memory(memory),
            false => buffer.memory = memory,
        }
    }
}

/// Reads more bytes behind the buffered ones, of which there are at most `limit` as a rule; 0 is
/// the end of the stream. A call that is dropped or interrupted changes nothing.
pub(crate) async fn fill(
    slot: &RefCell<ReadBuffer>,
    from: &impl Read,
    limit: usize,
) -> io::Result<usize> {
    let mut filling = Filling::begin(slot)?;
    if slot.borrow().is_empty() {
        from.readable().await?;
    }
    filling.memory = slot.borrow_mut().take_memory(limit);
    from.read_buf(&mut filling.memory).await
}

/// Reads a stream in pieces, and buffers the bytes of a piece until it is whole.
///
/// # Examples
///
/// ```
/// use pikake::net::{BufReader, MemoryStream, Write};
///
/// # async fn example() -> std::io::Result<()> {
/// let (peer, stream) = MemoryStream::pair(1024);
/// peer.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").await?;
///
/// let reader = BufReader::new(stream).limit(8 * 1024);
/// let mut lines = reader.lines();
/// while let Some(line) = lines.next_line().await? {
///     if line.is_empty() {
///         break;
///     }
///     println!("{line}");
/// }
/// # Ok(()) }
/// ```
#[doc(alias("AsyncBufReadExt", "BufStream"))]
pub struct BufReader<R> {
    inner: R,
    limit: usize,
    buffer: RefCell<ReadBuffer>,
}

impl<R> BufReader<R> {
    /// Creates a reader with the [`DEFAULT_READ_LIMIT`].
    pub fn new(inner: R) -> Self {
        Self { inner, limit: DEFAULT_READ_LIMIT, buffer: RefCell::default() }
    }

    /// Sets the largest piece. The reader buffers at most this and 16 KiB.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// The stream. Bytes that are read from it directly are missing here.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The number of buffered bytes.
    pub fn buffered(&self) -> usize {
        self.buffer.borrow().len()
    }

    /// The stream and the buffered bytes.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        let rest = self.buffer.borrow().to_vec();
        (self.inner, rest)
    }
}

impl<R: Read> BufReader<R> {
    /// Reads up to a delimiter, and returns the bytes before it. At the end of the stream, returns
    /// the rest; `None` if there is no rest.
    ///
    /// # Examples
    ///
    /// ```
    /// # pikake::sim::example(async {
    /// use pikake::net::{BufReader, MemoryStream, Write};
    ///
    /// let (near, far) = MemoryStream::pair(100);
    /// near.write_all(b"one\0two\0").await?;
    /// let reader = BufReader::new(far);
    /// assert_eq!(reader.next_segment(b'\0').await?, Some(b"one".to_vec()));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point while the piece is not whole. A call that is dropped or interrupted
    /// keeps the bytes buffered, and the next call continues.
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`] if the delimiter is not within the limit; later calls return the same
    /// error. The stream's error; the interruption; [`ResourceBusy`](pikake_traps::ResourceBusy) if
    /// another task reads.
    #[doc(alias = "read_until")]
    pub async fn next_segment(&self, delimiter: u8) -> io::Result<Option<Vec<u8>>> {
        let length = self.find(delimiter).await?;
        let segment = |bytes: &[u8]| bytes.strip_suffix(&[delimiter]).unwrap_or(bytes).to_vec();
        Ok(self.take(length, segment))
    }

    /// Removes `length` bytes, and returns what `read` makes of them; `None` if that is zero.
    fn take<T>(&self, length: usize, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let mut buffer = self.buffer.borrow_mut();
        let piece = (length > 0).then(|| read(&buffer[..length]));
        buffer.advance(length);
        piece
    }

    /// The length of the piece up to the delimiter, or to the end of the stream.
    async fn find(&self, delimiter: u8) -> io::Result<usize> {
        let mut searched = 0;
        loop {
            let found = {
                let bytes = self.buffer.borrow();
                let found = bytes[searched..].iter().position(|byte| *byte == delimiter);
                let length = found.map(|index| searched + index + 1);
                searched = bytes.len();
                length
            };
            if found.unwrap_or(searched) > self.limit {
                return Err(LimitExceeded { limit: self.limit }.into());
            }
            match found {
                Some(length) => return Ok(length),
                None if fill(&self.buffer, &self.inner, self.limit).await? == 0 => {
                    return Ok(searched);
                }
                None => {}
            }
        }
    }

    /// Reads a line, without its `\n` or `\r\n`. `None` at the end of the stream; the last line may
    /// lack its end.
    ///
    /// # Examples
    ///
    /// ```
    /// # pikake::sim::example(async {
    /// use pikake::net::{BufReader, MemoryStream, Write};
    ///
    /// let (near, far) = MemoryStream::pair(100);
    /// near.write_all(b"HELO example.org\r\n").await?;
    /// let command = BufReader::new(far).next_line().await?;
    /// assert_eq!(command.as_deref(), Some("HELO example.org"));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// As for [`next_segment`](Self::next_segment).
    ///
    /// # Errors
    ///
    /// As for [`next_segment`](Self::next_segment); [`InvalidData`](io::ErrorKind::InvalidData) for
    /// a line that is not UTF-8, which is consumed.
    #[doc(alias = "read_line")]
    pub async fn next_line(&self) -> io::Result<Option<String>> {
        let length = self.find(b'\n').await?;
        let text = |line: &[u8]| text_of(line.strip_suffix(b"\n").unwrap_or(line));
        self.take(length, text).transpose()
    }

    /// The lines of the stream.
    pub fn lines(&self) -> Lines<'_, R> {
        Lines { reader: self }
    }

    /// Reads to the end of the stream, adds the bytes to a vector, and returns their number.
    ///
    /// # Cancellation
    ///
    /// As for [`next_segment`](Self::next_segment).
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`] if the rest of the stream exceeds the limit; otherwise as for
    /// [`next_segment`](Self::next_segment).
    pub async fn read_to_end(&self, to: &mut Vec<u8>) -> io::Result<usize> {
        let length = self.buffer_all().await?;
        self.take(length, |bytes| to.extend_from_slice(bytes));
        Ok(length)
    }

    /// Reads to the end of the stream, adds the text to a string, and returns its length in bytes.
    ///
    /// # Cancellation
    ///
    /// As for [`next_segment`](Self::next_segment).
    ///
    /// # Errors
    ///
    /// As for [`read_to_end`](Self::read_to_end); [`InvalidData`](io::ErrorKind::InvalidData) for
    /// bytes that are not UTF-8, which stay buffered.
    pub async fn read_to_string(&self, to: &mut String) -> io::Result<usize> {
        let length = self.buffer_all().await?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        to.push_str(std::str::from_utf8(&self.buffer.borrow()[..length]).map_err(invalid)?);
        self.take(length, |_| ());
        Ok(length)
    }

    /// Buffers the rest of the stream, and returns its length.
    async fn buffer_all(&self) -> io::Result<usize> {
        loop {
            if self.buffered() > self.limit {
                return Err(LimitExceeded { limit: self.limit }.into());
            }
            if fill(&self.buffer, &self.inner, self.limit).await? == 0 {
                return Ok(self.buffered());
            }
        }
    }

    /// Reads until the buffer is full.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is nothing to read. The error of an interruption has the
    /// number of bytes read; a drop loses it.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ended before; the stream's
    /// error; the interruption; with the number of bytes that were read.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> Result<(), ReadExactError> {
        read_exact(self, buffer).await
    }
}

impl<R: Read> Read for BufReader<R> {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.buffered() == 0 {
            if buffer.len() >= CHUNK {
                // A concurrent read of a piece must not lose bytes to this read.
                let _filling = Filling::begin(&self.buffer)?;
                return self.inner.read(buffer).await;
            }
            fill(&self.buffer, &self.inner, self.limit).await?;
        }
        let mut kept = self.buffer.borrow_mut();
        let length = buffer.len().min(kept.len());
        buffer[..length].copy_from_slice(&kept[..length]);
        kept.advance(length);
        Ok(length)
    }

    async fn readable(&self) -> io::Result<()> {
        match self.buffered() {
            0 => self.inner.readable().await,
            _ => Ok(()),
        }
    }
}

/// Writes are not buffered.
impl<W: Write> Write for BufReader<W> {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.inner.write(data).await
    }

    async fn flush(&self) -> io::Result<()> {
        self.inner.flush().await
    }

    async fn finish(&self) -> io::Result<()> {
        self.inner.finish().await
    }
}

impl<R: fmt::Debug> fmt::Debug for BufReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufReader")
            .field("inner", &self.inner)
            .field("limit", &self.limit)
            .field("buffered", &self.buffered())
            .finish()
    }
}

/// The lines of a stream. See [`BufReader::lines`].
#[derive(Debug)]
pub struct Lines<'a, R> {
    reader: &'a BufReader<R>,
}

impl<R: Read> Lines<'_, R> {
    /// The next line; `None` at the end of the stream.
    ///
    /// # Cancellation
    ///
    /// As for [`BufReader::next_segment`].
    ///
    /// # Errors
    ///
    /// As for [`BufReader::next_line`].
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        self.reader.next_line().await
    }
}
