//! A request as a task, cancelled when its client has gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body;
use pikake_time::Ticks;
use pikake_traps::{Builder, Interrupted, Task, TaskError, TaskRef, WaitQueue, park};
use slab::Slab;
use tower_service::Service;

use crate::BoxError;
use crate::figures::ServerFigures;
use crate::incoming::Incoming;
use crate::pace::{Allowance, Limits, Phase};
use crate::reply::Reply;

/// The reason with which a request's task is cancelled when its client hangs up or resets the
/// stream, or when the connection breaks.
pub const CLIENT_GONE: &str = "the client has gone";

/// The name of the tasks that answer requests.
const REQUEST_NAME: &str = "http request";

/// How many requests of one connection may run at a time, including those that clean up after a
/// reset. Clients need no more, and without a limit, HTTP/2's "rapid reset" would start any number
/// of tasks.
pub(crate) const REQUESTS: u32 = 200;

/// The method and target of a request, and its body.
pub(crate) struct RequestLine {
    method: Method,
    uri: Uri,
    pub(crate) body: BodyState,
    /// The key among those that run, or [`NOT_LISTED`]. For the thread of the server.
    key: AtomicUsize,
}

/// The key of a request whose task has not had to wait.
const NOT_LISTED: usize = usize::MAX;

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
        write!(f, "{} {}", self.method, self.uri)
    }
}

/// A request whose task waits.
pub(crate) struct Running {
    task: TaskRef,
    pub(crate) line: Arc<RequestLine>,
}

impl Running {
    fn awaits_body(&self) -> bool {
        self.line.body.is_awaited()
    }
}

/// What a connection is told to do at its next step.
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

/// The requests of one connection, and what is counted of them.
#[derive(Default)]
pub(crate) struct Requests {
    figures: Rc<ServerFigures>,
    pub(crate) running: RefCell<Slab<Running>>,
    /// The last request, if it has a body.
    last: RefCell<Option<Arc<RequestLine>>>,
    /// Woken when a request ends.
    ended_one: WaitQueue,
    pub(crate) answered: Cell<u64>,
    /// Whether a request came by HTTP/2.
    pub(crate) is_http2: Cell<bool>,
    pub(crate) order: Cell<Option<Order>>,
    /// Whether the server is being shut down.
    pub(crate) is_shut: Cell<bool>,
    /// The bytes read and written.
    pub(crate) moved: Cell<u64>,
    /// Whether the client does not read what is to be written.
    pub(crate) is_blocked: Cell<bool>,
    /// The bodies of responses that hyper has.
    pub(crate) bodies: Cell<u32>,
    /// How many of these wait for the server.
    pub(crate) bodies_due: Cell<u32>,
    /// The parts of bodies that hyper has and has not written.
    pub(crate) parts: Cell<u32>,
    /// The parts that hyper has dropped unwritten.
    pub(crate) parts_cut: Cell<u32>,
    /// Whether the client has caught up since the last check: it has all that the server gave, and
    /// no request waits for it.
    is_caught_up: Cell<bool>,
    /// The time that the client has left; `None` before the connection carries HTTP.
    allowance: Cell<Option<Allowance>>,
    /// Whether the connection was told to finish since no request came in time.
    is_closing: Cell<bool>,
}

impl Requests {
    /// The requests of a new connection.
    pub(crate) fn new(figures: Rc<ServerFigures>) -> Self {
        Self { figures, ..Self::default() }
    }

    /// Gives an order, unless there is a stricter one.
    pub(crate) fn give_order(&self, order: Order) {
        self.order.set(self.order.get().max(Some(order)));
    }

    /// The tasks that run, collected so that `running` is not borrowed while they are cancelled.
    pub(crate) fn tasks(&self) -> Vec<TaskRef> {
        self.running.borrow().iter().map(|(_, running)| running.task.clone()).collect()
    }

    pub(crate) fn cancel_all(&self, reason: &str) {
        for task in self.tasks() {
            task.request_cancel(Interrupted::cancelled(reason));
        }
    }

    /// For which side the connection waits.
    fn phase(&self) -> Phase {
        let running = self.running.borrow();
        let unread = self.parts.get() > 0;
        let is_blocked = self.is_blocked.get();
        let is_due = self.bodies_due.get() > 0 && !(is_blocked && unread);
        // What hyper has copied and not written is a response over HTTP/1.
        let is_sending = unread || self.bodies.get() > 0 || is_blocked && !self.is_http2.get();
        if is_due || running.iter().any(|(_, running)| !running.awaits_body()) {
            Phase::AwaitsServer
        } else if !running.is_empty() || is_sending {
            Phase::AwaitsClient
        } else {
            Phase::Idle
        }
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

    /// Records that a response is sent, or that the client has all of one that goes on, unless
    /// others are not read.
    pub(crate) fn note_progress(&self) {
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
        // A client that was told that the connection ends has one more interval.
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

    /// Waits until no request runs.
    pub(crate) async fn until_ended(&self) -> Result<(), Interrupted> {
        while !self.running.borrow().is_empty() {
            park(&self.ended_one).await?;
        }
        Ok(())
    }
}

/// Removes a request from the running ones on drop.
struct RequestGuard {
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let key = self.line.key.load(Ordering::Relaxed);
        if key != NOT_LISTED {
            let ended = self.requests.running.borrow_mut().remove(key);
            drop(ended);
        }
        self.requests.figures.task_ended();
        self.requests.ended_one.wake(1);
    }
}

/// The service for hyper: each call spawns a task, which begins at once.
pub(crate) struct RequestService<S> {
    pub(crate) service: S,
    pub(crate) requests: Rc<Requests>,
}

impl<S, B> hyper::service::Service<Request<body::Incoming>> for RequestService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
{
    type Response = Response<Reply<B>>;
    type Error = BoxError;
    type Future = ResponseFuture<B, S::Error>;

    fn call(&self, request: Request<body::Incoming>) -> Self::Future {
        let requests = self.requests.clone();
        let began = requests.figures.request_began();
        requests.is_http2.set(request.version() == Version::HTTP_2);
        let line = Arc::new(RequestLine {
            method: request.method().clone(),
            uri: request.uri().clone(),
            body: BodyState::default(),
            key: AtomicUsize::new(NOT_LISTED),
        });
        *requests.last.borrow_mut() = (!request.body().is_end_stream()).then(|| line.clone());
        if requests.running.borrow().len() >= REQUESTS as usize {
            return ResponseFuture { task: None, requests, line, began };
        }
        let mut task = Builder::new();
        if requests.is_shut.get() {
            // The client learns of the shutdown before it has the answer.
            requests.give_order(Order::Finish);
        } else {
            task = task.eager();
        }
        requests.figures.task_began();
        let place = RequestGuard { requests: requests.clone(), line: line.clone() };
        let request = request.map(|body| Incoming::new(body, &line));
        let mut service = self.service.clone();
        let task = task.spawn(async move {
            let _place = place;
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        });
        if !task.is_finished() {
            task.task_ref().set_name(REQUEST_NAME);
            let running = Running { task: task.task_ref().clone(), line: line.clone() };
            line.key.store(requests.running.borrow_mut().insert(running), Ordering::Relaxed);
        }
        ResponseFuture { task: Some(task), requests, line, began }
    }
}

/// Waits for a request's task; without a task, answers 503. If hyper drops the future early, the
/// task is cancelled.
pub(crate) struct ResponseFuture<B, E> {
    task: Option<Task<Result<Response<B>, E>>>,
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
    /// When the request has begun, if it is timed.
    began: Option<Ticks>,
}

impl<B, E> Unpin for ResponseFuture<B, E> {}

impl<B: Body, E: Into<BoxError>> Future for ResponseFuture<B, E> {
    type Output = Result<Response<Reply<B>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.task.as_mut() {
            Some(task) => Some(ready!(Pin::new(task).poll(cx))),
            None => None,
        };
        let status = match outcome {
            Some(Err(TaskError::Interrupted(interrupted))) => {
                // The connection's task is interrupted: it drops this future, which cancels the
                // request.
                return Poll::Ready(Err(interrupted.into()));
            }
            Some(Ok(answer)) => {
                self.task = None;
                let response = answer.map_err(|error| {
                    self.requests.figures.left_unanswered();
                    error.into()
                })?;
                self.requests.figures.responded(response.status(), self.began);
                self.requests.answered.set(self.requests.answered.get() + 1);
                return Poll::Ready(Ok(Reply::own(response, &self.line.method, &self.requests)));
            }
            Some(Err(error @ TaskError::Panicked(_))) => {
                tracing::error!(request = %self.line, %error, "a request's handler panicked");
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Some(Err(_)) => StatusCode::SERVICE_UNAVAILABLE,
            None => {
                tracing::debug!(request = %self.line, "too many requests on one connection");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        self.task = None;
        self.requests.figures.responded(status, self.began);
        Poll::Ready(Ok(Reply::empty(status, &self.requests)))
    }
}

impl<B, E> Drop for ResponseFuture<B, E> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.request_cancel(CLIENT_GONE);
            self.requests.figures.left_unanswered();
        }
    }
}
