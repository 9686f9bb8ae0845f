//! A client of a console, which blocks its thread.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::model::Process;
use crate::place;
use crate::protocol::{Part, Request, VERSION, read_frame, write_frame};

/// A time in which each console answers that is not stuck itself: it waits a fraction of a second
/// for kernels.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a process with a console.
///
/// # Examples
///
/// ```
/// use pikake::console::Console;
/// use pikake::console::client::{Client, TIMEOUT};
/// use pikake::console::protocol::{Part, Request};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("app.sock");
/// let _console = Console::builder().path(&path).start()?;
/// let mut client = Client::connect_to(&path, TIMEOUT)?;
/// println!("{} has pikake {}", client.process().program, client.process().pikake);
/// for part in client.request(&Request::Tasks { waits: false })? {
///     if let Part::Tasks(tasks) = part? {
///         tasks.iter().for_each(|task| println!("{} {}", task.id, task.name));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    process: Process,
    timeout: Duration,
    /// Parts of the last answer are still to be read.
    is_answering: bool,
}

impl Client {
    /// Connects to a process of this user; root connects to any. The timeout is for each wait, as
    /// for the next part of an answer.
    ///
    /// # Errors
    ///
    /// There is no such process, or it has no console, or it cannot be reached.
    pub fn connect(pid: u32, timeout: Duration) -> Result<Self, ClientError> {
        if !place::exists(pid) {
            return Err(ClientError::NoProcess(pid));
        }
        let me = geteuid().as_raw();
        let owner = owner_of(pid).unwrap_or(me);
        if me != owner && me != 0 {
            return Err(ClientError::NotYours { pid, owner });
        }
        let mut trouble = None;
        for folder in place::folders_of(owner) {
            let path = folder.join(place::name_of(pid));
            match place::check(&folder, owner).and_then(|()| fs::symlink_metadata(&path)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // The process could not use the folder either, unless the folder has changed since.
                Err(error) => {
                    trouble = trouble.or(Some(ClientError::Io(path, error)));
                    continue;
                }
            }
            return match Self::connect_to(&path, timeout) {
                // The socket of an earlier process with this number.
                Err(ClientError::Io(_, error))
                    if error.kind() == io::ErrorKind::ConnectionRefused =>
                {
                    continue;
                }
                connected => connected,
            };
        }
        Err(trouble.unwrap_or(ClientError::NoConsole(pid)))
    }

    /// Connects to the console whose socket is at a path.
    ///
    /// # Errors
    ///
    /// No console listens there, or it cannot be reached.
    pub fn connect_to(path: impl AsRef<Path>, timeout: Duration) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let failed = |error: io::Error| ClientError::of(error, path, timeout);
        let mut stream = UnixStream::from(open(path, timeout).map_err(failed)?);
        stream.set_read_timeout(Some(timeout)).map_err(failed)?;
        let greeting: Option<serde_json::Value> = read_frame(&mut stream).map_err(failed)?;
        let greeting = greeting.ok_or_else(|| ClientError::Closed(path.to_owned()))?;
        let version = greeting.get("protocol").and_then(serde_json::Value::as_u64);
        if let Some(theirs) = version.filter(|theirs| *theirs != u64::from(VERSION)) {
            return Err(ClientError::Version { theirs });
        }
        let process = serde_json::from_value(greeting).map_err(|error| failed(error.into()))?;
        Ok(Self { stream, path: path.to_owned(), process, timeout, is_answering: false })
    }

    /// The process, as it has introduced itself.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Sends a request, and returns the parts of its answer as they come. [`Part::Done`] is not
    /// among them, and [`Part::Failed`] is an error.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the process does not answer in time.
    pub fn request(&mut self, request: &Request) -> Result<Parts<'_>, ClientError> {
        // The rest of an answer that the caller did not read to its end.
        while self.is_answering {
            self.next_part()?;
        }
        let patience = self.timeout.saturating_add(length_of(request));
        let set = self.stream.set_read_timeout(Some(patience));
        let sent = set.and_then(|()| write_frame(&mut self.stream, request));
        // A process that has closed the connection may have said why.
        if let Err(error) = sent.or_else(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        }) {
            return Err(self.failed(error));
        }
        self.is_answering = true;
        Ok(Parts { client: self, is_over: false })
    }

    /// Sends a request, and returns all parts of its answer.
    ///
    /// # Errors
    ///
    /// As for [`request`](Self::request), and [`ClientError::Failed`].
    pub fn ask(&mut self, request: &Request) -> Result<Vec<Part>, ClientError> {
        self.request(request)?.collect()
    }

    fn next_part(&mut self) -> Result<Part, ClientError> {
        let part = match read_frame(&mut self.stream) {
            Ok(Some(part)) => part,
            Ok(None) => {
                self.is_answering = false;
                return Err(ClientError::Closed(self.path.clone()));
            }
            Err(error) => {
                self.is_answering = false;
                return Err(self.failed(error));
            }
        };
        if matches!(part, Part::Done | Part::Failed(_)) {
            self.is_answering = false;
        }
        Ok(part)
    }

    fn failed(&self, error: io::Error) -> ClientError {
        ClientError::of(error, &self.path, self.timeout)
    }
}

/// The parts of an answer, as they come. Made by [`Client::request`].
#[derive(Debug)]
pub struct Parts<'a> {
    client: &'a mut Client,
    is_over: bool,
}

impl Iterator for Parts<'_> {
    type Item = Result<Part, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let part = match self.client.next_part() {
            Ok(Part::Done) => None,
            Ok(Part::Failed(reason)) => Some(Err(ClientError::Failed(reason))),
            other => Some(other),
        };
        self.is_over = !matches!(part, Some(Ok(_)));
        part
    }
}

/// The time that the process needs for a request beside that of an answer.
fn length_of(request: &Request) -> Duration {
    let seconds = match request {
        Request::Trace { seconds } => seconds.unwrap_or_default(),
        Request::Profile { seconds } => *seconds,
        _ => 0.0,
    };
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// The user of a process, where the system says.
fn owner_of(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// A connection. A listener with a full backlog is waited for, but no longer than the timeout.
fn open(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// An error of a [`Client`].
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no process with this number.
    NoProcess(u32),
    /// The process has no console.
    NoConsole(u32),
    /// The process is another user's.
    NotYours {
        /// The number of the process.
        pid: u32,
        /// The number of its user.
        owner: u32,
    },
    /// The console at this path does not answer. It waited for so long.
    NotAnswering(PathBuf, Duration),
    /// The process has another version of the protocol.
    Version {
        /// The version of the process.
        theirs: u64,
    },
    /// The process has closed the connection.
    Closed(PathBuf),
    /// The request failed, for this reason.
    Failed(String),
    /// The system's error, or a malformed answer, at the path of the socket.
    Io(PathBuf, io::Error),
}

impl ClientError {
    fn of(error: io::Error, path: &Path, timeout: Duration) -> Self {
        let is_timeout =
            [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind());
        match error.raw_os_error() {
            _ if is_timeout => Self::NotAnswering(path.to_owned(), timeout),
            Some(code) if code == Errno::CONNRESET.raw_os_error() => Self::Closed(path.to_owned()),
            _ => Self::Io(path.to_owned(), error),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => write!(f, "there is no process {pid}"),
            Self::NoConsole(pid) => write!(
                f,
                "process {pid} has no console: start it with {}=1 if it is built with the feature \
                 `console` of pikake, or write `#[pikake::main(console)]`",
                place::VARIABLE
            ),
            Self::NotYours { pid, owner } => write!(
                f,
                "process {pid} belongs to user {owner}: only that user and root can look into it"
            ),
            Self::NotAnswering(path, timeout) => {
                write!(f, "the console at {} has not answered for {timeout:?}", path.display())
            }
            Self::Version { theirs } => write!(
                f,
                "the process has version {theirs} of the console's protocol, and this program has \
                 version {VERSION}: use the program `pikake` of the version that the process is \
                 built with"
            ),
            Self::Closed(path) => {
                write!(f, "the process has closed the connection to {}", path.display())
            }
            Self::Failed(reason) => f.write_str(reason),
            Self::Io(path, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "no permission to connect to {}: {error}", path.display())
            }
            Self::Io(path, error) => write!(f, "the console at {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}
