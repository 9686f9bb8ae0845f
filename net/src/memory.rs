//! A stream in memory, between two tasks of one kernel.
//!
//! The stream behaves like a connection: unread bytes stop the writer, each direction ends
//! separately, and a dropped peer is an error. It needs no descriptor and no system call, for tests
//! of protocols and for layers that take a stream.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;

use pikake_traps::{WaitQueue, park};

use crate::read_write::{Read, Write};

/// One direction.
#[derive(Default)]
struct Channel {
    bytes: RefCell<VecDeque<u8>>,
    capacity: usize,
    /// The writer is gone or has finished.
    is_ended: Cell<bool>,
    is_reader_gone: Cell<bool>,
    readers: WaitQueue,
    writers: WaitQueue,
}

impl Channel {
    fn new(capacity: usize) -> Rc<Self> {
        Rc::new(Self { capacity, ..Self::default() })
    }

    fn end(&self) {
        self.is_ended.set(true);
        self.readers.wake(usize::MAX);
    }

    fn close_reader(&self) {
        self.is_reader_gone.set(true);
        self.writers.wake(usize::MAX);
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            let length = buffer.len().min(self.bytes.borrow().len());
            if length > 0 {
                for (to, byte) in buffer.iter_mut().zip(self.bytes.borrow_mut().drain(..length)) {
                    *to = byte;
                }
                self.writers.wake(usize::MAX);
                return Ok(length);
            }
            if self.is_ended.get() {
                break;
            }
            park(&self.readers).await?;
        }
        Ok(0)
    }

    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        loop {
            if self.is_ended.get() || self.is_reader_gone.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let room = self.capacity - self.bytes.borrow().len();
            if room > 0 || data.is_empty() {
                let length = room.min(data.len());
                self.bytes.borrow_mut().extend(&data[..length]);
                self.readers.wake(usize::MAX);
                return Ok(length);
            }
            park(&self.writers).await?;
        }
    }
}

/// One end of a connection in memory.
///
/// # Examples
///
/// ```
/// use pikake::net::{MemoryStream, Read, Write};
///
/// # async fn example() -> std::io::Result<()> {
/// let (one, other) = MemoryStream::pair(1024);
/// one.write_all(b"hello").await?;
/// let mut buffer = [0; 16];
/// assert_eq!(other.read(&mut buffer).await?, 5);
/// # Ok(()) }
/// ```
#[doc(alias("DuplexStream", "SimplexStream", "duplex", "simplex"))]
pub struct MemoryStream {
    incoming: Rc<Channel>,
    outgoing: Rc<Channel>,
}

impl MemoryStream {
    /// Returns two streams that are connected to each other. Each direction buffers up to
    /// `capacity` bytes.
    ///
    /// # Panics
    ///
    /// If `capacity` is zero.
    #[track_caller]
    pub fn pair(capacity: usize) -> (Self, Self) {
        assert!(capacity > 0, "a stream must have room for at least one byte");
        let (one, other) = (Channel::new(capacity), Channel::new(capacity));
        let first = Self { incoming: one.clone(), outgoing: other.clone() };
        (first, Self { incoming: other, outgoing: one })
    }
}

impl Read for MemoryStream {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer).await
    }
}

impl Write for MemoryStream {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.outgoing.write(data).await
    }

    async fn finish(&self) -> io::Result<()> {
        self.outgoing.end();
        Ok(())
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        self.outgoing.end();
        self.incoming.close_reader();
    }
}

impl fmt::Debug for MemoryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStream")
            .field("to_read", &self.incoming.bytes.borrow().len())
            .field("to_be_read", &self.outgoing.bytes.borrow().len())
            .finish_non_exhaustive()
    }
}
