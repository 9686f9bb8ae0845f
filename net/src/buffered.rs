//! Reading lines and other pieces whose length the peer decides.
//!
//! The reader buffers the bytes until a piece is whole, and removes them only then. So an
//! interruption loses nothing: the next call returns the piece from its beginning. A *limit* stops
//! a peer that never ends its line: the buffer exceeds it by one read at most.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;

use pikake_traps::{Direction, ResourceBusy};

use crate::codec::text_of;
use crate::error::ReadExactError;
use crate::read_write::{Read, Write, read_exact};

/// The default limit of a line or another piece that is read as a whole. Header lines and commands
/// of the usual protocols are far shorter.
pub const DEFAULT_READ_LIMIT: usize = 64 * 1024;

/// The size of one read. Larger buffers save few system calls, and each reader has one.
const CHUNK: usize = 8 * 1024;

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

/// Bytes that were read from a stream and not consumed: the range `used` of `memory`.
#[derive(Default)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    used: Range<usize>,
    /// A read is filling the buffer, which is moved into a [`Taken`].
    is_taken: bool,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.used.clone()]
    }

    pub(crate) fn consume(&mut self, length: usize) {
        self.used.start += length;
        debug_assert!(self.used.start <= self.used.end, "at most the buffered bytes are consumed");
        if self.used.is_empty() {
            self.used = 0..0;
            // Memory for a long piece is not kept for the reader's lifetime.
            if self.memory.len() > 2 * CHUNK {
                self.memory = Vec::new();
            }
        }
    }

    /// Makes room for a chunk behind the buffered bytes.
    fn room(&mut self) -> &mut [u8] {
        if self.used.start > 0 {
            self.memory.copy_within(self.used.clone(), 0);
            self.used = 0..self.used.len();
        }
        self.memory.resize(self.memory.len().max(self.used.end + CHUNK), 0);
        &mut self.memory[self.used.end..][..CHUNK]
    }
}

/// The buffer during a read. Its drop puts the buffer back.
struct Taken<'a> {
    slot: &'a RefCell<Buffer>,
    buffer: Buffer,
}

impl<'a> Taken<'a> {
    fn take(slot: &'a RefCell<Buffer>) -> io::Result<Self> {
        if slot.borrow().is_taken {
            return Err(ResourceBusy(Direction::Read).into());
        }
        let buffer = slot.replace(Buffer { is_taken: true, ..Buffer::default() });
        Ok(Self { slot, buffer })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slot.replace(std::mem::take(&mut self.buffer));
    }
}

/// Reads more bytes behind the buffered ones; 0 is the end of the stream. A call that is dropped or
/// interrupted changes nothing.
pub(crate) async fn fill(slot: &RefCell<Buffer>, from: &impl Read) -> io::Result<usize> {
    let mut taken = Taken::take(slot)?;
    let length = from.read(taken.buffer.room()).await?;
    taken.buffer.used.end += length;
    Ok(length)
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
/// while let Some(line) = lines.next().await? {
///     if line.is_empty() {
///         break;
///     }
///     println!("{line}");
/// }
/// # Ok(()) }
/// ```
pub struct BufReader<R> {
    inner: R,
    limit: usize,
    buffer: RefCell<Buffer>,
}

impl<R> BufReader<R> {
    /// Creates a reader with the [`DEFAULT_READ_LIMIT`].
    pub fn new(inner: R) -> Self {
        Self { inner, limit: DEFAULT_READ_LIMIT, buffer: RefCell::default() }
    }

    /// Sets the largest piece. The reader buffers at most this and 8 KiB.
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
        self.buffer.borrow().bytes().len()
    }

    /// The stream and the buffered bytes.
    pub fn into_parts(self) -> (R, Vec<u8>) {
        let rest = self.buffer.borrow().bytes().to_vec();
        (self.inner, rest)
    }
}

impl<R: Read> BufReader<R> {
    /// Reads up to and including a delimiter. At the end of the stream, returns the rest without
    /// the delimiter; `None` if there is no rest.
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
    /// assert_eq!(reader.read_until(b'\0').await?, Some(b"one\0".to_vec()));
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
    pub async fn read_until(&self, delimiter: u8) -> io::Result<Option<Vec<u8>>> {
        let length = self.find(delimiter).await?;
        Ok(self.take(length))
    }

    /// Consumes `length` bytes; `None` if that is zero.
    fn take(&self, length: usize) -> Option<Vec<u8>> {
        let mut buffer = self.buffer.borrow_mut();
        let piece = buffer.bytes()[..length].to_vec();
        buffer.consume(length);
        (length > 0).then_some(piece)
    }

    /// The length of the piece up to the delimiter, or to the end of the stream.
    async fn find(&self, delimiter: u8) -> io::Result<usize> {
        let mut searched = 0;
        loop {
            let found = {
                let buffer = self.buffer.borrow();
                let bytes = buffer.bytes();
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
                None if fill(&self.buffer, &self.inner).await? == 0 => return Ok(searched),
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
    /// let command = BufReader::new(far).read_line().await?;
    /// assert_eq!(command.as_deref(), Some("HELO example.org"));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// As for [`read_until`](Self::read_until).
    ///
    /// # Errors
    ///
    /// As for [`read_until`](Self::read_until); [`InvalidData`](io::ErrorKind::InvalidData) for a
    /// line that is not UTF-8, which is consumed.
    pub async fn read_line(&self) -> io::Result<Option<String>> {
        let Some(line) = self.read_until(b'\n').await? else { return Ok(None) };
        text_of(line.strip_suffix(b"\n").unwrap_or(&line)).map(Some)
    }

    /// The lines of the stream.
    pub fn lines(&self) -> Lines<'_, R> {
        Lines { reader: self }
    }

    /// Reads to the end of the stream.
    ///
    /// # Cancellation
    ///
    /// As for [`read_until`](Self::read_until).
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`] if the rest of the stream exceeds the limit; otherwise as for
    /// [`read_until`](Self::read_until).
    pub async fn read_to_end(&self) -> io::Result<Vec<u8>> {
        loop {
            if self.buffered() > self.limit {
                return Err(LimitExceeded { limit: self.limit }.into());
            }
            if fill(&self.buffer, &self.inner).await? == 0 {
                return Ok(self.take(self.buffered()).unwrap_or_default());
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
                let _taken = Taken::take(&self.buffer)?;
                return self.inner.read(buffer).await;
            }
            fill(&self.buffer, &self.inner).await?;
        }
        let mut kept = self.buffer.borrow_mut();
        let length = buffer.len().min(kept.bytes().len());
        buffer[..length].copy_from_slice(&kept.bytes()[..length]);
        kept.consume(length);
        Ok(length)
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
    /// As for [`BufReader::read_until`].
    ///
    /// # Errors
    ///
    /// As for [`BufReader::read_line`].
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        self.reader.read_line().await
    }
}
