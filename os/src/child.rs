//! A child process.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::process::{self, ExitStatus};
use std::time::Duration;

use pikake_net::{PipeReader, PipeWriter, in_context};
use pikake_traps::{sleep, timeout_after};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGKILL, SIGTERM};

use crate::exit::Exit;
use crate::reaper;

#[cfg(test)]
mod tests;

/// The delay before a child is checked again whose descriptor reports an end that `wait` does not
/// see yet, as for a traced process.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A child process, returned by [`Command::spawn`](crate::process::Command::spawn).
///
/// After a drop, the child keeps running and a thread waits for it. With
/// [`kill_on_drop`](crate::process::Command::kill_on_drop), the drop kills it.
#[must_use = "a child that is dropped keeps running"]
pub struct Child {
    /// The child's standard input, if that is a pipe.
    pub stdin: Option<PipeWriter>,
    /// The child's standard output, if that is a pipe.
    pub stdout: Option<PipeReader>,
    /// The child's standard error, if that is a pipe.
    pub stderr: Option<PipeReader>,
    id: u32,
    /// How listings show the process.
    label: Box<str>,
    /// Taken by the drop.
    process: Option<process::Child>,
    status: Option<ExitStatus>,
    exit: Exit,
    kill_on_drop: bool,
}

impl Child {
    #[track_caller]
    pub(crate) fn new(
        mut process: process::Child,
        program: &str,
        kill_on_drop: bool,
    ) -> io::Result<Self> {
        let exit = match Exit::of(&process) {
            Ok(exit) => exit,
            Err(error) => {
                reaper::leave(process, true);
                return Err(error);
            }
        };
        let (stdin, stdout, stderr) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let mut child = Self {
            id: process.id(),
            label: format!("end of process {} (`{program}`)", process.id()).into(),
            stdin: None,
            stdout: None,
            stderr: None,
            process: Some(process),
            status: None,
            exit,
            // Set below; until then, an error kills the child.
            kill_on_drop: true,
        };
        child.stdin = stdin.map(|pipe| PipeWriter::from_fd(pipe.into())).transpose()?;
        child.stdout = stdout.map(|pipe| PipeReader::from_fd(pipe.into())).transpose()?;
        child.stderr = stderr.map(|pipe| PipeReader::from_fd(pipe.into())).transpose()?;
        child.kill_on_drop = kill_on_drop;
        Ok(child)
    }

    /// Uses SIGCHLD to detect the end, as on systems without process descriptors.
    #[cfg(test)]
    pub(crate) fn detect_exit_by_signal(&mut self) -> io::Result<()> {
        self.exit = Exit::by_signal()?;
        Ok(())
    }

    pub(crate) fn kill_on_drop(&mut self, kill: bool) {
        self.kill_on_drop = kill;
    }

    fn process(&mut self) -> &mut process::Child {
        self.process.as_mut().expect("only the drop takes the process")
    }

    /// The process id. After a wait for the child, another process may get the same id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits for the end of the child and returns its exit code or signal. Closes
    /// [`stdin`](Self::stdin) first, since the child may wait for its end.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake::process::Command;
    /// use std::os::unix::process::ExitStatusExt;
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let status = Command::new("make").spawn()?.wait().await?;
    /// match (status.code(), status.signal()) {
    ///     (Some(code), _) => println!("exit code {code}"),
    ///     (None, signal) => println!("ended by signal {signal:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point while the child runs. A wait that is dropped or interrupted does not
    /// affect the child, and `wait` can be called again.
    ///
    /// # Errors
    ///
    /// The interruption; the system's error, as when the process ignores SIGCHLD, so the system
    /// discards the exit status.
    ///
    /// # Panics
    ///
    /// If it has to wait outside a task of its kernel.
    #[track_caller]
    pub fn wait(&mut self) -> impl Future<Output = io::Result<ExitStatus>> {
        let place = Location::caller();
        async move {
            self.stdin = None;
            self.wait_at(place).await
        }
    }

    pub(crate) async fn wait_at(
        &mut self,
        place: &'static Location<'static>,
    ) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.exit.changed(&self.label, place).await?;
            if self.try_wait()?.is_none() && matches!(self.exit, Exit::Descriptor(_)) {
                sleep(CHECK_INTERVAL).await?;
            }
        }
    }

    /// The exit status; `None` while the child runs. Never suspends.
    ///
    /// # Errors
    ///
    /// The system's error, as for [`wait`](Self::wait).
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.process().try_wait()?;
        }
        Ok(self.status)
    }

    /// Sends SIGKILL to the child. [`wait`](Self::wait) returns its end.
    ///
    /// # Errors
    ///
    /// As for [`signal`](Self::signal).
    #[doc(alias = "start_kill")]
    pub fn kill(&mut self) -> io::Result<()> {
        self.signal(SIGKILL)
    }

    /// Sends a signal to the child.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pikake::process::Command;
    /// use pikake::signal::SIGHUP;
    ///
    /// # async fn example() -> std::io::Result<()> {
    /// let mut child = Command::new("nginx").spawn()?;
    /// child.signal(SIGHUP)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotFound`](io::ErrorKind::NotFound) if the child has ended and was waited for, since
    /// another process may have its id; otherwise the system's error.
    pub fn signal(&mut self, signal: i32) -> io::Result<()> {
        if self.status.is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the child has ended"));
        }
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("signal {signal}"));
        let signal = Signal::from_named_raw(signal).ok_or_else(invalid)?;
        let pid = Pid::from_child(self.process());
        kill_process(pid, signal)
            .map_err(|error| in_context(error.into(), || format!("signal process {pid}")))
    }

    /// Ends the child: sends SIGTERM, after the grace SIGKILL, and waits for its end.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is interrupted or dropped has sent at least SIGTERM, and
    /// the child can be waited for again.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// If it has to wait outside a task of its kernel.
    #[track_caller]
    pub fn stop(&mut self, grace: Duration) -> impl Future<Output = io::Result<ExitStatus>> {
        let place = Location::caller();
        async move {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.signal(SIGTERM)?;
            if let Ok(ended) = timeout_after(grace, self.wait_at(place)).await {
                return ended;
            }
            self.kill()?;
            self.wait_at(place).await
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        if let Some(process) = self.process.take() {
            reaper::leave(process, self.kill_on_drop);
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("id", &self.id())
            .field("status", &self.status)
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}
