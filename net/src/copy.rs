//! Copying between streams.
//!
//! A copy that fails returns the bytes that it has read and not written, and the counts, so a
//! caller can continue.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use crate::chunk::{give_memory, take_memory};
use crate::error::WriteAllError;
use crate::read_write::{Read, Write};

/// The progress of one direction.
#[derive(Default)]
struct Progress {
    copied: u64,
    /// Bytes that were read; those from `begin` on are not written yet.
    held: Vec<u8>,
    begin: usize,
}

impl Progress {
    fn wrote(&mut self, length: usize) {
        self.copied += length as u64;
        self.begin += length;
    }

    /// Copies until the end of the stream.
    async fn run(&mut self, from: &impl Read, to: &impl Write) -> io::Result<()> {
        loop {
            from.readable().await?;
            self.held = take_memory();
            if from.read_buf(&mut self.held).await? == 0 {
                return Ok(());
            }
            while self.begin < self.held.len() {
                match to.write(&self.held[self.begin..]).await {
                    Ok(0) => return Err(WriteAllError::no_room(0).into()),
                    Ok(more) => self.wrote(more),
                    Err(error) => {
                        self.wrote(WriteAllError::written_in(&error));
                        return Err(error);
                    }
                }
            }
            self.begin = 0;
            give_memory(std::mem::take(&mut self.held));
        }
    }

    fn unwritten(mut self) -> Vec<u8> {
        self.held.split_off(self.begin)
    }
}

/// Copies from one stream to another until the first one ends, and returns the number of bytes.
///
/// The second stream is flushed and left open.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::net::{MemoryStream, Read, Write, copy};
/// use pikake::spawn;
///
/// let (client, server) = MemoryStream::pair(100);
/// spawn(async move { copy(&server, &server).await }).detach(); // an echo server
/// client.write_all(b"hello").await?;
/// let mut buffer = [0; 5];
/// assert_eq!(client.read(&mut buffer).await?, 5);
/// assert_eq!(&buffer, b"hello");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. The error of an interruption has the number of bytes copied and the bytes
/// that were read and not written. A drop loses both.
///
/// # Errors
///
/// An error of either stream; the interruption.
#[doc(alias = "copy_buf")]
pub async fn copy<R: Read, W: Write>(from: R, to: W) -> Result<u64, CopyError> {
    let mut progress = Progress::default();
    let done = async {
        progress.run(&from, &to).await?;
        to.flush().await
    };
    match done.await {
        Ok(()) => Ok(progress.copied),
        Err(source) => {
            Err(CopyError { copied: progress.copied, unwritten: progress.unwritten(), source })
        }
    }
}

/// [`copy`] ended before the stream did.
#[derive(Debug)]
#[non_exhaustive]
pub struct CopyError {
    /// The number of bytes written.
    pub copied: u64,
    /// The bytes that were read and not written.
    pub unwritten: Vec<u8>,
    /// The cause: a stream's error, or an interruption.
    pub source: io::Error,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copied, unwritten, source } = self;
        write!(f, "after {copied} bytes were copied, and {} more read: {source}", unwritten.len())
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<CopyError> for io::Error {
    fn from(error: CopyError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// The numbers of bytes that [`copy_bidirectional`] has copied.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Copied {
    /// From the first stream to the second, in bytes.
    pub to_second: u64,
    /// From the second stream to the first, in bytes.
    pub to_first: u64,
}

/// Copies between two streams, both ways, until both have ended.
///
/// The end of one stream ends the same direction of the other stream. The opposite direction
/// continues.
///
/// # Examples
///
/// ```no_run
/// use pikake::net::{TcpStream, copy_bidirectional};
///
/// # async fn example(client: TcpStream) -> std::io::Result<()> {
/// let server = TcpStream::connect("backend.example:80").await?;
/// let copied = copy_bidirectional(&client, &server).await?;
/// println!("{} bytes of requests, {} of answers", copied.to_second, copied.to_first);
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// An interruption point. The error of an interruption has, for each direction, the number of bytes
/// copied and the bytes that were read and not written. A drop loses both.
///
/// # Errors
///
/// The first error of either stream; the interruption.
pub async fn copy_bidirectional<A, B>(first: A, second: B) -> Result<Copied, CopyBothError>
where
    A: Read + Write,
    B: Read + Write,
{
    let (mut forward, mut back) = (Progress::default(), Progress::default());
    let done = {
        let mut to_second = pin!(async {
            forward.run(&first, &second).await?;
            second.finish().await
        });
        let mut to_first = pin!(async {
            back.run(&second, &first).await?;
            first.finish().await
        });
        let (mut is_forward_done, mut is_back_done) = (false, false);
        poll_fn(|cx| {
            let mut failed = None;
            // An interruption concerns both directions, so both are polled before it is returned.
            if !is_forward_done {
                if let Poll::Ready(done) = to_second.as_mut().poll(cx) {
                    is_forward_done = true;
                    failed = done.err();
                }
            }
            if !is_back_done {
                if let Poll::Ready(done) = to_first.as_mut().poll(cx) {
                    is_back_done = true;
                    failed = failed.take().or(done.err());
                }
            }
            match failed {
                Some(error) => Poll::Ready(Err(error)),
                None if is_forward_done && is_back_done => Poll::Ready(Ok(())),
                None => Poll::Pending,
            }
        })
        .await
    };
    let copied = Copied { to_second: forward.copied, to_first: back.copied };
    match done {
        Ok(()) => Ok(copied),
        Err(source) => {
            let [for_second, for_first] = [forward, back].map(Progress::unwritten);
            Err(CopyBothError { copied, for_second, for_first, source })
        }
    }
}

/// [`copy_bidirectional`] ended before both streams did.
#[derive(Debug)]
#[non_exhaustive]
pub struct CopyBothError {
    /// The numbers of bytes written.
    pub copied: Copied,
    /// The bytes that were read from the first stream and not written to the second.
    pub for_second: Vec<u8>,
    /// The bytes that were read from the second stream and not written to the first.
    pub for_first: Vec<u8>,
    /// The cause: a stream's error, or an interruption.
    pub source: io::Error,
}

impl fmt::Display for CopyBothError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Copied { to_second, to_first } = self.copied;
        let source = &self.source;
        write!(
            f,
            "after {to_second} bytes were copied to the second stream and {to_first} to the first: \
             {source}"
        )
    }
}

impl std::error::Error for CopyBothError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<CopyBothError> for io::Error {
    fn from(error: CopyBothError) -> Self {
        Self::new(error.source.kind(), error)
    }
}
