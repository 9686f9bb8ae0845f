//! What can go wrong, with what is needed to go on.
//!
//! Operations that do one thing report an [`io::Error`]. Those that do several keep what they
//! know: how many bytes have moved, which addresses were tried. Each of them turns into an
//! [`io::Error`] of the same kind by `?`, and stays inside it as the payload.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use pikake_traps::{Closed, Interrupted, ResourceBusy};

use crate::halves::{OwnedReadHalf, OwnedWriteHalf};

/// The interruption inside an error, if that is what it came from.
///
/// It looks through everything that was put around it on the way.
///
/// # Examples
///
/// ```
/// use pikake_net::interruption;
/// use pikake_traps::Interrupted;
/// use std::io;
///
/// let error = io::Error::from(Interrupted::cancelled("stop"));
/// assert_eq!(interruption(&error).and_then(Interrupted::reason), Some("stop"));
/// assert!(interruption(&io::ErrorKind::TimedOut.into()).is_none());
/// ```
pub fn interruption(error: &io::Error) -> Option<&Interrupted> {
    let mut at: &(dyn Error + 'static) = error;
    loop {
        if let Some(interrupted) = at.downcast_ref() {
            return Some(interrupted);
        }
        // An `io::Error` passes its payload over and gives the payload's source as its own.
        at = match at.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref()?,
            None => at.source()?,
        };
    }
}

/// [`read_exact`](crate::TcpStream::read_exact) ended before the buffer was full.
///
/// As an [`io::Error`] it has the kind of its source.
///
/// # Examples
///
/// Keeping what came before a deadline:
///
/// ```no_run
/// # async fn example(stream: pikake_net::TcpStream) -> std::io::Result<()> {
/// let mut buffer = [0; 512];
/// let header = match stream.read_exact(&mut buffer).await {
///     Ok(()) => &buffer[..],
///     Err(error) if error.source.kind() == std::io::ErrorKind::UnexpectedEof => {
///         &buffer[..error.read]
///     }
///     Err(error) => return Err(error.into()),
/// };
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadExactError {
    /// How many bytes were read; they are at the buffer's beginning.
    pub read: usize,
    /// Why not more: the system's error, an interruption, or
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    pub source: io::Error,
}

impl ReadExactError {
    pub(crate) fn at_end(read: usize) -> Self {
        let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended");
        Self { read, source }
    }
}

impl fmt::Display for ReadExactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} bytes were read: {}", self.read, self.source)
    }
}

impl Error for ReadExactError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<ReadExactError> for io::Error {
    fn from(error: ReadExactError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// [`write_all`](crate::TcpStream::write_all) ended before everything was written.
///
/// As an [`io::Error`] it has the kind of its source.
///
/// # Examples
///
/// Going on where it was interrupted:
///
/// ```no_run
/// # async fn example(stream: pikake_net::TcpStream, data: &[u8]) -> std::io::Result<()> {
/// if let Err(error) = stream.write_all(data).await {
///     println!("{} bytes are left: {}", data.len() - error.written, error.source);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct WriteAllError {
    /// How many bytes the system took. They may or may not reach the peer.
    pub written: usize,
    /// Why not more: the system's error, or an interruption.
    pub source: io::Error,
}

impl WriteAllError {
    /// How much was taken by a write that failed: what a `WriteAllError` inside the error says, and
    /// nothing if there is none.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake_net::WriteAllError;
    ///
    /// assert_eq!(WriteAllError::written_in(&std::io::ErrorKind::BrokenPipe.into()), 0);
    /// ```
    pub fn written_in(error: &io::Error) -> usize {
        let inside = error.get_ref().and_then(|inside| inside.downcast_ref::<Self>());
        inside.map_or(0, |error| error.written)
    }

    /// So much was written, and then that happened. For those who write a [`Write`](crate::Write)
    /// of their own.
    pub fn new(written: usize, source: io::Error) -> Self {
        Self { written, source }
    }

    pub(crate) fn no_room(written: usize) -> Self {
        let source = io::Error::new(io::ErrorKind::WriteZero, "the socket takes no more");
        Self { written, source }
    }
}

impl fmt::Display for WriteAllError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} bytes were written: {}", self.written, self.source)
    }
}

impl Error for WriteAllError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<WriteAllError> for io::Error {
    fn from(error: WriteAllError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// None of a host's addresses could be used: which were tried, and what came of each.
///
/// It is the payload of the [`io::Error`] of a `connect` or a `bind`, whose kind is that of the
/// last address tried.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake_net::{AddressErrors, TcpStream};
///
/// let error = TcpStream::connect("localhost:9").await.unwrap_err();
/// let errors = error.get_ref().and_then(|inside| inside.downcast_ref::<AddressErrors>());
/// for (address, error) in errors.map(AddressErrors::tried).unwrap_or_default() {
///     println!("{address}: {error}");
/// }
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct AddressErrors {
    /// What was to be done, and to what: `connect to localhost:9`.
    what: String,
    tried: Vec<(SocketAddr, io::Error)>,
}

impl AddressErrors {
    pub(crate) fn new(what: String) -> Self {
        Self { what, tried: Vec::new() }
    }

    pub(crate) fn add(&mut self, address: SocketAddr, error: io::Error) {
        self.tried.push((address, error));
    }

    /// The addresses in the order in which they were tried, each with its error. Empty if the name
    /// has no address.
    pub fn tried(&self) -> &[(SocketAddr, io::Error)] {
        &self.tried
    }

    /// What was to be done: for the error of something that went before.
    pub(crate) fn instead(self, error: io::Error) -> io::Error {
        in_context(error, || self.what)
    }
}

impl fmt::Display for AddressErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.tried.is_empty() {
            return f.write_str(": the name has no address");
        }
        for (number, (address, error)) in self.tried.iter().enumerate() {
            f.write_str(if number == 0 { ": " } else { "; " })?;
            let address = address.to_string();
            // Where an address was asked for, it has been said.
            if !self.what.ends_with(&address) {
                write!(f, "{address}: ")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl Error for AddressErrors {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let (_, last) = self.tried.last()?;
        Some(last)
    }
}

impl From<AddressErrors> for io::Error {
    fn from(errors: AddressErrors) -> Self {
        let kind = errors.tried.last().map_or(io::ErrorKind::NotFound, |(_, last)| last.kind());
        Self::new(kind, errors)
    }
}

/// An error, and what was being done.
#[derive(Debug)]
struct InContext {
    what: String,
    source: io::Error,
}

impl fmt::Display for InContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl Error for InContext {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Says what was being done. What is not the system's error, but this side's own doing (an
/// interruption, a socket that was closed or is busy), is passed on as it is.
///
/// The kind stays the same, and the error itself is the source of the new one.
///
/// # Examples
///
/// ```
/// use pikake_net::in_context;
/// use std::io;
///
/// let error = in_context(io::ErrorKind::NotFound.into(), || "open shop.db".to_owned());
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "open shop.db: entity not found");
/// ```
pub fn in_context(source: io::Error, what: impl FnOnce() -> String) -> io::Error {
    let is_own_doing = source.get_ref().is_some_and(|inside| {
        inside.is::<Interrupted>() || inside.is::<Closed>() || inside.is::<ResourceBusy>()
    });
    if is_own_doing {
        return source;
    }
    let kind = source.kind();
    io::Error::new(kind, InContext { what: what(), source })
}

/// Two halves that were not split from the same stream; both are inside.
///
/// # Examples
///
/// ```no_run
/// # fn example(one: pikake_net::TcpStream, other: pikake_net::TcpStream) {
/// let (read, _) = one.into_split();
/// let (_, write) = other.into_split();
/// let error = read.reunite(write).unwrap_err();
/// let (read, write) = (error.read, error.write);
/// # }
/// ```
#[derive(Debug)]
pub struct ReuniteError<S> {
    /// The half that reads.
    pub read: OwnedReadHalf<S>,
    /// The half that writes.
    pub write: OwnedWriteHalf<S>,
}

impl<S> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves are not of the same stream")
    }
}

impl<S: fmt::Debug> Error for ReuniteError<S> {}
