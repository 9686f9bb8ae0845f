//! The processes of a worker that run CPU-bound jobs: the same program once more, a socket to each.
//!
//! A process is started when a job needs one and none is idle, up to the limit, and runs one job at
//! a time. It is killed when its job is interrupted or dropped. A job whose process is gone did not
//! end; the next process is started with back-off, so that a program which dies at its start does
//! not spin.

mod child;
mod frame;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;

use pikake_net::UnixStream;
use pikake_sync::{Semaphore, SemaphorePermit};
use pikake_traps::{Interrupted, TimedOut, shield, sleep, timeout_after};

use crate::client::app::App;
use crate::completion::Returned;
use crate::current::{CurrentJob, NextRetry};
use crate::wire::request::Request;
use crate::worker::processes::child::VARIABLE;
use crate::worker::processes::frame::{Done, HEAD, Said, What, Work, length, write};

/// The pause before a process is started after one that ended before its first job.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a process may take from its start until it can run jobs.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How often a process that runs a job is checked; its socket is closed before, nearly always.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long it may take to read the answer of a process that has ended: as much as a socket
/// buffers.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// The pause between two checks of a killed process.
const REAP_PAUSE: Duration = Duration::from_millis(1);

/// The result of a job in a process.
pub(crate) enum Ran {
    /// The job returned; and the pause that it wants before a retry.
    Returned(Returned, NextRetry),
    Panicked(String),
    WrongArguments(String),
    /// The process has ended; how.
    Killed(String),
    /// The wait was interrupted, and the process is being killed.
    Interrupted,
}

/// The worker's processes.
pub(crate) struct Processes {
    slots: Semaphore,
    idle: RefCell<Vec<Process>>,
    /// The number of processes in a row that ended before their first job.
    early_deaths: Cell<u32>,
}

impl Processes {
    pub(crate) fn new(app: &App) -> Self {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let limit = app.0.processes.get().unwrap_or_else(available);
        Self { slots: Semaphore::new(limit), idle: RefCell::default(), early_deaths: Cell::new(0) }
    }

    /// Waits until one more job may run.
    pub(crate) async fn slot(&self) -> Result<SemaphorePermit<'_>, Interrupted> {
        self.slots.acquire().await
    }

    /// A process that is ready for a job. The caller holds a slot.
    pub(crate) async fn take(&self) -> Result<Process, Ran> {
        loop {
            while let Some(mut process) = self.next_idle() {
                if process.is_alive() {
                    return Ok(process);
                }
            }
            if let Some(exponent) = self.early_deaths.get().checked_sub(1) {
                let factor = 1_u32.checked_shl(exponent).unwrap_or(u32::MAX);
                let pause = FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE);
                sleep(pause).await.map_err(|_| Ran::Interrupted)?;
            }
            let mut process = match Process::start() {
                Ok(process) => process,
                // No fault of the job, which waits for a process.
                Err(error) => {
                    self.early_deaths.set(self.early_deaths.get() + 1);
                    tracing::warn!(%error, "no worker process could be started");
                    continue;
                }
            };
            let ready = timeout_after(START_LIMIT, process.ready()).await;
            return match ready {
                Ok(Ok(())) => Ok(process),
                Ok(Err(error)) => Err(self.end(process, error).await),
                Err(TimedOut) => Err(self.end(process, io::ErrorKind::TimedOut.into()).await),
            };
        }
    }

    /// Runs a job in a process. Dropping the future kills the process.
    pub(crate) async fn run(
        &self,
        mut process: Process,
        job: &CurrentJob,
        request: &Request<'_>,
    ) -> Ran {
        match process.answer(job, request).await {
            Ok(done) => {
                self.early_deaths.set(0);
                process.has_worked = true;
                self.idle.borrow_mut().push(process);
                ran(done)
            }
            Err(error) => self.end(process, error).await,
        }
    }

    /// Kills a process that has not answered.
    async fn end(&self, process: Process, error: io::Error) -> Ran {
        if pikake_net::interruption(&error).is_some() {
            shield(process.kill()).await;
            return Ran::Interrupted;
        }
        let deaths = if process.has_worked { 0 } else { self.early_deaths.get() + 1 };
        self.early_deaths.set(deaths);
        let is_late = error.kind() == io::ErrorKind::TimedOut;
        Ran::Killed(match shield(process.kill()).await {
            _ if is_late => format!(
                "the worker process was not ready within {START_LIMIT:?}: `main` has to come to \
                 `run_worker` or `run_if_child`"
            ),
            Some(status) => describe(status),
            None => error.to_string(),
        })
    }

    /// The ids of the idle processes.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let idle = self.idle.borrow();
        idle.iter().filter_map(|process| Some(process.child.as_ref()?.id())).collect()
    }

    fn next_idle(&self) -> Option<Process> {
        self.idle.borrow_mut().pop()
    }

    /// Kills the idle processes, and waits for their end.
    pub(crate) async fn close(&self) {
        let idle = self.idle.take();
        for process in idle {
            process.kill().await;
        }
    }
}

fn ran(done: Done) -> Ran {
    match done.what {
        What::Returned(completion) => Ran::Returned(Ok(completion), done.next_retry),
        What::Failed(failed) => Ran::Returned(Err(failed), done.next_retry),
        What::Panicked(panic) => Ran::Panicked(panic),
        What::WrongArguments(why) => Ran::WrongArguments(why),
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("the worker process was ended by signal {signal}"),
        (None, Some(code)) => format!("the worker process exited with code {code}"),
        (None, None) => "the worker process ended".to_owned(),
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes")
            .field("slots", &self.slots)
            .field("idle", &self.idle.borrow().len())
            .finish_non_exhaustive()
    }
}

/// A process that runs jobs. Dropping it kills the process.
pub(crate) struct Process {
    socket: UnixStream,
    /// `None` once the process was reaped.
    child: Option<Child>,
    /// Whether a job has ended in the process.
    has_worked: bool,
}

impl Process {
    fn start() -> io::Result<Self> {
        // Both ends are close-on-exec; the child's becomes its standard input.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let socket = UnixStream::from_std(ours)?;
        let child = Command::new(this_program()?)
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        Ok(Self { socket, child: Some(child), has_worked: false })
    }

    /// Waits until the process can run jobs.
    async fn ready(&mut self) -> io::Result<()> {
        Ok(self.socket.read_exact(&mut [0]).await?)
    }

    /// Runs a job. The end of the process ends the wait, even if a child of its own holds the
    /// socket open.
    async fn answer(&mut self, job: &CurrentJob, request: &Request<'_>) -> io::Result<Done> {
        let Self { socket, child, .. } = self;
        let mut called = pin!(call(socket, job, request));
        let mut ends = pin!(async {
            while sleep(LOOK_EVERY).await.is_ok() {
                if !is_alive(child) {
                    return;
                }
            }
            // Interrupted; so is `called`, which returns that.
            pending().await
        });
        let answered = poll_fn(|cx| match called.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => ends.as_mut().poll(cx).map(|()| None),
        });
        match answered.await {
            Some(done) => done,
            // The answer may still be unread. After it comes the end, unless a child of the process
            // holds the socket.
            None => timeout_after(READ_LIMIT, called)
                .await
                .unwrap_or_else(|TimedOut| Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Whether the process still runs.
    fn is_alive(&mut self) -> bool {
        is_alive(&mut self.child)
    }

    /// Kills the process and waits for its end. Dropping the future blocks for as long as a killed
    /// process takes to end.
    async fn kill(mut self) -> Option<ExitStatus> {
        // An interruption is held until the process has ended.
        let mut held = None;
        loop {
            let child = self.child.as_mut()?;
            // Fails if the process has ended.
            drop(child.kill());
            if let Some(status) = child.try_wait().ok()? {
                self.child = None;
                return Some(status);
            }
            held = held.or(sleep(REAP_PAUSE).await.err());
        }
    }
}

/// The program that this process runs. An upgrade may have replaced or removed its file; `/proc`
/// still has it.
fn this_program() -> io::Result<PathBuf> {
    const STILL: &str = "/proc/self/exe";
    let path = std::env::current_exe()?;
    let is_gone = !path.exists() && Path::new(STILL).exists();
    Ok(if is_gone { STILL.into() } else { path })
}

/// Whether a child still runs. An error counts as its end.
fn is_alive(child: &mut Option<Child>) -> bool {
    child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
}

async fn call(
    socket: &mut UnixStream,
    job: &CurrentJob,
    request: &Request<'_>,
) -> io::Result<Done> {
    let facts = &job.facts;
    let work = Work {
        job: facts.name.to_owned(),
        id: facts.id.clone(),
        queue: facts.queue.clone(),
        root_id: facts.root_id.clone(),
        retries: facts.retries,
        max_retries: facts.max_retries,
        attempt: facts.attempt,
        replacements: facts.replacements,
        headers: facts.headers.clone(),
        sent: facts.sent.clone(),
        args: request.args.to_owned(),
        kwargs: request.kwargs.to_owned(),
    };
    socket.write_all(&write(&work)?).await?;
    loop {
        let mut head = [0; HEAD];
        socket.read_exact(&mut head).await?;
        let mut body = vec![0; length(head)?];
        socket.read_exact(&mut body).await?;
        match serde_json::from_slice(&body)? {
            Said::Progress(value) => facts.set_progress(value),
            Said::Done(done) => return Ok(done),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            // Takes a moment, after the kill; without it the process would stay a zombie.
            drop(child.wait());
        }
    }
}
