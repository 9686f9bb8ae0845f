//! Standard input, output and error.
//!
//! | for | use |
//! | --- | --- |
//! | lines of standard input | a [`BufReader`](pikake_net::BufReader) on [`stdin`] |
//! | output that waits until it is written | `write_all` of [`stdout`] or [`stderr`] |
//!
//! Other processes share these three streams (a shell, a pipeline, a child), so making them
//! non-blocking would affect these processes. Reopening is impossible for sockets, and not allowed
//! for another user's terminal. So each stream has a thread that reads or writes and blocks. It
//! starts at the first use and does not keep the process from ending.
//!
//! ```no_run
//! use pikake::net::BufReader;
//! use pikake::stdio::{stdin, stdout};
//!
//! # async fn example() -> std::io::Result<()> {
//! let reader = BufReader::new(stdin());
//! let mut lines = reader.lines();
//! while let Some(line) = lines.next_line().await? {
//!     stdout().write_all(format!("you said {line}\n").as_bytes()).await?;
//! }
//! # Ok(()) }
//! ```

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::mem;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pikake_net::{Read, Write, WriteAllError};
use pikake_task::ThreadProxy;
use pikake_traps::{in_kernel, system};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::pool::awaited;

/// The size of one read.
const CHUNK: usize = 8 * 1024;

/// The thread of one stream.
struct Stream(OnceLock<ThreadProxy<()>>);

impl Stream {
    fn thread(&self) -> io::Result<&ThreadProxy<()>> {
        system()?;
        if let Some(thread) = self.0.get() {
            return Ok(thread);
        }
        let thread = ThreadProxy::new(())?;
        // If another caller was faster, this thread ends.
        Ok(self.0.get_or_init(|| thread))
    }
}

static IN: Stream = Stream(OnceLock::new());
static OUT: Stream = Stream(OnceLock::new());
static ERR: Stream = Stream(OnceLock::new());

/// The bytes that were read from standard input and not delivered.
struct Input {
    bytes: Vec<u8>,
    /// The stream ended after the bytes. A terminal may continue after its end, so each end is
    /// reported once.
    has_ended: bool,
}

static INPUT: Mutex<Input> = Mutex::new(Input { bytes: Vec::new(), has_ended: false });

fn input() -> MutexGuard<'static, Input> {
    // Each statement leaves the state consistent.
    INPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Input {
    /// Takes bytes, or the end as 0; `None` if there is neither.
    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let length = buffer.len().min(self.bytes.len());
        buffer[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes.drain(..length);
        match length {
            0 => mem::take(&mut self.has_ended).then_some(0),
            length => Some(length),
        }
    }
}

/// Blocks until a stream is ready, if another process has made it non-blocking.
fn wait_for(stream: BorrowedFd<'_>, flags: PollFlags) {
    // An error shows at the next attempt.
    let _ = poll(&mut [PollFd::from_borrowed_fd(stream, flags)], None);
}

/// Standard input. All readers of the process share the stream.
///
/// Bytes in the buffer of [`std::io::stdin`] are missing here: use one or the other.
pub fn stdin() -> Stdin {
    Stdin(())
}

/// Standard output, written in order.
///
/// Output of [`println!`] is written independently, and may appear between two writes.
pub fn stdout() -> Stdout {
    Stdout(())
}

/// Standard error, written in order.
pub fn stderr() -> Stderr {
    Stderr(())
}

/// The process's standard input, returned by [`stdin`].
#[derive(Clone, Copy, Debug)]
pub struct Stdin(());

impl Stdin {
    /// Reads some bytes, waiting until there are any. Returns 0 at the end of the stream (or for an
    /// empty buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point. A read that is dropped or interrupted takes no bytes. Its thread
    /// continues to read: the next bytes are kept for the next read of this process, and no other
    /// process gets them.
    ///
    /// # Errors
    ///
    /// The system's error; the interruption; [`Unsupported`](io::ErrorKind::Unsupported), in a
    /// simulation.
    ///
    /// # Panics
    ///
    /// If polled outside a task of a kernel.
    #[track_caller]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        in_kernel(async move {
            let thread = IN.thread()?;
            if buffer.is_empty() {
                return Ok(0);
            }
            loop {
                if let Some(taken) = input().take(buffer) {
                    return Ok(taken);
                }
                awaited(thread.call(|()| fill()).awaited_at(place)).await?;
            }
        })
    }
}

/// Reads, unless there are bytes from an abandoned read.
fn fill() -> io::Result<()> {
    {
        let input = input();
        if !input.bytes.is_empty() || input.has_ended {
            return Ok(());
        }
    }
    let mut chunk = [0; CHUNK];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
            Ok(length) => {
                let mut input = input();
                input.bytes.extend(&chunk[..length]);
                input.has_ended = length == 0;
                return Ok(());
            }
            Err(Errno::AGAIN) => wait_for(rustix::stdio::stdin(), PollFlags::IN),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Read for Stdin {
    #[track_caller]
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        Self::read(self, buffer)
    }
}

/// Writes all data, or up to an error.
fn write(stream: BorrowedFd<'_>, data: &[u8]) -> Result<(), WriteAllError> {
    let mut written = 0;
    while written < data.len() {
        match rustix::io::write(stream, &data[written..]) {
            Ok(0) => return Err(WriteAllError::new(written, io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::OUT),
            Err(Errno::INTR) => {}
            Err(error) => return Err(WriteAllError::new(written, error.into())),
        }
    }
    Ok(())
}

/// Writes all data on the stream's thread. If an interrupted write continues there, its error
/// counts all bytes as written.
async fn write_all(
    stream: &'static Stream,
    descriptor: fn() -> BorrowedFd<'static>,
    data: &[u8],
    place: &'static Location<'static>,
) -> Result<(), WriteAllError> {
    let refused = |error| WriteAllError::new(0, error);
    let continues = Rc::new(Cell::new(false));
    let note = continues.clone();
    let (length, data) = (data.len(), data.to_vec());
    let call = stream.thread().map_err(refused)?.call(move |()| Ok(write(descriptor(), &data)));
    match awaited(call.on_cancel(move || note.set(true)).awaited_at(place)).await {
        Ok(written) => written,
        Err(error) => Err(WriteAllError::new(if continues.get() { length } else { 0 }, error)),
    }
}

macro_rules! written {
    ($($(#[$doc:meta])* $type:ident: $stream:ident, $descriptor:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $type(());

        impl $type {
            /// Writes all of the data, in one piece, after all earlier writes.
            ///
            /// # Cancellation
            ///
            /// An interruption point. The error of an interruption has the number of bytes taken:
            /// zero if the write had not begun, otherwise all. The thread then continues the write,
            /// and its result is discarded. A drop loses the number.
            ///
            /// # Errors
            ///
            /// The system's error, as [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the reader is
            /// gone, with the number of bytes that were written; the interruption;
            /// [`Unsupported`](io::ErrorKind::Unsupported), in a simulation.
            ///
            /// # Panics
            ///
            /// If polled outside a task of a kernel.
            #[track_caller]
            pub fn write_all(
                &self,
                data: &[u8],
            ) -> impl Future<Output = Result<(), WriteAllError>> {
                let place = Location::caller();
                in_kernel(write_all(&$stream, || rustix::stdio::$descriptor(), data, place))
            }
        }

        impl Write for $type {
            #[track_caller]
            fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
                let written = Self::write_all(self, data);
                async move {
                    written.await?;
                    Ok(data.len())
                }
            }

            #[track_caller]
            fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
                Self::write_all(self, data)
            }

            /// Does nothing, as `flush`: closing the stream would affect its other users.
            async fn finish(&self) -> io::Result<()> {
                Ok(())
            }
        }
    )*};
}

written! {
    /// The process's standard output, returned by [`stdout`].
    Stdout: OUT, stdout;
    /// The process's standard error, returned by [`stderr`].
    Stderr: ERR, stderr;
}
