//! The requests of one connection: those that run, what waits for the client, and the orders that
//! follow from it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use http::{Method, Request, Uri, Version};
use pikake_traps::details::{Described, describe};
use pikake_traps::{Interrupted, TaskRef, WaitQueue, park};
use slab::Slab;

use crate::figures::ServerFigures;
use crate::pace::{Allowance, Limits, Phase};
use crate::shed::Patience;

/// How many requests of one connection may run at a time, including those that clean up after a
/// reset. Clients need no more, and without a limit, HTTP/2's "rapid reset" would start any number
/// of tasks.
pub(crate) const REQUESTS: u32 = 200;

/// The method and target of a request, and its body.
pub(crate) struct RequestLine {
    pub(crate) method: Method,
    uri: Uri,
    pub(crate) body: BodyState,
    /// The key among those that run, or [`NOT_LISTED`]. For the thread of the server.
    key: AtomicUsize,
    /// Whether the request is offered to other kernels, and nobody has begun to answer it.
    is_offered: AtomicBool,
    /// Whether this is the connection after an upgrade by the request.
    pub(crate) is_upgrade: bool,
}

/// The key of a request whose task has not had to wait.
const NOT_LISTED: usize = usize::MAX;

impl RequestLine {
    pub(crate) fn of<B>(request: &Request<B>) -> Arc<Self> {
        Self::new(request.method(), request.uri(), false)
    }

    /// The line of what follows an upgrade by the request of this line.
    pub(crate) fn upgrade_of(line: &Self) -> Arc<Self> {
        Self::new(&line.method, &line.uri, true)
    }

    fn new(method: &Method, uri: &Uri, is_upgrade: bool) -> Arc<Self> {
        Arc::new(Self {
            method: method.clone(),
            uri: uri.clone(),
            body: BodyState::default(),
            key: AtomicUsize::new(NOT_LISTED),
            is_offered: AtomicBool::new(false),
            is_upgrade,
        })
    }

    /// Method and target.
    pub(crate) fn request(&self) -> String {
        format!("{} {}", self.method, self.uri)
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn set_offered(&self, is_offered: bool) {
        self.is_offered.store(is_offered, Ordering::Relaxed);
    }
}

/// Whether somebody waits for a part of a request's body, perhaps on another thread.
#[derive(Default)]
pub(crate) struct BodyState {
    is_awaited: AtomicBool,
    /// Called when nobody waits any more.
    connection: Mutex<Option<Waker>>,
}

impl BodyState {
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        let was_awaited = self.is_awaited.swap(is_awaited, Ordering::AcqRel);
        if was_awaited && !is_awaited {
            self.connection().take().into_iter().for_each(Waker::wake);
        }
    }

    /// Whether somebody waits; the connection is then woken when nobody does any more.
    fn is_awaited_for(&self, connection: &Waker) -> bool {
        *self.connection() = Some(connection.clone());
        self.is_awaited()
    }

    fn connection(&self) -> MutexGuard<'_, Option<Waker>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upgrade = if self.is_upgrade { "upgrade " } else { "" };
        write!(f, "{upgrade}{}", self.request())
    }
}

/// A request in listings: the method and the path, which is cut. Queries may have secrets.
struct Target(Arc<RequestLine>);

/// The characters of a path in listings.
const PATH_SHOWN: usize = 100;

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.PATH_SHOWN$}", self.0.method, self.0.uri.path())
    }
}

/// A request whose task waits, or an upgrade.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) task: TaskRef,
    pub(crate) line: Arc<RequestLine>,
    _described: Option<Rc<Described>>,
}

impl Running {
    /// Whether the handler has begun, so that it sees a request to end.
    pub(crate) fn has_begun(&self) -> bool {
        self.task.was_stepped() && !self.line.is_offered.load(Ordering::Relaxed)
    }

    fn awaits_body(&self) -> bool {
        self.line.body.is_awaited()
    }
}

/// What the server wants of a connection: the connection does it in its next step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Order {
    /// To finish in a moment, or with the next request before.
    FinishSoon,
    /// To take no more requests, and to tell the client.
    Finish,
    /// To end, since the client sent no request in time.
    EndIdle,
    /// To end, since the client let a request wait.
    EndStalled,
}

/// The requests of one connection, and how much of them waits for the client.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) figures: Rc<ServerFigures>,
    /// The client's address, if there is an access log.
    pub(crate) logged_peer: Option<String>,
    pub(crate) running: RefCell<Slab<Running>>,
    /// The last request, if it has a body.
    last: RefCell<Option<Arc<RequestLine>>>,
    /// Woken when a request ends.
    ended_one: WaitQueue,
    pub(crate) answered: Cell<u64>,
    /// The upgrades that have begun.
    pub(crate) upgraded: Cell<u64>,
    pub(crate) shed: Cell<u64>,
    /// How long a request may wait that has come with the connection.
    pub(crate) patience: Cell<Option<Patience>>,
    /// Whether a request came by HTTP/2.
    pub(crate) is_http2: Cell<bool>,
    order: Cell<Option<Order>>,
    /// Whether the server is being shut down.
    pub(crate) is_shut: Cell<bool>,
    /// The reason with which the server has interrupted all requests.
    pub(crate) cancelled_for: Cell<Option<&'static str>>,
    /// The bytes read and written.
    moved: Cell<u64>,
    /// Whether the client does not read what is to be written.
    is_blocked: Cell<bool>,
    /// The bodies of responses that hyper has.
    bodies: Cell<u32>,
    /// How many of these wait for the server.
    bodies_due: Cell<u32>,
    /// The parts of bodies that hyper has and has not written.
    parts: Cell<u32>,
    /// The parts that hyper has dropped unwritten.
    parts_cut: Cell<u32>,
    /// Whether the client has caught up since the last check: it has all that the server gave, and
    /// no request waits for it.
    is_caught_up: Cell<bool>,
    /// The time that the client has left; `None` before the connection carries HTTP.
    allowance: Cell<Option<Allowance>>,
    /// No request came in time, so the connection has the order to finish.
    is_closing: Cell<bool>,
}

impl Requests {
    /// The requests of a new connection.
    pub(crate) fn new(figures: Rc<ServerFigures>, logged_peer: Option<String>) -> Self {
        Self { figures, logged_peer, ..Self::default() }
    }

    /// Gives an order, unless there is a stricter one.
    pub(crate) fn give_order(&self, order: Order) {
        self.order.set(self.order.get().max(Some(order)));
    }

    pub(crate) fn has_order(&self) -> bool {
        self.order.get().is_some()
    }

    pub(crate) fn take_order(&self) -> Option<Order> {
        self.order.take()
    }

    /// A request comes. Returns `false` if too many run.
    pub(crate) fn begin(&self, version: Version, line: &Arc<RequestLine>, has_body: bool) -> bool {
        self.is_http2.set(version == Version::HTTP_2);
        *self.last.borrow_mut() = has_body.then(|| line.clone());
        self.running.borrow().len() < REQUESTS as usize
    }

    /// Lists a request whose task waits.
    pub(crate) fn list(&self, task: TaskRef, line: &Arc<RequestLine>) {
        let described = describe(&task, || Box::new(Target(line.clone())));
        let (line_of, _described) = (line.clone(), described.map(Rc::new));
        let key = self.running.borrow_mut().insert(Running { task, line: line_of, _described });
        line.key.store(key, Ordering::Relaxed);
    }

    /// Lists the task of an upgrade, and counts it. To the server, it is a request that runs.
    pub(crate) fn list_upgrade(&self, task: TaskRef, line: &Arc<RequestLine>) {
        self.upgraded.set(self.upgraded.get() + 1);
        self.list(task, line);
    }

    /// The task of a request or an upgrade has ended.
    pub(crate) fn end(&self, line: &RequestLine) {
        let key = line.key.load(Ordering::Relaxed);
        if key != NOT_LISTED {
            let ended = self.running.borrow_mut().remove(key);
            drop(ended);
        }
        self.ended_one.wake(1);
    }

    /// The requests that run, collected so that `running` is not borrowed while they are cancelled.
    pub(crate) fn all_running(&self) -> Vec<Running> {
        self.running.borrow().iter().map(|(_, running)| running.clone()).collect()
    }

    /// Interrupts what runs. Upgrades that begin later are interrupted at their begin.
    pub(crate) fn cancel_all(&self, reason: &'static str) {
        self.cancelled_for.set(Some(reason));
        for Running { task, .. } in self.all_running() {
            task.request_cancel(Interrupted::cancelled(reason));
        }
    }

    /// Interrupts the upgrades, which nothing else ends with their connection's task.
    pub(crate) fn cancel_upgrades(&self, interrupted: &Interrupted) {
        for Running { task, line, .. } in self.all_running() {
            if line.is_upgrade {
                task.request_cancel(interrupted.clone());
            }
        }
    }

    /// For which side the connection waits.
    fn phase(&self) -> Phase {
        let running = self.running.borrow();
        let unread = self.parts.get() > 0;
        let is_blocked = self.is_blocked.get();
        let is_due = self.bodies_due.get() > 0 && !(is_blocked && unread);
        // Over HTTP/1, hyper may have copied a response and dropped its parts, and only responses
        // are written.
        let is_sending = unread || self.bodies.get() > 0 || is_blocked && !self.is_http2.get();
        if is_due || running.iter().any(|(_, running)| !running.awaits_body()) {
            Phase::AwaitsServer
        } else if !running.is_empty() || is_sending {
            Phase::AwaitsClient
        } else {
            Phase::Idle
        }
    }

    /// Whether a handler runs, or a response is being sent.
    pub(crate) fn has_any(&self) -> bool {
        !self.running.borrow().is_empty() || self.bodies.get() > 0
    }

    /// Whether the body of the last request is awaited. hyper then has parts of it, or will fail it
    /// at the end of the client's side. The connection is woken when that is over.
    pub(crate) fn awaits_last_body(&self, connection: &Waker) -> bool {
        let last = self.last.borrow();
        last.as_ref().is_some_and(|line| line.body.is_awaited_for(connection))
    }

    /// Whether a response has begun and waits for its service, and the client has all of it so far.
    pub(crate) fn awaits_body_of_service(&self) -> bool {
        self.bodies_due.get() > 0 && self.parts.get() == 0 && !self.is_blocked.get()
    }

    pub(crate) fn count_moved(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }

    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.set(is_blocked);
    }

    /// hyper gets the body of a response. Returns how many parts it has dropped unwritten so far.
    pub(crate) fn body_begins(&self) -> u32 {
        self.bodies.set(self.bodies.get() + 1);
        self.parts_cut.get()
    }

    /// A body begins or ceases to wait for the server.
    pub(crate) fn body_is_due(&self, is_due: bool) {
        let due = self.bodies_due.get();
        self.bodies_due.set(if is_due { due + 1 } else { due - 1 });
        if is_due {
            self.note_progress();
        }
    }

    /// hyper drops the body of a response, perhaps with all its parts. `cut_before` is what
    /// [`body_begins`](Self::body_begins) has returned.
    pub(crate) fn body_ends(&self, is_complete: bool, cut_before: u32) {
        self.bodies.set(self.bodies.get() - 1);
        // Over HTTP/1, hyper does not ask whether a body has more than the announced bytes, and no
        // request is reset. If a part was cut, it may have been this response's.
        let is_complete = is_complete || !self.is_http2.get();
        if is_complete && cut_before == self.parts_cut.get() {
            self.note_progress();
        }
    }

    pub(crate) fn part_begins(&self) {
        self.parts.set(self.parts.get() + 1);
    }

    /// hyper drops a part of a response, written or not.
    pub(crate) fn part_ends(&self, is_written: bool) {
        self.parts.set(self.parts.get() - 1);
        match is_written {
            true => self.note_progress(),
            false => self.parts_cut.set(self.parts_cut.get().wrapping_add(1)),
        }
    }

    /// Records that a response is sent, or that the client has all of one that goes on, unless
    /// others are not read.
    fn note_progress(&self) {
        let is_read = self.parts.get() == 0 && self.bodies.get() == self.bodies_due.get();
        if is_read && !self.is_caught_up.get() {
            let running = self.running.borrow();
            let awaits_client = running.iter().any(|(_, running)| running.awaits_body());
            self.is_caught_up.set(!awaits_client);
        }
    }

    /// The connection carries HTTP from now on.
    pub(crate) fn begin_checks(&self) {
        self.allowance.set(Some(Allowance::default()));
    }

    /// Checks whether the client has used up its time, and then gives the connection an order. The
    /// last check was an interval ago. Returns whether there is an order.
    pub(crate) fn check(&self, limits: &Limits, interval: Duration) -> bool {
        let Some(mut allowance) = self.allowance.get() else { return false };
        let is_closing = self.is_closing.get();
        // The client may answer the announcement of the end for one more interval.
        let idle = if is_closing { Some(Duration::ZERO) } else { limits.idle };
        let limits = Limits { idle, ..*limits };
        let phase = self.phase();
        let is_caught_up = self.is_caught_up.take();
        let is_over = allowance.spend(&limits, interval, phase, self.moved.get(), is_caught_up);
        self.allowance.set(Some(allowance));
        if !is_over {
            return false;
        }
        self.give_order(match phase {
            // hyper closes the connection in order, with a GOAWAY over HTTP/2.
            Phase::Idle if !is_closing => {
                self.is_closing.set(true);
                self.begin_checks();
                Order::Finish
            }
            Phase::Idle => Order::EndIdle,
            Phase::AwaitsClient | Phase::AwaitsServer => Order::EndStalled,
        });
        true
    }

    /// Waits until no request and no upgrade runs.
    pub(crate) async fn until_ended(&self) -> Result<(), Interrupted> {
        while !self.running.borrow().is_empty() {
            park(&self.ended_one).await?;
        }
        Ok(())
    }
}
