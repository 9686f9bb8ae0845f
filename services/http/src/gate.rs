//! A listener that a shutdown closes, and the server's list of connections.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use pikake_net::Listener;
use pikake_traps::{Interrupted, TaskRef, TimedOut, WaitQueue, figures, park, timeout_after};
use slab::Slab;

use crate::figures::ServerFigures;
use crate::pace::Limits;
use crate::requests::{Order, Requests};
use crate::shed::Patience;

/// An open connection.
pub(crate) struct OpenConnection {
    pub(crate) task: TaskRef,
    pub(crate) peer: String,
    pub(crate) requests: Rc<Requests>,
}

/// The state that the accept loop, the connections and the server's future share.
pub(crate) struct Gate {
    shut: Cell<bool>,
    /// Whether the connections are dropped, so that none may begin.
    over: Cell<bool>,
    /// Whether the accept loop waits for a connection, not for room.
    accepting: Cell<bool>,
    /// The tasks that wait for the shutdown.
    waiters: WaitQueue,
    /// Woken by the first connection after a time without one, and when the gate is dropped.
    watch: Rc<WaitQueue>,
    pub(crate) open: RefCell<Slab<OpenConnection>>,
    pub(crate) answered: Cell<u64>,
    pub(crate) upgraded: Cell<u64>,
    pub(crate) shed: Cell<u64>,
    pub(crate) figures: Rc<ServerFigures>,
    /// Whether there is an access log.
    pub(crate) logs: bool,
    /// How late a request may begin; `None`: at will.
    late_limit: Option<Duration>,
}

impl Gate {
    /// The state of a server of the current kernel.
    pub(crate) fn new(logs: bool, late_limit: Option<Duration>) -> Self {
        Self {
            shut: Cell::default(),
            over: Cell::default(),
            accepting: Cell::default(),
            waiters: WaitQueue::default(),
            watch: Rc::default(),
            open: RefCell::default(),
            answered: Cell::default(),
            upgraded: Cell::default(),
            shed: Cell::default(),
            figures: figures::of_kernel(),
            logs,
            late_limit,
        }
    }

    /// Starts the shutdown: only connections in the backlog are accepted, and those that have a
    /// request take no more.
    ///
    /// A client may have sent a request that has not arrived. Over HTTP/1 the end of an idle
    /// connection would leave that request without an answer. Over HTTP/2 many clients fail the
    /// requests that they have prepared when they read of the end, and they prepare requests when
    /// they read answers. So other connections go on for a moment.
    pub(crate) fn shut(&self) {
        self.shut.set(true);
        self.waiters.wake(usize::MAX);
        self.give_orders(|requests| {
            requests.is_shut.set(true);
            requests.give_order(match requests.running.borrow().is_empty() {
                true => Order::FinishSoon,
                false => Order::Finish,
            });
            true
        });
    }

    /// Lists a connection, and returns its key.
    pub(crate) fn list(&self, connection: OpenConnection) -> usize {
        let mut open = self.open.borrow_mut();
        if open.is_empty() {
            self.watch.wake(1);
        }
        open.insert(connection)
    }

    /// Lets `order` give orders, and wakes the connections for which it returns `true`.
    fn give_orders(&self, order: impl Fn(&Requests) -> bool) {
        let open = self.open.borrow();
        let ordered = open.iter().filter(|(_, open)| order(&open.requests));
        let tasks: Vec<_> = ordered.map(|(_, open)| open.task.waker()).collect();
        drop(open);
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Ends the accept loop at once, and connections that it has accepted and that have not begun.
    pub(crate) fn end_accepting(&self) {
        self.over.set(true);
        self.waiters.wake(usize::MAX);
    }

    /// For [`watch`].
    pub(crate) fn watch(&self) -> Rc<WaitQueue> {
        self.watch.clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.get()
    }

    pub(crate) fn is_accepting(&self) -> bool {
        self.accepting.get()
    }

    /// Waits until the gate is shut.
    pub(crate) async fn until_shut(&self) -> Result<(), Interrupted> {
        self.until(&self.shut).await
    }

    async fn until(&self, flag: &Cell<bool>) -> Result<(), Interrupted> {
        while !flag.get() {
            park(&self.waiters).await?;
        }
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.watch.wake(1);
    }
}

/// Ends connections whose clients have used up their time, for as long as there is the server or
/// one of its connections. There is no timer without a connection.
pub(crate) async fn watch(
    gate: Weak<Gate>,
    changed: Rc<WaitQueue>,
    limits: Limits,
    interval: Duration,
) {
    loop {
        let Some(is_idle) = gate.upgrade().map(|gate| gate.open.borrow().is_empty()) else {
            return;
        };
        let changed = park(&changed);
        let waited = match is_idle {
            true => Ok(changed.await),
            false => timeout_after(interval, changed).await,
        };
        match (waited, gate.upgrade()) {
            (Err(TimedOut { .. }), Some(gate)) => {
                gate.give_orders(|requests| requests.check(&limits, interval));
            }
            (Ok(Ok(())), Some(_)) => {}
            _ => return,
        }
    }
}

/// A connection, and how long a request that has come with it may wait for the connection's task.
pub(crate) struct Accepted<C>(pub(crate) C, pub(crate) Option<Patience>);

/// A listener that is closed when the gate is shut, so that new clients are refused. Connections in
/// its backlog are accepted before.
pub(crate) struct Gated<L> {
    pub(crate) open: Rc<RefCell<Option<Rc<L>>>>,
    gate: Rc<Gate>,
    connections: usize,
    /// How many more connections are accepted since the gate was shut: the room that there was
    /// then.
    late: Cell<Option<usize>>,
}

impl<L> Gated<L> {
    pub(crate) fn new(listener: L, connections: usize, gate: Rc<Gate>) -> Self {
        let open = Rc::new(RefCell::new(Some(Rc::new(listener))));
        Self { open, gate, connections, late: Cell::default() }
    }

    /// How many more connections may be accepted; `None`: no limit.
    fn room(&self) -> Option<usize> {
        if !self.gate.is_shut() {
            return None;
        }
        let free = || self.connections.saturating_sub(self.gate.open.borrow().len());
        let room = self.late.get().unwrap_or_else(free);
        self.late.set(Some(room));
        Some(room)
    }
}

/// Clears a flag on drop.
struct ClearOnDrop<'a>(&'a Cell<bool>);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The error of `accept` once the gate is shut.
#[derive(Debug)]
pub(crate) struct ShuttingDown;

impl fmt::Display for ShuttingDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server is being shut down")
    }
}

impl std::error::Error for ShuttingDown {}

/// The result of `accepting`; `None` if `ended` completes before.
async fn unless<T>(
    ended: impl Future<Output = Result<(), Interrupted>>,
    accepting: impl Future<Output = io::Result<Option<T>>>,
) -> io::Result<Option<T>> {
    let (mut ended, mut accepting) = (pin!(ended), pin!(accepting));
    poll_fn(|cx| {
        if let Poll::Ready(accepted) = accepting.as_mut().poll(cx) {
            return Poll::Ready(accepted);
        }
        ended.as_mut().poll(cx).map(|ended| ended.map(|()| None).map_err(io::Error::from))
    })
    .await
}

impl<L: Listener> Listener for Gated<L> {
    type Connection = Accepted<L::Connection>;
    type Address = L::Address;

    async fn accept(&self) -> io::Result<(Accepted<L::Connection>, L::Address)> {
        let Self { open, gate, .. } = self;
        let was_shut = gate.is_shut();
        let listener = open.borrow().clone().filter(|_| self.room() != Some(0));
        let accepted = match listener {
            Some(listener) => {
                gate.accepting.set(true);
                let _unset = ClearOnDrop(&gate.accepting);
                match was_shut {
                    true => unless(gate.until(&gate.over), listener.accept_backlog()).await?,
                    false => {
                        let accepting = async { listener.accept().await.map(Some) };
                        unless(gate.until_shut(), accepting).await?
                    }
                }
            }
            None => None,
        };
        match accepted {
            Some((connection, peer)) => {
                if let Some(room) = self.room() {
                    self.late.set(Some(room.saturating_sub(1)));
                }
                Ok((Accepted(connection, Patience::begin_before_step(gate.late_limit)), peer))
            }
            // The gate was shut during this call: accept again, for the backlog.
            None if !was_shut => Box::pin(self.accept()).await,
            None => {
                drop(open.take());
                Err(io::Error::other(ShuttingDown))
            }
        }
    }
}
