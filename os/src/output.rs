//! Runs a program to its end: reads its streams, waits for its end, and ends it after an error.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Output};
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_net::PipeReader;
use pikake_traps::{shield, timeout_after};

use crate::child::Child;
use crate::command::Command;

/// The size of one read: the capacity of a pipe on Linux.
const CHUNK: usize = 64 * 1024;

/// How long a killed child may take to end. A child that the system delays (as by an unresponsive
/// disk) is left to the reaper thread.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// The settings of a run.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) grace: Duration,
    pub(crate) limit: usize,
}

/// A program could not be run to its end. Has the cause and the output so far.
///
/// As an [`io::Error`] it has the kind of its source, and
/// [`interruption`](pikake_net::interruption) finds an interruption in it.
///
/// # Examples
///
/// ```no_run
/// use pikake::process::Command;
/// use pikake::timed;
/// use std::time::Duration;
///
/// # async fn example() {
/// let mut command = Command::new("slow");
/// let done = timed(Duration::from_secs(5), command.output()).await;
/// if let Some(Err(error)) = done.output {
///     println!("{error}; until then: {}", String::from_utf8_lossy(&error.stdout));
/// }
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct CommandError {
    /// The program.
    pub program: String,
    /// The program's standard output so far.
    pub stdout: Vec<u8>,
    /// The program's standard error so far.
    pub stderr: Vec<u8>,
    /// The exit status, if the program was started and has ended.
    pub status: Option<ExitStatus>,
    /// The cause: the system's error, an interruption, or [`TooMuchOutput`].
    pub source: io::Error,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{}: {} ({status})", self.program, self.source),
            // The error of a program that was not started contains its name.
            None => self.source.fmt(f),
        }
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<CommandError> for io::Error {
    fn from(error: CommandError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// A program wrote more than its command's limit. The payload of an [`io::Error`] of the kind
/// [`InvalidData`](io::ErrorKind::InvalidData).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TooMuchOutput {
    /// The limit, in bytes per stream.
    pub limit: usize,
}

impl fmt::Display for TooMuchOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program wrote more than {} bytes: raise the command's limit", self.limit)
    }
}

impl Error for TooMuchOutput {}

/// A stream of a child, and the bytes that were read from it.
struct Stream {
    pipe: Option<PipeReader>,
    read: RefCell<Vec<u8>>,
    limit: usize,
}

impl Stream {
    fn new(pipe: Option<PipeReader>, limit: usize) -> Self {
        Self { pipe, read: RefCell::default(), limit }
    }

    /// Keeps bytes up to the limit; `false` if there were more.
    fn keep(&self, bytes: &[u8]) -> bool {
        let mut read = self.read.borrow_mut();
        let room = self.limit - read.len();
        read.extend(&bytes[..bytes.len().min(room)]);
        bytes.len() <= room
    }

    /// Reads to the end.
    async fn drain(&self, must_keep: bool) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        loop {
            match pipe.read(&mut chunk).await? {
                0 => return Ok(()),
                length if !self.keep(&chunk[..length]) && must_keep => {
                    let too_much = TooMuchOutput { limit: self.limit };
                    return Err(io::Error::new(io::ErrorKind::InvalidData, too_much));
                }
                _ => {}
            }
        }
    }

    /// Reads the bytes that are available.
    fn drain_now(&self) {
        let Some(pipe) = &self.pipe else { return };
        let mut chunk = vec![0; CHUNK];
        // Bytes beyond the limit need not be read.
        while let Ok(length @ 1..) = pipe.try_read(&mut chunk) {
            if !self.keep(&chunk[..length]) {
                break;
            }
        }
    }
}

/// Runs a command to its end.
pub(crate) async fn run(
    command: &mut Command,
    place: &'static Location<'static>,
) -> Result<Output, CommandError> {
    let Policy { grace, limit } = command.policy();
    let program = command.program();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => {
            let (stdout, stderr) = (Vec::new(), Vec::new());
            return Err(CommandError { program, stdout, stderr, status: None, source });
        }
    };
    child.kill_on_drop(true);
    let stdout = Stream::new(child.stdout.take(), limit);
    let stderr = Stream::new(child.stderr.take(), limit);
    child.stdin = None;
    let result = all_of(stdout.drain(true), stderr.drain(true), child.wait_at(place)).await;
    let result = match result {
        Ok(status) => Ok(status),
        Err(source) => {
            // Further interruptions must not cut the child's end short.
            shield(end(&mut child, &stdout, &stderr, grace)).await;
            // `end` has waited already, so this returns the stored status.
            Err((source, child.try_wait().unwrap_or_default()))
        }
    };
    let (stdout, stderr) = (stdout.read.into_inner(), stderr.read.into_inner());
    match result {
        Ok(status) => Ok(Output { status, stdout, stderr }),
        Err((source, status)) => Err(CommandError { program, stdout, stderr, status, source }),
    }
}

/// Ends a child, and reads its output meanwhile.
async fn end(child: &mut Child, stdout: &Stream, stderr: &Stream, grace: Duration) {
    let reading = all_of(stdout.drain(false), stderr.drain(false), async { Ok(()) });
    let mut reading = pin!(async {
        // The caller returns the first error.
        let _ = reading.await;
    });
    let mut stopping = pin!(child.stop(grace));
    let mut is_read = false;
    let stopped = poll_fn(|cx| {
        if !is_read {
            is_read = reading.as_mut().poll(cx).is_ready();
        }
        stopping.as_mut().poll(cx)
    });
    // After a failed signal or wait there is nothing more to do.
    let _ = timeout_after(grace.saturating_add(KILL_PATIENCE), stopped).await;
    stdout.drain_now();
    stderr.drain_now();
}

/// Waits for all three, or for the first that fails.
async fn all_of<T>(
    one: impl Future<Output = io::Result<()>>,
    two: impl Future<Output = io::Result<()>>,
    three: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let (mut one, mut two, mut three) = (pin!(one), pin!(two), pin!(three));
    let (mut first, mut second, mut third) = (None, None, None);
    poll_fn(|cx| {
        let is_done = [
            step(one.as_mut(), &mut first, cx)?,
            step(two.as_mut(), &mut second, cx)?,
            step(three.as_mut(), &mut third, cx)?,
        ];
        match third.take_if(|_| is_done == [true; 3]) {
            Some(value) => Poll::Ready(Ok(value)),
            None => Poll::Pending,
        }
    })
    .await
}

/// Polls a future that is not done yet. Returns whether it is done.
fn step<T>(
    future: Pin<&mut impl Future<Output = io::Result<T>>>,
    value: &mut Option<T>,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    if value.is_none() {
        if let Poll::Ready(done) = future.poll(cx) {
            *value = Some(done?);
        }
    }
    Ok(value.is_some())
}
