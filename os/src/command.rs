//! Commands, which run programs.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::path::Path;
use std::process::{self, ExitStatus, Output, Stdio};
use std::time::Duration;

use pikake_net::in_context;
use pikake_traps::{in_kernel, system};

use crate::child::Child;
use crate::output::{self, CommandError, Policy};

/// The default time between SIGTERM and SIGKILL.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(1);

/// A program to run, with its arguments and environment.
///
/// The child inherits the environment, the directory and the standard streams of the process, and
/// no other descriptor.
///
/// # Examples
///
/// ```no_run
/// use pikake::process::{Command, Stdio};
///
/// # async fn example() -> std::io::Result<()> {
/// let mut child = Command::new("sort").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
/// let stdin = child.stdin.take().expect("a piped stream");
/// stdin.write_all(b"pear\napple\n").await?;
/// drop(stdin);
/// let mut sorted = [0; 100];
/// let length = child.stdout.take().expect("a piped stream").read(&mut sorted).await?;
/// println!("{}", child.wait().await?);
/// # Ok(()) }
/// ```
#[must_use = "a command does nothing until it is run"]
pub struct Command {
    inner: process::Command,
    /// Whether the caller has set the stream: input, output, errors.
    is_set: [bool; 3],
    kill_on_drop: bool,
    policy: Policy,
}

impl Command {
    /// Creates a command for a path, or for a name in `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let policy = Policy { grace: DEFAULT_GRACE, limit: usize::MAX };
        let inner = process::Command::new(program);
        Self { inner, is_set: [false; 3], kill_on_drop: false, policy }
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> &mut Self {
        self.inner.args(arguments);
        self
    }

    /// Sets a variable of the child's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    /// Removes a variable from the child's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env_remove(name);
        self
    }

    /// Clears the child's environment. Later calls can set variables.
    pub fn env_clear(&mut self) -> &mut Self {
        self.inner.env_clear();
        self
    }

    /// Sets the child's directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.inner.current_dir(directory);
        self
    }

    /// Sets the standard input. By default it is empty for [`output`](Self::output), and inherited
    /// otherwise.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(stdin);
        self.is_set[0] = true;
        self
    }

    /// Sets the standard output. By default it is a pipe for [`output`](Self::output), and
    /// inherited otherwise.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(stdout);
        self.is_set[1] = true;
        self
    }

    /// Sets the standard error, with the defaults of [`stdout`](Self::stdout).
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(stderr);
        self.is_set[2] = true;
        self
    }

    /// Sets whether dropping a running [`Child`] kills it; by default it does not.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Sets the time between SIGTERM and SIGKILL after [`output`](Self::output) or
    /// [`status`](Self::status) was interrupted; [`DEFAULT_GRACE`] by default.
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.policy.grace = grace;
        self
    }

    /// Sets the limit of bytes that [`output`](Self::output) takes from each stream; none by
    /// default.
    pub fn limit(&mut self, bytes: usize) -> &mut Self {
        self.policy.limit = bytes;
        self
    }

    /// The command of the standard library, for other settings. Streams must be set by the methods
    /// of this type.
    pub fn as_std_mut(&mut self) -> &mut process::Command {
        &mut self.inner
    }

    /// Starts the program. Blocks while the system loads it.
    ///
    /// # Errors
    ///
    /// The system's error, with the program's name, as [`NotFound`](io::ErrorKind::NotFound);
    /// [`Unsupported`](io::ErrorKind::Unsupported), in a simulation.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        system()?;
        let (spawned, program) = (self.inner.spawn(), self.program());
        let started = spawned.and_then(|child| Child::new(child, &program, self.kill_on_drop));
        started.map_err(|error| in_context(error, || format!("run {program}")))
    }

    /// Runs the program to its end and returns its output.
    ///
    /// Both streams are read at the same time, to their ends.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption sends SIGTERM, after the [grace](Self::grace)
    /// SIGKILL, and waits for the child; the error then contains its output. Further interruptions
    /// are held back meanwhile. A drop kills the child and loses its output.
    ///
    /// # Errors
    ///
    /// As for [`spawn`](Self::spawn); the interruption;
    /// [`TooMuchOutput`](crate::process::TooMuchOutput), as for an interruption. A program that
    /// fails is no error: check its status.
    ///
    /// # Panics
    ///
    /// If polled outside a task of a kernel.
    #[track_caller]
    pub fn output(&mut self) -> impl Future<Output = Result<Output, CommandError>> {
        let place = Location::caller();
        in_kernel(async move {
            if !self.is_set[0] {
                self.inner.stdin(Stdio::null());
            }
            if !self.is_set[1] {
                self.inner.stdout(Stdio::piped());
            }
            if !self.is_set[2] {
                self.inner.stderr(Stdio::piped());
            }
            output::run(self, place).await
        })
    }

    /// Runs the program to its end.
    ///
    /// # Cancellation
    ///
    /// As for [`output`](Self::output).
    ///
    /// # Errors
    ///
    /// As for [`output`](Self::output).
    ///
    /// # Panics
    ///
    /// If polled outside a task of a kernel.
    #[track_caller]
    pub fn status(&mut self) -> impl Future<Output = Result<ExitStatus, CommandError>> {
        let place = Location::caller();
        in_kernel(async move {
            for (is_set, set) in self.is_set.into_iter().zip([
                process::Command::stdin::<Stdio>,
                process::Command::stdout,
                process::Command::stderr,
            ]) {
                if !is_set {
                    set(&mut self.inner, Stdio::inherit());
                }
            }
            output::run(self, place).await.map(|output| output.status)
        })
    }

    pub(crate) fn program(&self) -> String {
        self.inner.get_program().to_string_lossy().into_owned()
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
