//! What the kernel asks of the outside: readiness, sockets, helper threads, names.
//!
//! A driver knows nothing of tasks. The real one is [`MioDriver`](crate::MioDriver); a simulator
//! brings its own.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

pub use pikake_traps::Job;
use pikake_traps::{
    Addresses, Attempt, Done, OpenSocket, Opened, Reply, system_random, system_thread,
};

/// The kernel's number for a registered socket. A driver gives it back unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// Where the kernel keeps the socket.
    pub index: u32,
    /// Tells it from the sockets that were kept there before.
    pub generation: u32,
}

/// Something became of a registered socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Which socket.
    pub token: Token,
    /// An attempt to read is worthwhile.
    pub readable: bool,
    /// An attempt to write is worthwhile.
    pub writable: bool,
    /// No more will come to read: every further attempt succeeds or fails at once.
    pub read_ended: bool,
    /// Nothing can be written any more: every further attempt fails at once.
    pub write_ended: bool,
}

/// The closure that a thread runs.
pub type Life = Box<dyn FnOnce() + Send>;

/// The state of a kernel's helper threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HelperThreads {
    /// The number of threads that may exist at the same time.
    pub limit: usize,
    /// The number of threads that run a closure, or are about to, even if no task waits for it any more.
    pub busy: usize,
    /// The number of threads without work.
    pub idle: usize,
    /// The number of closures that wait for a thread.
    pub waiting: usize,
}

/// The outside of a kernel. See [`Attempt`] for what each attempt means.
///
/// Readiness is edge-triggered: after a socket is registered, an event is reported if it is ready
/// at that time, and another one each time it becomes ready again after an attempt would have
/// blocked.
#[expect(clippy::missing_errors_doc, reason = "they are the system's, passed on")]
pub trait Driver {
    /// What a socket is. Dropping it closes it.
    type Socket;

    /// Something that brings the driver out of [`wait`](Self::wait), called on any thread.
    fn waker(&self) -> Box<dyn Fn() + Send + Sync>;

    /// Waits for events, at most so long (`None`: without limit), and appends them.
    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;

    /// Starts to report events of a socket.
    fn register(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Tells that an attempt on a registered socket would have blocked.
    fn blocked(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Stops to report events of a socket that is about to be dropped.
    fn deregister(&mut self, socket: &Self::Socket);

    /// Whether a transfer shorter than asked for says that the next one would block.
    fn short_means_blocked(&self, socket: &Self::Socket) -> bool;

    /// Opens a socket, or takes one over.
    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<Self::Socket>>;

    /// Attempts something; `None`: it would block. [`Attempt::IsReady`] and [`Attempt::Close`] do not
    /// come here. What a driver does not have it refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    fn attempt(
        &mut self,
        socket: &Self::Socket,
        attempt: Attempt<'_>,
    ) -> Option<io::Result<Done<Self::Socket>>>;

    /// Says how many closures may run at the same time, and how long an idle thread is kept. Called
    /// once, before the first closure. A driver without threads has no use for it.
    fn limit_threads(&mut self, limit: usize, idle_exit: Duration) {
        let _ = (limit, idle_exit);
    }

    /// What the helper threads are doing.
    fn threads(&self) -> HelperThreads {
        HelperThreads::default()
    }

    /// Starts a thread of the program's own. A closure that is not run comes back, as far as it is
    /// there still.
    fn start_thread(&mut self, name: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        // The system drops what it does not run, and this is the caller's code.
        let kept = Arc::new(Mutex::new(Some(life)));
        let taken = kept.clone();
        let take =
            |kept: &Mutex<Option<Life>>| kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let run = move || {
            if let Some(life) = take(&taken) {
                life();
            }
        };
        system_thread(name, Box::new(run)).map_err(|error| (error, take(&kept)))
    }

    /// Runs a job on a helper thread, or has it wait its turn. One that cannot be run comes back.
    fn blocking(&mut self, job: Job) -> Result<(), Job>;

    /// Looks a name up and replies, from any thread. What cannot be started comes back as a job
    /// that the caller drops.
    fn lookup(&mut self, host: &str, port: u16, reply: Reply<Addresses>) -> Result<(), Job>;

    /// Whether the system is the outside; a driver that simulates one refuses.
    fn system(&self) -> io::Result<()> {
        Ok(())
    }

    /// What the wall clock shows.
    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Fills a buffer with random bytes.
    fn random(&mut self, to: &mut [u8]) {
        system_random(to);
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}
