//! A child with a process group of its own, which is ended as a whole.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// How often something is looked at that has no event.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// How long a killed group is waited for. Where nobody reaps orphans, its zombies stay.
const REAPED: Duration = Duration::from_secs(5);

/// A child that leads a process group. The group is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Group(Child);

impl Group {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let started = command.process_group(0).spawn();
        let child =
            started.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        Ok(Self(child))
    }

    /// The child itself.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// The status of the child, once it has ended.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Ends the group: by SIGTERM, and what is left after a while by SIGKILL.
    pub(crate) fn end(&mut self, patience: Duration) {
        self.signal(Signal::TERM);
        self.wait(patience);
        self.kill();
    }

    /// Ends the group at once.
    pub(crate) fn kill(&mut self) {
        if self.is_there() {
            self.signal(Signal::KILL);
            self.wait(REAPED);
        }
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process_group(Pid::from_child(&self.0), signal);
    }

    /// Whether a process of the group is left, if only as a zombie.
    fn is_there(&mut self) -> bool {
        // A child that has ended is there until it is waited for.
        let _ = self.0.try_wait();
        test_kill_process_group(Pid::from_child(&self.0)) != Err(Errno::SRCH)
    }

    fn wait(&mut self, patience: Duration) {
        let since = Instant::now();
        while self.is_there() && since.elapsed() < patience {
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
