//! A server that a client calls: its connections, made when they are needed and again after they
//! were lost.
//!
//! ```text
//!          (1)            (2)
//!   closed ────▶ opening ────▶ open ──(4)──▶ closed
//!                 ▲    │ (3)    │ (5)
//!             (1) │    ▼        ▼
//!                 └── closed, and the server is away for a pause
//! ```
//!
//! (1) A call needs the connection ([`Endpoint::link`]), or chooses among servers
//! ([`Endpoint::probe`]): a task connects. (2) The server has said hello. (3) The server could not
//! be reached in time. (4) The connection was lost after it was of use, or the server left. (5) The
//! connection was lost before it was of use.

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
    About, Builder, CancelOnDrop, WaitQueue, deadline_after, now, park_at, random, sleep_until,
    timeout_after,
};

use crate::breaker::Breaker;
use crate::client::figures::ClientFigures;
use crate::link::{Link, LinkOptions, deadline_ahead};
use crate::packet_error::PacketError;

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

/// A server, and the connections to it.
pub(crate) struct Endpoint {
    pub(crate) peer: Rc<str>,
    connect: Connect,
    options: LinkOptions,
    /// How long an attempt to connect may take.
    connect_timeout: Duration,
    connections: Vec<Connection>,
    /// The connection that is looked at first for the next call.
    next: Cell<usize>,
    /// The last attempt failed.
    away: RefCell<Option<Away>>,
    /// The number of the last attempt.
    attempt: Cell<u64>,
    /// The attempts in a row that failed, or whose connection was of no use.
    failures: Cell<u32>,
    /// The waits for a connection.
    opened: WaitQueue,
    pub(crate) breaker: Breaker,
}

/// A connection that a server may have.
struct Connection {
    state: RefCell<State>,
    /// The calls that this client has under way.
    under_way: Cell<usize>,
}

enum State {
    Closed,
    /// A task connects, with the number of its attempt.
    Opening(u64, Option<CancelOnDrop<()>>),
    /// Since the deadline's moment the connection has lasted.
    Open(Rc<Link>, Deadline),
}

/// Why a server is away.
struct Away {
    error: PacketError,
    /// When the next attempt may begin.
    until: Deadline,
}

/// Whether calls should go to a server or a connection. The least one is the best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Condition {
    /// Nothing is known against it.
    Good,
    /// A connection is being made.
    Connecting,
    /// The last connection failed, and the next attempt may begin at the moment.
    Paused(Deadline),
}

/// A call of this client, counted at its connection while it is under way.
pub(crate) struct Counted<'a> {
    endpoint: &'a Rc<Endpoint>,
    connection: usize,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let count = &self.endpoint.connections[self.connection].under_way;
        count.set(count.get() - 1);
    }
}

impl Endpoint {
    pub(crate) fn new(
        peer: Rc<str>,
        connect: Connect,
        options: LinkOptions,
        (count, connect_timeout): (usize, Duration),
        breaker: Breaker,
    ) -> Self {
        let closed = || Connection { state: RefCell::new(State::Closed), under_way: Cell::new(0) };
        Self {
            peer,
            connect,
            options,
            connect_timeout,
            connections: (0..count).map(|_| closed()).collect(),
            next: Cell::new(0),
            away: RefCell::default(),
            attempt: Cell::new(0),
            failures: Cell::new(0),
            opened: WaitQueue::new(),
            breaker,
        }
    }

    /// The calls that this client has under way.
    pub(crate) fn under_way(&self) -> usize {
        self.connections.iter().map(|connection| connection.under_way.get()).sum()
    }

    /// Notes the end of a connection, if it has ended.
    fn refresh(&self, connection: &Connection) {
        let ended = match &*connection.state.borrow() {
            State::Open(link, proven) if !link.is_usable() => {
                let was_of_use = link.has_answered() || proven.is_due(now());
                (!was_of_use).then(|| link.failure().unwrap_or(PacketError::Disconnected))
            }
            _ => return,
        };
        match ended {
            Some(error) => self.failed(error),
            None => self.failures.set(0),
        }
        drop(connection.state.replace(State::Closed));
    }

    /// Notes a failure. Those of several attempts at the same time count once.
    fn failed(&self, error: PacketError) {
        let mut away = self.away.borrow_mut();
        if away.as_ref().is_none_or(|away| away.until.is_due(now())) {
            self.failures.set(self.failures.get().saturating_add(1));
            let until = deadline_after(pause_after(self.failures.get()));
            *away = Some(Away { error, until });
        }
    }

    /// Whether calls should go here. Makes a new connection to a server that was away, which calls
    /// need not wait for.
    pub(crate) fn probe(self: &Rc<Self>) -> Condition {
        let all = (0..self.connections.len()).map(|index| self.condition(index));
        all.min().unwrap_or(Condition::Good)
    }

    fn condition(self: &Rc<Self>, index: usize) -> Condition {
        let connection = &self.connections[index];
        self.refresh(connection);
        match &*connection.state.borrow() {
            State::Opening(..) => return Condition::Connecting,
            State::Open(..) => return Condition::Good,
            State::Closed => {}
        }
        let until = match &*self.away.borrow() {
            None => return Condition::Good,
            Some(away) => away.until,
        };
        if !until.is_due(now()) {
            return Condition::Paused(until);
        }
        // One attempt finds whether the server is back.
        if !self.connections.iter().any(Connection::is_opening) {
            self.start(index);
        }
        Condition::Connecting
    }

    /// The connection for the next call: the best one, and of equal ones that with the fewest
    /// calls.
    pub(crate) fn choose(self: &Rc<Self>) -> Counted<'_> {
        let (first, count) = (self.next.get(), self.connections.len());
        let in_turn = (first..first + count).map(|index| index % count);
        let key = |&index: &usize| (self.condition(index), self.connections[index].under_way.get());
        let connection = match count {
            1 => 0,
            _ => in_turn.min_by_key(key).unwrap_or(first),
        };
        self.next.set((connection + 1) % count);
        let under_way = &self.connections[connection].under_way;
        under_way.set(under_way.get() + 1);
        Counted { endpoint: self, connection }
    }

    /// Starts the task that connects.
    fn start(self: &Rc<Self>, index: usize) {
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
        // Before the task: a kernel that shuts down refuses tasks, and drops the attempt here.
        drop(self.connections[index].state.replace(State::Opening(number, None)));
        let task = Builder::new().name(format!("rpc: connecting to {}", self.peer));
        let spawned = task.spawn(attempt.run(opening)).cancel_on_drop();
        match &mut *self.connections[index].state.borrow_mut() {
            State::Opening(current, task) if *current == number => *task = Some(spawned),
            _ => {}
        }
    }

    fn opened(&self, number: u64, result: Result<Rc<Link>, PacketError>) {
        let is_of = |connection: &&Connection| matches!(*connection.state.borrow(), State::Opening(current, _) if current == number);
        let Some(connection) = self.connections.iter().find(is_of) else { return };
        of_kernel::<ClientFigures>().connected(result.is_ok());
        let state = match result {
            Ok(link) => {
                self.away.take();
                State::Open(link, deadline_after(LONGEST_PAUSE))
            }
            Err(error) => {
                self.failed(error);
                State::Closed
            }
        };
        drop(connection.state.replace(state));
        self.opened.wake(usize::MAX);
    }

    /// Forgets the connections, and returns them. The next call makes a new one.
    pub(crate) fn close(&self) -> Vec<Rc<Link>> {
        self.away.take();
        let states = self.connections.iter().map(|it| it.state.replace(State::Closed));
        let open = |state| match state {
            State::Open(link, _) => Some(link),
            _ => None,
        };
        states.filter_map(open).collect()
    }
}

impl Connection {
    fn is_opening(&self) -> bool {
        matches!(*self.state.borrow(), State::Opening(..))
    }
}

impl Counted<'_> {
    /// The connection, which a task makes if there is none.
    ///
    /// # Errors
    ///
    /// Why there is none; the caller's interruption.
    pub(crate) async fn link(
        &self,
        place: &'static Location<'static>,
    ) -> Result<Rc<Link>, PacketError> {
        let endpoint = self.endpoint;
        let connection = &endpoint.connections[self.connection];
        loop {
            endpoint.refresh(connection);
            if let State::Open(link, _) = &*connection.state.borrow() {
                return Ok(link.clone());
            }
            let before = endpoint.attempt.get();
            let pause = match &*endpoint.away.borrow() {
                _ if connection.is_opening() => None,
                // The pause would outlast the caller.
                Some(away) if deadline_ahead() < away.until => return Err(away.error.clone()),
                Some(away) => Some(away.until),
                None => Some(Deadline::at(now())),
            };
            if let Some(until) = pause {
                if !until.is_due(now()) {
                    sleep_until(until).await.map_err(PacketError::Interrupted)?;
                    match &*endpoint.away.borrow() {
                        // Another caller's attempt has failed since.
                        Some(away)
                            if endpoint.attempt.get() > before && !away.until.is_due(now()) =>
                        {
                            return Err(away.error.clone());
                        }
                        _ => continue,
                    }
                }
                // Another connection's attempt finds whether a server that was away is back.
                let is_away = endpoint.away.borrow().is_some();
                if !is_away || !endpoint.connections.iter().any(Connection::is_opening) {
                    endpoint.start(self.connection);
                }
            }
            if endpoint.connections.iter().any(Connection::is_opening) {
                let about = || About::new(format!("a connection to {}", endpoint.peer));
                let waited = park_at((&endpoint.opened, about), place).await;
                waited.map_err(PacketError::Interrupted)?;
            }
            match &*endpoint.away.borrow() {
                Some(away) if !connection.is_opening() => return Err(away.error.clone()),
                _ => {}
            }
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
