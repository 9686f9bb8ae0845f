//! The console of this process: a thread with a kernel of its own, which answers clients.
//!
//! Each client has a task there. The thread asks the other kernels by closures, and never waits for
//! one longer than [`ANSWER_WITHIN`](crate::observed::ANSWER_WITHIN). So the console answers while
//! the program is stuck.
//!
//! A fork has no such thread, and serves nobody. A client of the fork's socket, which is that of
//! the process before, gets no answer.

use std::cell::{Cell, RefCell};
use std::env;
use std::fmt;
use std::future::pending;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use pikake_kernel::Kernel;
use pikake_kernel::inspect::{KernelView, kernels, record_steps, record_waits};
use pikake_traps::figures::measure_times;
use pikake_traps::{self as task, KernelHandle, KernelId, blocking, future_wait, sleep};
use signal_hook::SigId;
use signal_hook::consts::{SIGQUIT, SIGUSR1};
use signal_hook::low_level::{pipe, unregister};

use crate::long_steps;
use crate::model::Process;
use crate::observed::{Pings, Times, nanoseconds};
use crate::protocol::VERSION;
use crate::record::{Settings, Writer, program};
use crate::socket_file::{SocketFile, listen};
use crate::system::System;

mod accept;
mod answers;
mod blocked;
mod connection;
mod leaks;
mod looks;
mod profile;
mod record;
mod trace;

use accept::Arrivals;
use looks::Looks;

/// The name of the thread. Linux shows fifteen bytes of a name.
const THREAD: &str = "pikake-console";

/// The time that the thread may take to end.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The bytes of a dump that are written at a time.
const PIECE: usize = 4_096;

/// A console of this process, until it is dropped.
///
/// # Examples
///
/// ```
/// use pikake::console::Console;
/// use pikake::console::client::{Client, TIMEOUT};
/// use pikake::console::protocol::Request;
///
/// let console = Console::start()?;
/// let mut client = Client::connect_to(console.path().unwrap(), TIMEOUT)?;
/// let answer = client.ask(&Request::Kernels)?;
/// assert!(answer.is_empty(), "no kernel runs yet");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the drop ends the console"]
pub struct Console {
    /// Removed before the thread ends.
    file: Option<SocketFile>,
    handle: KernelHandle,
    /// Disconnected at the end of the thread.
    ended: Receiver<()>,
    pid: u32,
    _signals: Option<Registered>,
}

impl Console {
    /// Starts a console with its socket in the folder of the user; see [`place`](crate::place).
    ///
    /// # Errors
    ///
    /// The socket cannot be made, as on a full disk. The process is out of threads or descriptors.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// A builder of a console with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The path of the socket.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(SocketFile::path)
    }
}

/// A part of a console that is not there.
pub(crate) enum Trouble {
    Socket(io::Error),
    Recording(io::Error),
    Thread(io::Error),
}

/// The settings of a [`Console`].
///
/// # Examples
///
/// ```
/// use pikake::console::Console;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("app.sock");
/// let console = Console::builder().path(&path).start()?;
/// assert_eq!(console.path(), Some(path.as_path()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct Builder {
    path: Option<PathBuf>,
    signals: bool,
    record: Option<Settings>,
}

impl Builder {
    /// The path of the socket. By default, the socket is in the folder of the user.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Has SIGUSR1 and SIGQUIT write all tasks with their waits, and the figures, to standard
    /// error, instead of ending the process. After the drop of the console, these signals do
    /// nothing.
    pub fn dump_on_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Records the process into files. See [`record`](crate::record). A process has one recording
    /// at a time.
    pub fn record(mut self, settings: Settings) -> Self {
        self.record = Some(settings);
        self
    }

    /// Starts the console.
    ///
    /// # Errors
    ///
    /// The socket cannot be made, as on a full disk, or because there is another file or a socket
    /// in use at its path. The folder or the first file of a recording cannot be made. The process
    /// is out of threads or descriptors.
    pub fn start(self) -> io::Result<Console> {
        let socket = listen(self.path.as_deref())?;
        let writer = self.record.clone().map(Writer::new).transpose()?;
        self.serve(Some(socket), writer)
    }

    /// Starts the console with what can be made of a socket, if one is wanted, and of a recording,
    /// and says what cannot be made. `None` if nothing is left to do.
    pub(crate) fn start_for_main(self, has_socket: bool) -> (Option<Console>, Vec<Trouble>) {
        let mut troubles = Vec::new();
        let socket = has_socket
            .then(|| listen(self.path.as_deref()))
            .and_then(|socket| socket.map_err(|error| troubles.push(Trouble::Socket(error))).ok());
        let writer = self.record.clone().map(Writer::new).and_then(|writer| {
            writer.map_err(|error| troubles.push(Trouble::Recording(error))).ok()
        });
        if socket.is_none() && writer.is_none() && !self.signals {
            return (None, troubles);
        }
        let console = self.serve(socket, writer);
        (console.map_err(|error| troubles.push(Trouble::Thread(error))).ok(), troubles)
    }

    fn serve(
        self,
        socket: Option<(UnixListener, SocketFile)>,
        writer: Option<Writer>,
    ) -> io::Result<Console> {
        match socket.is_some() || self.signals {
            true => record_steps(),
            false => record_waits(),
        }
        long_steps::watch();
        measure_times();
        let (listener, file) = socket.unzip();
        let (signals, registered) = self.signals.then(signals).transpose()?.unzip();
        let (sender, receiver) = mpsc::channel();
        let (alive, ended) = mpsc::channel();
        let work = move || {
            let _alive: Sender<()> = alive;
            run(listener, signals, writer, &sender);
        };
        thread::Builder::new().name(THREAD.into()).spawn(work)?;
        let handle = receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Console { file, handle, ended, pid: process::id(), _signals: registered })
    }
}

/// The signals that ask for a dump, until the drop.
struct Registered(Vec<SigId>);

impl Drop for Registered {
    fn drop(&mut self) {
        for signal in &self.0 {
            unregister(*signal);
        }
    }
}

/// A pipe that has a byte for each signal which asks for a dump.
fn signals() -> io::Result<(UnixStream, Registered)> {
    let (read, write) = UnixStream::pair()?;
    let mut registered = Registered(Vec::new());
    for signal in [SIGUSR1, SIGQUIT] {
        registered.0.push(pipe::register(signal, write.try_clone()?)?);
    }
    Ok((read, registered))
}

impl Drop for Console {
    fn drop(&mut self) {
        // A fork has the value, and not the thread.
        if self.pid == process::id() && self.handle.shutdown().is_ok() {
            self.file = None;
            let _ = self.ended.recv_timeout(END_WITHIN);
        }
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// The thread.
fn run(
    listener: Option<UnixListener>,
    signals: Option<UnixStream>,
    writer: Option<Writer>,
    ready: &Sender<io::Result<KernelHandle>>,
) {
    // A long step of the console is no concern of the program.
    let builder = Kernel::builder().name("console").long_step(None).shutdown_grace(END_WITHIN / 2);
    let kernel = match builder.build() {
        Ok(kernel) => kernel,
        Err(error) => return drop(ready.send(Err(error))),
    };
    // The shutdown of the kernel cancels the main task.
    drop(kernel.try_run(async {
        match prepare(listener).await {
            Ok((server, arrivals)) => {
                if ready.send(Ok(KernelHandle::current())).is_ok() {
                    serve(server, arrivals, signals, writer).await;
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    }));
    kernel.shutdown();
}

/// Opens everything that the console needs. The process may be out of descriptors later.
async fn prepare(listener: Option<UnixListener>) -> io::Result<(Rc<Server>, Option<Arrivals>)> {
    let arrivals = listener.map(Arrivals::of).transpose()?;
    let server = Rc::new(Server::new(KernelHandle::current().id()));
    server.spare.refill();
    // A short sleep makes the kernel open its timer.
    sleep(Duration::from_millis(1)).await?;
    Ok((server, arrivals))
}

/// Serves until the kernel is shut down.
async fn serve(
    server: Rc<Server>,
    arrivals: Option<Arrivals>,
    signals: Option<UnixStream>,
    writer: Option<Writer>,
) {
    if let Some(writer) = writer {
        let recording = record::record(server.clone(), writer);
        task::Builder::new().name("recording").spawn(recording).detach();
    }
    if let Some(signals) = signals {
        let server = server.clone();
        let dumps = async move {
            if let Err(error) = dump_on_bytes(&server, signals).await {
                tracing::debug!(%error, "the console waits for no more signals");
            }
        };
        task::Builder::new().name("signals").spawn(dumps).detach();
    }
    task::Builder::new().name("looks").spawn(looks::look_now_and_then(server.clone())).detach();
    if let Some(arrivals) = arrivals {
        let Err(error) = accept::accept_all(&server, &arrivals).await;
        if pikake_net::interruption(&error).is_none() {
            tracing::warn!(%error, "the console accepts no more clients");
        }
    }
    let _ = future_wait(pending::<()>()).await;
}

/// Writes a dump for the signals of each moment.
async fn dump_on_bytes(server: &Rc<Server>, signals: UnixStream) -> io::Result<()> {
    let signals = pikake_net::UnixStream::from_std(signals)?;
    let mut bytes = [0; 64];
    while signals.read(&mut bytes).await? > 0 {
        let text = answers::dump(server).await;
        // A pipe that nobody reads holds up this thread alone.
        let written = blocking(move || write_in_pieces(&mut io::stderr(), &text)).await;
        if let Err(error) = written {
            tracing::debug!(%error, "a dump was not written");
        }
    }
    Ok(())
}

/// Writes a text some lines at a time: standard error is locked for each write, and the program
/// writes in between.
fn write_in_pieces(to: &mut impl Write, text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let most = rest.len().min(PIECE);
        let end_of_line = rest[..most].iter().rposition(|byte| *byte == b'\n');
        let (piece, later) = rest.split_at(end_of_line.map_or(most, |at| at + 1));
        to.write_all(piece)?;
        rest = later;
    }
    Ok(())
}

/// What the tasks of the console's kernel share.
struct Server {
    /// The console's own kernel, which is not shown.
    own: KernelId,
    began: Instant,
    system: RefCell<System>,
    looks: Looks,
    pings: Pings,
    times: Times,
    clients: Cell<usize>,
    /// The requests for traces and profiles that are being answered.
    recordings: Cell<usize>,
    /// The requests for all waits that are being answered.
    lists_of_waits: Cell<usize>,
    spare: accept::Spare,
}

impl Server {
    fn new(own: KernelId) -> Self {
        Self {
            own,
            began: Instant::now(),
            system: RefCell::new(System::open()),
            looks: Looks::default(),
            pings: Pings::new(),
            times: Times::default(),
            clients: Cell::new(0),
            recordings: Cell::new(0),
            lists_of_waits: Cell::new(0),
            spare: accept::Spare::default(),
        }
    }

    /// The process, as it introduces itself.
    fn process(&self) -> Process {
        Process {
            pid: process::id(),
            program: program(),
            pikake: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: VERSION,
            age: nanoseconds(self.began.elapsed()),
        }
    }

    /// The kernels of the program.
    fn kernels(&self) -> Vec<KernelView> {
        let mut kernels = kernels();
        kernels.retain(|kernel| kernel.id() != self.own);
        let is_there = |id: u32| kernels.iter().any(|kernel| kernel.id().number() == id);
        self.looks.retain(is_there);
        self.pings.retain(is_there);
        self.times.retain(is_there);
        kernels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps each write.
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dumps_are_written_some_lines_at_a_time() {
        let mut lines: String = (0..2_000).map(|number| format!("line {number}\n")).collect();
        lines += &"x".repeat(2 * PIECE);
        let mut writes = Writes(Vec::new());
        write_in_pieces(&mut writes, &lines).unwrap();
        assert_eq!(writes.0.concat(), lines);
        assert!(writes.0.iter().all(|piece| piece.len() <= PIECE));
        let cut = writes.0.iter().filter(|piece| !piece.ends_with('\n')).count();
        assert_eq!(cut, 2, "only the long line is cut");
    }
}
