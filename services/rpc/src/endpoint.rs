//! A server that a client calls: its connection, made when it is needed and again after it was lost.
//!
//! ```text
//!          (1)            (2)
//!   closed ────▶ opening ────▶ open ──(4)──▶ closed
//!                 ▲    │ (3)    │ (5)
//!             (1) │    ▼        ▼
//!                 └── failed, with a pause
//! ```
//!
//! (1) A call needs the connection ([`Endpoint::link`]), or chooses among servers ([`Endpoint::probe`]): a task connects.
//! (2) The server has said hello. (3) The server could not be reached in time. (4) The connection was lost after it was of
//! use, or the server left. (5) The connection was lost before it was of use.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::figures::of_kernel;
use pikake_traps::{
    About, Builder, CancelOnDrop, WaitQueue, deadline_after, now, random, sleep_until,
    timeout_after,
};

use crate::breaker::Breaker;
use crate::client::figures::ClientFigures;
use crate::link::{Link, LinkOptions, deadline_ahead};
use crate::packet_error::PacketError;
use crate::signal::signal;

/// Connects to a server, and says hello.
pub(crate) type Connect = Rc<dyn Fn(LinkOptions) -> Opening>;
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Rc<Link>, PacketError>>>>;

/// The pause after the first failure, which an overload of the server also lasts at least.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// A server that is back is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause after `failures` in a row, of which up to half is left out at random.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
    let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
    pause.mul_f64(0.5 + random::f64() / 2.0)
}

/// A server, and the connection to it.
pub(crate) struct Endpoint {
    pub(crate) peer: Rc<str>,
    connect: Connect,
    options: LinkOptions,
    /// How long an attempt to connect may take.
    connect_timeout: Duration,
    state: RefCell<State>,
    /// The number of the last attempt.
    attempt: Cell<u64>,
    /// The attempts in a row that failed, or whose connection was of no use.
    failures: Cell<u32>,
    /// The waits for a connection.
    opened: WaitQueue,
    pub(crate) breaker: Breaker,
    /// The calls that this client has under way.
    pub(crate) under_way: Cell<usize>,
}

enum State {
    Closed,
    /// A task connects.
    Opening {
        _task: CancelOnDrop<()>,
    },
    /// Since the deadline's moment the connection has lasted.
    Open(Rc<Link>, Deadline),
    /// The last attempt failed; the next may begin at the moment.
    Failed(PacketError, Deadline),
}

/// Whether calls should go to a server, the better the less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Condition {
    /// Nothing is known against it.
    Good,
    /// A connection is being made.
    Connecting,
    /// The last connection failed, and the next attempt may begin at the moment.
    Paused(Deadline),
}

impl Endpoint {
    pub(crate) fn new(
        peer: Rc<str>,
        connect: Connect,
        options: LinkOptions,
        connect_timeout: Duration,
        breaker: Breaker,
    ) -> Self {
        Self {
            peer,
            connect,
            options,
            connect_timeout,
            state: RefCell::new(State::Closed),
            attempt: Cell::new(0),
            failures: Cell::new(0),
            opened: WaitQueue::new(),
            breaker,
            under_way: Cell::new(0),
        }
    }

    /// Notes the end of the connection, if it has ended.
    fn refresh(&self) {
        let ended = match &*self.state.borrow() {
            State::Open(link, proven) if !link.is_usable() => {
                let was_of_use = link.has_answered() || proven.is_due(now());
                (!was_of_use).then(|| link.failure().unwrap_or(PacketError::Disconnected))
            }
            _ => return,
        };
        let state = match ended {
            Some(error) => self.failed(error),
            None => {
                self.failures.set(0);
                State::Closed
            }
        };
        drop(self.state.replace(state));
    }

    fn failed(&self, error: PacketError) -> State {
        self.failures.set(self.failures.get().saturating_add(1));
        State::Failed(error, deadline_after(pause_after(self.failures.get())))
    }

    /// Whether calls should go here. Makes a new connection to a server that was away, which calls need not wait for.
    pub(crate) fn probe(self: &Rc<Self>) -> Condition {
        self.refresh();
        let until = match &*self.state.borrow() {
            State::Opening { .. } => return Condition::Connecting,
            State::Failed(_, until) => *until,
            _ => return Condition::Good,
        };
        if !until.is_due(now()) {
            return Condition::Paused(until);
        }
        self.start();
        Condition::Connecting
    }

    /// The connection, which a task makes if there is none.
    ///
    /// # Errors
    ///
    /// Why there is none; the caller's interruption.
    pub(crate) async fn link(
        self: &Rc<Self>,
        place: &'static Location<'static>,
    ) -> Result<Rc<Link>, PacketError> {
        loop {
            self.refresh();
            let paused = match &*self.state.borrow() {
                State::Open(link, _) => return Ok(link.clone()),
                State::Opening { .. } => None,
                // The pause would outlast the caller.
                State::Failed(error, until) if deadline_ahead() < *until => {
                    return Err(error.clone());
                }
                State::Failed(_, until) => Some(*until),
                State::Closed => Some(Deadline::at(now())),
            };
            if let Some(until) = paused {
                if !until.is_due(now()) {
                    let before = self.attempt.get();
                    sleep_until(until).await.map_err(PacketError::Interrupted)?;
                    match &*self.state.borrow() {
                        // Another caller's attempt has failed since.
                        State::Failed(error, _) if self.attempt.get() > before => {
                            return Err(error.clone());
                        }
                        _ => continue,
                    }
                }
                self.start();
            }
            let about = || About::new(format!("a connection to {}", self.peer));
            signal(&self.opened, place, about).await.map_err(PacketError::Interrupted)?;
            if let State::Failed(error, _) = &*self.state.borrow() {
                return Err(error.clone());
            }
        }
    }

    /// Starts the task that connects.
    fn start(self: &Rc<Self>) {
        let number = self.attempt.get() + 1;
        self.attempt.set(number);
        let attempt = Attempt { endpoint: Rc::downgrade(self), number, is_done: false };
        let (connect, options, limit) =
            (self.connect.clone(), self.options.clone(), self.connect_timeout);
        let opening = async move {
            match timeout_after(limit, connect(options)).await {
                Ok(opened) => opened,
                Err(_) => {
                    let text = format!("no connection within {limit:?}");
                    Err(io::Error::new(io::ErrorKind::TimedOut, text).into())
                }
            }
        };
        let task = Builder::new().name(format!("rpc: connecting to {}", self.peer));
        let task = task.spawn(attempt.run(opening)).cancel_on_drop();
        drop(self.state.replace(State::Opening { _task: task }));
    }

    fn opened(&self, number: u64, result: Result<Rc<Link>, PacketError>) {
        let is_current = matches!(&*self.state.borrow(), State::Opening { .. });
        if !is_current || self.attempt.get() != number {
            return;
        }
        of_kernel::<ClientFigures>().connected(result.is_ok());
        let state = match result {
            Ok(link) => State::Open(link, deadline_after(LONGEST_PAUSE)),
            Err(error) => self.failed(error),
        };
        drop(self.state.replace(state));
        self.opened.wake(usize::MAX);
    }

    /// Forgets the connection, and returns it. The next call makes a new one.
    pub(crate) fn close(&self) -> Option<Rc<Link>> {
        match self.state.replace(State::Closed) {
            State::Open(link, _) => Some(link),
            _ => None,
        }
    }
}

/// The task that connects. Its drop, as by a panic or at the kernel's shutdown, is a failure.
struct Attempt {
    endpoint: Weak<Endpoint>,
    number: u64,
    is_done: bool,
}

impl Attempt {
    async fn run(mut self, opening: impl Future<Output = Result<Rc<Link>, PacketError>>) {
        let result = opening.await.map_err(|error| match error {
            // Of this task, not of those that wait.
            PacketError::Interrupted(_) => PacketError::Disconnected,
            error => error,
        });
        self.is_done = true;
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.opened(self.number, result);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.upgrade().filter(|_| !self.is_done) {
            endpoint.opened(self.number, Err(PacketError::Disconnected));
        }
    }
}
