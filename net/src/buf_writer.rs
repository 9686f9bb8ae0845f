//! A writer that gathers small writes.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;

use pikake_traps::{Direction, ResourceBusy};

use crate::error::WriteAllError;
use crate::read_write::{Read, Write};

/// The number of bytes that a [`BufWriter`] gathers unless told otherwise.
const CAPACITY: usize = 8 * 1024;

/// Gathers small writes, and writes them to a stream when the buffer is full or flushed.
///
/// Buffered bytes are written by [`flush`](Write::flush) or [`finish`](Write::finish) alone: the
/// drop of the writer drops them. Reads are not buffered, so a [`BufReader`](crate::BufReader) may
/// be around the writer, or inside.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::net::{BufReader, BufWriter, MemoryStream, Write};
///
/// let (near, far) = MemoryStream::pair(100);
/// let writer = BufWriter::new(near);
/// writer.write_all(b"SET ").await?;
/// writer.write_all(b"hello\r\n").await?;
/// assert_eq!(writer.buffered(), 11);
/// writer.flush().await?;
/// assert_eq!(BufReader::new(far).next_line().await?.as_deref(), Some("SET hello"));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub struct BufWriter<W> {
    inner: W,
    capacity: usize,
    /// The bytes that the stream has not taken.
    pending: RefCell<Vec<u8>>,
    /// A call writes pending bytes.
    is_writing: Cell<bool>,
}

impl<W> BufWriter<W> {
    /// Creates a writer that gathers 8 KiB.
    pub fn new(inner: W) -> Self {
        Self::with_capacity(CAPACITY, inner)
    }

    /// Creates a writer that gathers this number of bytes.
    pub fn with_capacity(capacity: usize, inner: W) -> Self {
        Self { inner, capacity, pending: RefCell::default(), is_writing: Cell::new(false) }
    }

    /// The stream. Bytes that are written to it directly overtake the buffered ones.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// The number of bytes that the stream has not taken.
    pub fn buffered(&self) -> usize {
        self.pending.borrow().len()
    }

    /// The stream, and the bytes that it has not taken.
    pub fn into_parts(self) -> (W, Vec<u8>) {
        (self.inner, self.pending.into_inner())
    }
}

/// A call that writes pending bytes, which are here meanwhile. Its drop puts the rest back.
struct Writing<'a, W> {
    writer: &'a BufWriter<W>,
    pending: Vec<u8>,
    written: usize,
}

impl<'a, W> Writing<'a, W> {
    fn begin(writer: &'a BufWriter<W>) -> io::Result<Self> {
        match writer.is_writing.replace(true) {
            true => Err(ResourceBusy(Direction::Write).into()),
            false => Ok(Self { writer, pending: writer.pending.take(), written: 0 }),
        }
    }
}

impl<W> Drop for Writing<'_, W> {
    fn drop(&mut self) {
        self.writer.is_writing.set(false);
        self.pending.drain(..self.written);
        self.writer.pending.replace(std::mem::take(&mut self.pending));
    }
}

impl<W: Write> BufWriter<W> {
    /// Writes the pending bytes.
    async fn drain(&self) -> io::Result<()> {
        let mut writing = Writing::begin(self)?;
        while writing.written < writing.pending.len() {
            match self.inner.write(&writing.pending[writing.written..]).await {
                Ok(0) => return Err(WriteAllError::no_room(0).into()),
                Ok(length) => writing.written += length,
                Err(error) => {
                    writing.written += WriteAllError::written_in(&error);
                    // The count would be taken for one of the caller's bytes.
                    return Err(WriteAllError::without_count(error));
                }
            }
        }
        Ok(())
    }
}

impl<W: Write> Write for BufWriter<W> {
    /// Takes the data into the buffer. If there is no room, writes the buffered bytes before.
    ///
    /// # Cancellation
    ///
    /// An interruption point while the stream has no room for the buffered bytes. A write that is
    /// interrupted or dropped has taken nothing of the data, and keeps the buffered bytes.
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        if self.is_writing.get() {
            return Err(ResourceBusy(Direction::Write).into());
        }
        if self.buffered() + data.len() > self.capacity {
            self.drain().await?;
        }
        if data.len() >= self.capacity {
            return self.inner.write(data).await;
        }
        self.pending.borrow_mut().extend_from_slice(data);
        Ok(data.len())
    }

    async fn flush(&self) -> io::Result<()> {
        self.drain().await?;
        self.inner.flush().await
    }

    async fn finish(&self) -> io::Result<()> {
        self.drain().await?;
        self.inner.finish().await
    }
}

/// Reads are not buffered.
impl<R: Read> Read for BufWriter<R> {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).await
    }

    async fn read_buf(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.inner.read_buf(buffer).await
    }

    async fn readable(&self) -> io::Result<()> {
        self.inner.readable().await
    }
}

impl<W: fmt::Debug> fmt::Debug for BufWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufWriter")
            .field("inner", &self.inner)
            .field("capacity", &self.capacity)
            .field("buffered", &self.buffered())
            .finish()
    }
}
