//! The other side of `processes.rs`: what a process does that a worker has started to run jobs.
//!
//! Its standard input is the socket to the worker. A thread of its own reads it, so that the end of
//! the worker ends the process at once, also in the middle of a job. Signals that mean the worker
//! do not end it: a terminal sends Ctrl-C to all processes of a group, a service manager its stop
//! to all of a service, and the worker is to have its grace.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::client::app::App;
use crate::current::{Current, CurrentJob, Facts, NextRetry, OnProgress};
use crate::job::Runner;
use crate::worker::body::fence;
use crate::worker::processes::frame::{Done, HEAD, Said, What, Work, length, write};

/// Set for a process that is to run jobs, to the id of the process that started it: what that one
/// starts in turn is none.
pub(crate) const VARIABLE: &str = "PIKAKE_JOBS_CHILD_OF";

/// Exit codes: the worker is gone; it could not be talked to.
const WORKER_GONE: i32 = 0;
const NO_WORKER: i32 = 3;

impl App {
    /// Runs the jobs marked `process`, if this process was started for that by a worker of the same
    /// program, and never returns then. Else it does nothing.
    ///
    /// [`Worker::run`](crate::Worker::run) calls it. A program that does something else before its
    /// worker runs, as sending jobs, calls it first.
    pub fn run_if_child(&self) {
        let Some(parent) = std::env::var_os(VARIABLE) else { return };
        if parent.to_str().and_then(|id| id.parse().ok()) != Some(parent_id()) {
            // What a child starts has its variable, and no worker's socket. A child whose worker
            // died before this line has it: it must not become a worker itself.
            if is_socket(io::stdin()) {
                std::process::exit(WORKER_GONE);
            }
            return;
        }
        let code = match answer(self) {
            Ok(()) => WORKER_GONE,
            Err(error) => {
                eprintln!("a worker process for jobs cannot go on: {error}");
                NO_WORKER
            }
        };
        std::process::exit(code);
    }
}

fn is_socket(descriptor: impl AsFd) -> bool {
    let file = descriptor.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|data| data.file_type().is_socket())
}

fn answer(app: &App) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // A handler that does nothing, not to be ignored: that would go on to what a job starts.
        flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Jobs that read from standard input find its end.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    // It is ready.
    socket.write_all(&[0])?;
    let mut reader = socket.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("pikake-jobs-parent".into()).spawn(move || {
        while let Ok(work) = read(&mut reader) {
            if sender.send(work).is_err() {
                return;
            }
        }
        std::process::exit(WORKER_GONE);
    })?;
    // The number of the job that runs, and where its progress and its end go, one frame at a time.
    let said = Arc::new(Mutex::new((0_u64, socket)));
    while let Ok(work) = receiver.recv() {
        let (number, teller) = (lock(&said).0, said.clone());
        let on_progress = OnProgress::new(move |value| {
            let Ok(frame) = write(&Said::Progress(value.clone())) else { return };
            let mut said = lock(&teller);
            // A thread that a job has left behind tells of nobody's progress.
            if said.0 == number {
                // A worker that is gone ends this process.
                let _gone = said.1.write_all(&frame);
            }
        });
        let frame = write(&Said::Done(run(app, work, on_progress)))?;
        let mut said = lock(&said);
        said.0 += 1;
        said.1.write_all(&frame)?;
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(reader: &mut UnixStream) -> io::Result<Work> {
    let mut head = [0; HEAD];
    reader.read_exact(&mut head)?;
    let mut body = vec![0; length(head)?];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

fn run(app: &App, work: Work, on_progress: OnProgress) -> Done {
    let job = app.0.jobs.borrow().get(work.job.as_str()).cloned();
    let Some(job) = job else {
        let what = format!("no job `{}` is registered in the worker process", work.job);
        return Done { what: What::WrongArguments(what), next_retry: NextRetry::default() };
    };
    let Runner::Process(read) = job.definition.runner else {
        let what = format!("the job `{}` is not marked `process`", work.job);
        return Done { what: What::WrongArguments(what), next_retry: NextRetry::default() };
    };
    let facts = Arc::new(Facts {
        id: work.id,
        name: job.definition.name,
        queue: work.queue,
        root_id: work.root_id,
        retries: work.retries,
        max_retries: work.max_retries,
        attempt: work.attempt,
        replacements: work.replacements,
        headers: work.headers,
        sent: work.sent,
        on_progress: Some(on_progress),
        ..Facts::default()
    });
    let current = CurrentJob { facts, cancel: None };
    let ran =
        fence(Current::Job(current.clone()), || read(&work.args, &work.kwargs).map(|run| run()));
    let what = match ran {
        Ok(Ok(Ok(completion))) => What::Returned(completion),
        Ok(Ok(Err(failed))) => What::Failed(failed),
        Ok(Err(wrong)) => What::WrongArguments(wrong.to_string()),
        Err(panic) => What::Panicked(panic),
    };
    Done { what, next_retry: current.facts.next_retry().clone() }
}
