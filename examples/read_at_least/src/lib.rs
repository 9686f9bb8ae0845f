//! A trap of one's own: it waits for a socket or a moment, whichever comes first.
//!
//! [`read_at_least`] is the call for programs, [`ReadAtLeast`] the trap behind it. The crate uses
//! what `pikake` publishes, and nothing else. `docs/primitive.md` explains the code.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;

use pikake::net::{TcpStream, UnixStream};
use pikake::time::Deadline;
use pikake::traps::{
    About, Attempt, Entry, Outcome, Progress, SeenThing, SocketId, Trap, TrapContext, TrapHandler,
    TrapKind, TrapName, WaitPlace, kernel_trap_at,
};

// ANCHOR: call
/// Reads until the buffer has at least `min` bytes, the stream ends, or the deadline comes. Returns
/// the number of bytes read, which are at the beginning of the buffer.
///
/// Fewer than `min` bytes mean that the deadline has come, or that the stream has ended; at the end
/// the next read returns 0. More than `min` bytes are read if they are there. Bytes that the
/// kernel knows of when the deadline comes are read as well. If the deadline has come already, the
/// call reads what is there, and does not wait. With [`Deadline::NEVER`] it waits for the stream
/// alone. A `min` of zero reads nothing.
///
/// # Examples
///
/// A server that answers a batch of eight bytes, or what has come within 20 ms:
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::{TcpListener, TcpStream};
/// use pikake::time::deadline_after;
/// use pikake_read_at_least::read_at_least;
/// use std::time::Duration;
///
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let client = TcpStream::connect(listener.local_addr()?).await?;
/// # let (server, _) = listener.accept().await?;
/// client.write_all(b"hello").await?;
/// let mut buffer = [0; 64];
/// let deadline = deadline_after(Duration::from_millis(20));
/// let length = read_at_least(&server, &mut buffer, 8, deadline).await?;
/// assert_eq!(&buffer[..length], b"hello"); // after 20 ms
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point while fewer than `min` bytes are there. The error of an interruption has
/// the number of bytes read; a drop loses it. An interrupted or dropped call waits nowhere.
///
/// # Errors
///
/// The interruption, the system's error, [`ResourceBusy`](pikake::traps::ResourceBusy) if another
/// task waits to read, and [`Closed`](pikake::traps::Closed); each with the number of bytes read.
///
/// # Panics
///
/// If `min` is greater than the buffer. If polled outside a task of the stream's kernel.
#[track_caller]
pub fn read_at_least(
    stream: &impl Stream,
    buffer: &mut [u8],
    min: usize,
    deadline: impl Into<Deadline>,
) -> impl Future<Output = Result<usize, ReadAtLeastError>> {
    let trap = ReadAtLeast::new(stream.socket_id(), buffer, min, deadline.into());
    let mut wait = kernel_trap_at(trap, Location::caller());
    async move {
        match (&mut wait).await {
            Ok(read) => Ok(read),
            Err(source) => Err(ReadAtLeastError { read: wait.trap().read, source }),
        }
    }
}
// ANCHOR_END: call

/// A stream that [`read_at_least`] can read.
pub trait Stream {
    /// The number by which the kernel knows the stream's socket.
    fn socket_id(&self) -> SocketId;
}

impl Stream for TcpStream {
    fn socket_id(&self) -> SocketId {
        self.socket_id()
    }
}

impl Stream for UnixStream {
    fn socket_id(&self) -> SocketId {
        self.socket_id()
    }
}

// ANCHOR: trap
/// The trap of [`read_at_least`]: a rule for two places, the socket and the moment.
#[derive(Debug)]
pub struct ReadAtLeast<'a> {
    socket: SocketId,
    buffer: &'a mut [u8],
    /// The number of bytes that are in the buffer.
    read: usize,
    min: usize,
    deadline: Deadline,
}
// ANCHOR_END: trap

impl<'a> ReadAtLeast<'a> {
    /// The trap that reads at least `min` bytes of a stream until the deadline.
    ///
    /// # Panics
    ///
    /// If `min` is greater than the buffer.
    #[track_caller]
    pub fn new(socket: SocketId, buffer: &'a mut [u8], min: usize, deadline: Deadline) -> Self {
        assert!(
            min <= buffer.len(),
            "a buffer of {} bytes has no room for the least number of bytes, {min}",
            buffer.len()
        );
        Self { socket, buffer, read: 0, min, deadline }
    }

    // ANCHOR: places
    /// The first place: the socket, with the rest of the buffer.
    fn socket<'b>(&'b mut self, outcome: &'b mut Outcome) -> WaitPlace<'b> {
        WaitPlace::Socket(self.socket, Attempt::Read(&mut self.buffer[self.read..]), outcome)
    }

    /// The second place: the moment.
    fn moment(&self) -> WaitPlace<'static> {
        WaitPlace::Moment(self.deadline.ticks())
    }
    // ANCHOR_END: places

    // ANCHOR: read
    /// Reads until the bytes are enough, the stream ends, or the socket has no more.
    fn read(&mut self, entry: &mut Entry, cx: &TrapContext<'_>) -> Progress<io::Result<usize>> {
        while self.read < self.min {
            let mut outcome = Outcome::default();
            let place = self.socket(&mut outcome);
            let progress = match entry.key() {
                Some(_) => cx.collect(entry, place),
                None => cx.park(entry, place),
            };
            match progress.map(|()| outcome.take()) {
                Progress::Answered(Ok(0)) => break,
                Progress::Answered(Ok(more)) => self.read += more,
                progress => return progress,
            }
        }
        Progress::Answered(Ok(self.read))
    }
    // ANCHOR_END: read
}

// ANCHOR: rules
static NAME: TrapName = TrapName::new("read_at_least");

impl Trap for ReadAtLeast<'_> {
    type Answer = io::Result<usize>;
    type Entries = [Entry; 2];

    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    fn begin(
        &mut self,
        [socket, moment]: &mut [Entry; 2],
        cx: &TrapContext<'_>,
    ) -> Progress<Self::Answer> {
        if self.min == 0 {
            return cx.answer(Ok(0));
        }
        match self.read(socket, cx) {
            Progress::Waits if self.deadline.is_due(cx.now()) => cx.answer(Ok(self.read)),
            Progress::Waits => cx.park(moment, self.moment()).map(|()| Ok(self.read)),
            progress => progress,
        }
    }

    fn collect(
        &mut self,
        [socket, moment]: &mut [Entry; 2],
        cx: &TrapContext<'_>,
    ) -> Progress<Self::Answer> {
        match self.read(socket, cx) {
            Progress::Waits => cx.collect(moment, self.moment()).map(|()| Ok(self.read)),
            progress => progress,
        }
    }

    fn leave(&mut self, [socket, moment]: &mut [Entry; 2], kernel: &dyn TrapHandler) {
        socket.leave(kernel, self.socket(&mut Outcome::default()));
        moment.leave(kernel, self.moment());
    }

    fn about(&self) -> Option<About> {
        let text = format!("{} of {} bytes from a socket", self.read, self.min);
        Some(About::new(text).of(SeenThing::Socket(self.socket)))
    }
}
// ANCHOR_END: rules

// ANCHOR: error
/// [`read_at_least`] ended by an error.
///
/// As an [`io::Error`] it has the kind of its source.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadAtLeastError {
    /// The number of bytes read; they are at the beginning of the buffer.
    pub read: usize,
    /// The cause: the system's error, or an interruption.
    pub source: io::Error,
}
// ANCHOR_END: error

impl fmt::Display for ReadAtLeastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} bytes were read: {}", self.read, self.source)
    }
}

impl Error for ReadAtLeastError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<ReadAtLeastError> for io::Error {
    fn from(error: ReadAtLeastError) -> Self {
        Self::new(error.source.kind(), error)
    }
}
