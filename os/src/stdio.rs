//! What the process was given to read from and to write to.
//!
//! These three streams are not the process's own: a shell, a pipeline, a child may have the same
//! ones, and making them non-blocking here would make them so for everybody. Opening them anew is not
//! possible for all (sockets) and not allowed for some (another user's terminal). So each is read or
//! written in a thread of its own, which blocks; it is started when it is first needed and does not
//! keep the process from ending.
//!
//! ```no_run
//! use pikake_net::BufReader;
//! use pikake_os::stdio::{stdin, stdout};
//!
//! # async fn example() -> std::io::Result<()> {
//! let reader = BufReader::new(stdin());
//! let mut lines = reader.lines();
//! while let Some(line) = lines.next().await? {
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
use pikake_traps::system;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::pool::awaited;

/// What is read at once at most.
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
        // Another thread may have been faster; then this one ends.
        Ok(self.0.get_or_init(|| thread))
    }
}

static IN: Stream = Stream(OnceLock::new());
static OUT: Stream = Stream(OnceLock::new());
static ERR: Stream = Stream(OnceLock::new());

/// What was read from standard input and not taken.
struct Input {
    bytes: Vec<u8>,
    /// The end comes after them. A terminal may go on after its end, so it is told once each time.
    has_ended: bool,
}

static INPUT: Mutex<Input> = Mutex::new(Input { bytes: Vec::new(), has_ended: false });

fn input() -> MutexGuard<'static, Input> {
    // Whole after each statement.
    INPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Input {
    /// Gives what is there; `None` if nothing is, not even the end.
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

/// Blocks until a stream that somebody else has made non-blocking is ready.
fn wait_for(stream: BorrowedFd<'_>, flags: PollFlags) {
    // An error shows at the next attempt.
    let _ = poll(&mut [PollFd::from_borrowed_fd(stream, flags)], None);
}

/// Standard input. Everybody who reads from it takes from the same stream.
///
/// What [`std::io::stdin`] has buffered is not seen here: use one or the other.
pub fn stdin() -> Stdin {
    Stdin(())
}

/// Standard output, written in order.
///
/// What [`println!`] writes goes there by itself, and may come between two writes.
pub fn stdout() -> Stdout {
    Stdout(())
}

/// Standard error, written in order.
pub fn stderr() -> Stderr {
    Stderr(())
}

/// The process's standard input, given by [`stdin`].
#[derive(Clone, Copy, Debug)]
pub struct Stdin(());

impl Stdin {
    /// Reads what there is, waiting until there is something. 0 is the end (or of no room in the
    /// buffer).
    ///
    /// # Cancellation
    ///
    /// An interruption point. Dropped or interrupted, it has taken no bytes. Its thread reads on:
    /// what comes next is kept for the next read of this process, and no other process gets it.
    ///
    /// # Errors
    ///
    /// The system's; the interruption; [`Unsupported`](io::ErrorKind::Unsupported), in a simulation.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        async move {
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
        }
    }
}

/// Reads, unless something is there: a read that was given up may have found it.
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

/// Writes all of it, or so much until there was an error.
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

/// The error of a write that its thread goes on with has all bytes taken.
async fn write_all(
    stream: &'static Stream,
    descriptor: fn() -> BorrowedFd<'static>,
    data: &[u8],
    place: &'static Location<'static>,
) -> Result<(), WriteAllError> {
    let refused = |error| WriteAllError::new(0, error);
    let goes_on = Rc::new(Cell::new(false));
    let note = goes_on.clone();
    let (length, data) = (data.len(), data.to_vec());
    let call = stream.thread().map_err(refused)?.call(move |()| Ok(write(descriptor(), &data)));
    match awaited(call.on_cancel(move || note.set(true)).awaited_at(place)).await {
        Ok(written) => written,
        Err(error) => Err(WriteAllError::new(if goes_on.get() { length } else { 0 }, error)),
    }
}

macro_rules! written {
    ($($(#[$doc:meta])* $type:ident: $stream:ident, $descriptor:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $type(());

        impl $type {
            /// Writes all of the data, in one piece, after what others have asked to be written
            /// before.
            ///
            /// # Cancellation
            ///
            /// An interruption point. Interrupted, the error says how many bytes were taken: none if
            /// others were still before it; else all, which its thread goes on to write, and
            /// whether it can nobody is told. Dropped, nobody knows which of the two it was.
            ///
            /// # Errors
            ///
            /// The system's, as [`BrokenPipe`](io::ErrorKind::BrokenPipe) if nobody reads any more,
            /// with the number of bytes that were written; the interruption;
            /// [`Unsupported`](io::ErrorKind::Unsupported), in a simulation.
            ///
            /// # Panics
            ///
            /// When polled outside a task of a kernel.
            #[track_caller]
            pub fn write_all(
                &self,
                data: &[u8],
            ) -> impl Future<Output = Result<(), WriteAllError>> {
                write_all(&$stream, || rustix::stdio::$descriptor(), data, Location::caller())
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

            /// As `flush`, which has nothing to do: closing the stream would be for all that use it.
            async fn finish(&self) -> io::Result<()> {
                Ok(())
            }
        }
    )*};
}

written! {
    /// The process's standard output, given by [`stdout`].
    Stdout: OUT, stdout;
    /// The process's standard error, given by [`stderr`].
    Stderr: ERR, stderr;
}
