//! Errors that tell how far an operation came.
//!
//! A single operation reports an [`io::Error`]. An operation of several steps has an error type of
//! its own, with the bytes that moved or the addresses that were tried. `?` turns it into an
//! [`io::Error`] of the same kind, with the error as payload.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use pikake_traps::{Closed, Interrupted, ResourceBusy};

use crate::halves::{OwnedReadHalf, OwnedWriteHalf};

/// The interruption that caused an error, if there is one.
///
/// Searches an error of any type and all its sources: an [`Interrupted`] itself, an [`io::Error`],
/// an error that has one of these as its source. A boxed error is passed as `&*error`, an
/// `anyhow::Error` as `error.as_ref()`. The cancel of a task that was joined is no interruption of
/// the joiner: an error made from [`TaskError::Cancelled`](pikake_traps::TaskError) has none.
///
/// # Examples
///
/// ```
/// use pikake::Interrupted;
/// use pikake::net::interruption;
/// use std::io;
///
/// let error = io::Error::from(Interrupted::cancelled("stop"));
/// assert_eq!(interruption(&error).and_then(Interrupted::reason), Some("stop"));
/// assert!(interruption(&io::Error::from(io::ErrorKind::TimedOut)).is_none());
/// ```
///
/// A server that logs the errors of its connections, and not that it was stopped:
///
/// ```
/// use pikake::net::{TcpStream, interruption};
/// use std::error::Error;
///
/// async fn header(stream: &TcpStream) -> Result<[u8; 4], Box<dyn Error + Send + Sync>> {
///     let mut header = [0; 4];
///     stream.read_exact(&mut header).await?;
///     Ok(header)
/// }
///
/// async fn connection(stream: TcpStream) {
///     match header(&stream).await {
///         Ok(header) => println!("{header:?}"),
///         Err(error) if interruption(&*error).is_some() => {}
///         Err(error) => eprintln!("a connection failed: {error}"),
///     }
/// }
/// # drop(connection);
/// ```
pub fn interruption<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Interrupted> {
    let mut at = error;
    loop {
        if let Some(interrupted) = at.downcast_ref() {
            return Some(interrupted);
        }
        // `io::Error::source` skips the payload and returns the payload's source.
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
/// Keeping the bytes before the end of the stream:
///
/// ```no_run
/// # async fn example(stream: pikake::net::TcpStream) -> std::io::Result<()> {
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
    /// The number of bytes read; they are at the beginning of the buffer.
    pub read: usize,
    /// The cause: the system's error, an interruption, or
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

/// [`write_all`](crate::TcpStream::write_all) ended before all data was written.
///
/// As an [`io::Error`] it has the kind of its source.
///
/// # Examples
///
/// Counting the bytes that are left:
///
/// ```no_run
/// # async fn example(stream: pikake::net::TcpStream, data: &[u8]) -> std::io::Result<()> {
/// if let Err(error) = stream.write_all(data).await {
///     println!("{} bytes are left: {}", data.len() - error.written, error.source);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct WriteAllError {
    /// The number of bytes that the system took. They may not have reached the peer.
    pub written: usize,
    /// The cause: the system's error, or an interruption.
    pub source: io::Error,
}

impl WriteAllError {
    /// The number of bytes that a failed write took: the count of a `WriteAllError` inside the
    /// error, or else zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::net::WriteAllError;
    ///
    /// assert_eq!(WriteAllError::written_in(&std::io::ErrorKind::BrokenPipe.into()), 0);
    /// ```
    pub fn written_in(error: &io::Error) -> usize {
        let inside = error.get_ref().and_then(|inside| inside.downcast_ref::<Self>());
        inside.map_or(0, |error| error.written)
    }

    /// Creates an error, for implementations of [`Write`](crate::Write).
    pub fn new(written: usize, source: io::Error) -> Self {
        Self { written, source }
    }

    /// The cause of a failed write, if that was partial; otherwise the error itself.
    pub(crate) fn without_count(error: io::Error) -> io::Error {
        match error.downcast::<Self>() {
            Ok(partial) => partial.source,
            Err(error) => error,
        }
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

/// None of a host's addresses could be used. Has the error of each address that was tried.
///
/// The payload of the [`io::Error`] of a `connect` or a `bind`, whose kind is that of the
/// last address tried.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::{AddressErrors, TcpStream};
///
/// let error = TcpStream::connect("localhost:9").await.unwrap_err();
/// let errors = error.get_ref().and_then(|inside| inside.downcast_ref::<AddressErrors>());
/// for (address, error) in errors.map(AddressErrors::tried).unwrap_or_default() {
///     println!("{address}: {error}");
/// }
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
pub struct AddressErrors {
    /// The attempted operation: `connect to localhost:9`.
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

    /// An error with this context, for a failure before any address was tried.
    pub(crate) fn with_cause(self, error: io::Error) -> io::Error {
        in_context(error, || self.what)
    }
}

/// A program whose `main` returns an `io::Error` ends with this text, so it is the sentence, in
/// quotes, as that of an error made from a text.
impl fmt::Debug for AddressErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
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
            // If the caller gave an address, `what` ends with it.
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

/// An error with the operation that failed.
struct InContext {
    what: String,
    source: io::Error,
}

/// As that of [`AddressErrors`].
impl fmt::Debug for InContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
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

/// Adds the operation that failed to a system error. Errors of this side (an interruption, a socket
/// that was closed or is busy) are returned unchanged.
///
/// The new error has the same kind, and the given error as its source.
///
/// # Examples
///
/// ```
/// use pikake::net::in_context;
/// use std::io;
///
/// let error = in_context(io::ErrorKind::NotFound.into(), || "open shop.db".to_owned());
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "open shop.db: entity not found");
/// ```
pub fn in_context(source: io::Error, what: impl FnOnce() -> String) -> io::Error {
    let is_local =
        source.get_ref().is_some_and(|inside| inside.is::<Closed>() || inside.is::<ResourceBusy>());
    if is_local || interruption(&source).is_some() {
        return source;
    }
    let kind = source.kind();
    io::Error::new(kind, InContext { what: what(), source })
}

/// Two halves that were not split from the same stream. The error holds both.
///
/// # Examples
///
/// ```no_run
/// # fn example(one: pikake::net::TcpStream, other: pikake::net::TcpStream) {
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
