//! The contract between a kernel and its outside: readiness, sockets, helper threads, names.
//!
//! A driver knows nothing of tasks. The real driver is [`MioDriver`](crate::MioDriver); a simulator
//! has its own.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

pub use pikake_traps::BlockingCall;
use pikake_traps::{
    Address, Addresses, Attempt, OpenSocket, Opened, Reply, system_random, system_thread,
};

/// The kernel's number for a registered socket. A driver returns it unchanged in its events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// The index of the socket in the kernel's table.
    pub index: u32,
    /// Distinguishes the socket from earlier sockets with the same index.
    pub generation: u32,
}

/// A change of a registered socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The socket.
    pub token: Token,
    /// An attempt to read is worthwhile.
    pub readable: bool,
    /// An attempt to write is worthwhile.
    pub writable: bool,
    /// The stream has ended: every further attempt to read succeeds or fails at once.
    pub read_ended: bool,
    /// The stream takes no more: every further attempt to write fails at once.
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
    /// The number of threads that run a closure, or are about to, even if no task waits for it any
    /// more.
    pub busy: usize,
    /// The number of threads without work.
    pub idle: usize,
    /// The number of closures that wait for a thread.
    pub waiting: usize,
}

/// The outside of a kernel. [`Attempt`] documents the meaning of each attempt.
///
/// Readiness is edge-triggered. A driver reports an event if a socket is ready at its registration.
/// A driver also reports one each time the socket becomes ready after an attempt that would have
/// blocked.
#[expect(clippy::missing_errors_doc, reason = "the errors are the system's, passed on")]
pub trait Driver {
    /// A socket. The drop closes the socket.
    type Socket;

    /// A closure for any thread that makes [`wait`](Self::wait) return.
    fn waker(&self) -> Box<dyn Fn() + Send + Sync>;

    /// Waits for events, at most for `limit` (`None`: without limit), and appends them.
    fn wait(&mut self, limit: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;

    /// Starts to report events of a socket.
    fn register(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Notes that an attempt on a registered socket would have blocked.
    fn blocked(&mut self, socket: &Self::Socket, token: Token) -> io::Result<()>;

    /// Ends the events of a socket that the kernel is about to drop.
    fn deregister(&mut self, socket: &Self::Socket);

    /// Whether, after a transfer that was shorter than asked for, the next one would block.
    fn short_means_blocked(&self, socket: &Self::Socket) -> bool;

    /// Opens a socket, or takes one over.
    fn open(&mut self, what: OpenSocket<'_>) -> io::Result<Opened<Self::Socket>>;

    /// Makes an attempt; `None`: the attempt would block.
    ///
    /// The kernel itself executes [`Attempt::IsReady`] and [`Attempt::Close`], and
    /// [`Attempt::Accept`] by [`accept`](Self::accept). A driver refuses attempts that it does not
    /// know with [`Unsupported`](io::ErrorKind::Unsupported).
    fn attempt(
        &mut self,
        socket: &Self::Socket,
        attempt: &mut Attempt<'_>,
    ) -> Option<io::Result<usize>>;

    /// Takes a connection from a listener; `None`: there is none.
    fn accept(&mut self, listener: &Self::Socket) -> Option<io::Result<(Self::Socket, Address)>>;

    /// Sets the number of closures that may run at the same time, and the time after which an idle
    /// thread ends.
    ///
    /// The builder calls this once, before the first closure. A driver without threads ignores it.
    fn limit_threads(&mut self, limit: usize, idle_exit: Duration) {
        let _ = (limit, idle_exit);
    }

    /// Sets how much longer a [`wait`](Self::wait) may last than its limit, so that timers of about
    /// the same time cost one wait.
    ///
    /// The builder calls this once, before the first wait. A driver with virtual time ignores it.
    fn set_timer_slack(&mut self, slack: Duration) {
        let _ = slack;
    }

    /// The state of the helper threads.
    fn threads(&self) -> HelperThreads {
        HelperThreads::default()
    }

    /// Starts a thread of the program's own. A driver that refuses returns the closure if it still
    /// has it.
    fn start_thread(&mut self, name: &str, life: Life) -> Result<(), (io::Error, Option<Life>)> {
        // The system drops a closure that it does not run. The drop runs the caller's code, which
        // must not happen in here.
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

    /// Queues a call for a helper thread. A driver that refuses returns the call.
    fn blocking(&mut self, call: BlockingCall) -> Result<(), BlockingCall>;

    /// Looks up a name, and replies from any thread. A driver that refuses returns a call for the
    /// caller to drop.
    fn lookup(
        &mut self,
        host: &str,
        port: u16,
        reply: Reply<Addresses>,
    ) -> Result<(), BlockingCall>;

    /// `Ok` if the driver uses the real system. A driver that simulates a system returns an error.
    fn system(&self) -> io::Result<()> {
        Ok(())
    }

    /// The time of the wall clock.
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
