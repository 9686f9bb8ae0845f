//! A request as a task, cancelled when its client has gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

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
use crate::pace::Phase;
use crate::reply::Reply;

/// The reason with which a request's task is cancelled when its client hangs up or resets the
/// stream, or when the connection breaks.
pub const CLIENT_GONE: &str = "the client has gone";

/// The name of the tasks that answer requests.
const REQUEST_NAME: &str = "http request";

/// The client's address, in the extensions of a request.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use pikake::http::Peer;
/// use std::net::SocketAddr;
///
/// fn peer<B>(request: &Request<B>) -> Option<SocketAddr> {
///     request.extensions().get().map(|Peer(address)| *address)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Peer<A>(pub A);

/// How many requests of one connection may run at a time, including those that clean up after a
/// reset. Clients need no more, and without a limit, HTTP/2's "rapid reset" would start any number
/// of tasks.
pub(crate) const REQUESTS: u32 = 200;

/// The method and target of a request, and the state of its body.
pub(crate) struct RequestLine {
    method: Method,
    uri: Uri,
    /// Whether the handler waits for a part of the body.
    pub(crate) awaits_body: Cell<bool>,
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.uri)
    }
}

/// A request whose task has not ended.
pub(crate) struct Running {
    pub(crate) task: TaskRef,
    pub(crate) line: Rc<RequestLine>,
}

/// The requests of one connection.
pub(crate) struct Requests {
    figures: Rc<ServerFigures>,
    pub(crate) running: RefCell<Slab<Running>>,
    /// Woken when a request ends.
    ended_one: WaitQueue,
    /// How many requests have begun.
    pub(crate) begun: Cell<u64>,
    pub(crate) answered: Cell<u64>,
    /// Whether a request came by HTTP/2.
    pub(crate) is_http2: Cell<bool>,
    /// How many responses are being sent.
    pub(crate) replies: Cell<usize>,
    /// How many of these wait for the server.
    pub(crate) replies_due: Cell<usize>,
    /// Whether the client has caught up since the last check: it has all that the server gave, and
    /// no request waits for it.
    pub(crate) is_caught_up: Cell<bool>,
}

impl Requests {
    /// The requests of a new connection.
    pub(crate) fn new(figures: Rc<ServerFigures>) -> Self {
        Self {
            figures,
            running: RefCell::default(),
            ended_one: WaitQueue::default(),
            begun: Cell::default(),
            answered: Cell::default(),
            is_http2: Cell::default(),
            replies: Cell::default(),
            replies_due: Cell::default(),
            is_caught_up: Cell::default(),
        }
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
    pub(crate) fn phase(&self) -> Phase {
        let running = self.running.borrow();
        let awaits_handler = |running: &Running| !running.line.awaits_body.get();
        if self.replies_due.get() > 0 || running.iter().any(|(_, running)| awaits_handler(running))
        {
            Phase::AwaitsServer
        } else if !running.is_empty() || self.replies.get() > 0 {
            Phase::AwaitsClient
        } else {
            Phase::Idle
        }
    }

    /// Records that a response is sent, or that the client has all of one that goes on.
    pub(crate) fn note_progress(&self) {
        if self.is_caught_up.get() || self.replies.get() > self.replies_due.get() {
            return;
        }
        let running = self.running.borrow();
        let awaits_client = running.iter().any(|(_, running)| running.line.awaits_body.get());
        self.is_caught_up.set(!awaits_client);
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
    key: usize,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let ended = self.requests.running.borrow_mut().try_remove(self.key);
        drop(ended);
        self.requests.figures.task_ended();
        self.requests.ended_one.wake(1);
    }
}

/// The service for hyper: each call spawns a task.
pub(crate) struct RequestService<S, A> {
    pub(crate) service: S,
    pub(crate) peer: A,
    pub(crate) requests: Rc<Requests>,
}

impl<S, A, B> hyper::service::Service<Request<body::Incoming>> for RequestService<S, A>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    A: Clone + Send + Sync + 'static,
    B: Body + 'static,
{
    type Response = Response<Reply<B>>;
    type Error = BoxError;
    type Future = ResponseFuture<B, S::Error>;

    fn call(&self, request: Request<body::Incoming>) -> Self::Future {
        let requests = self.requests.clone();
        requests.begun.set(requests.begun.get() + 1);
        let began = requests.figures.request_began();
        requests.is_http2.set(request.version() == Version::HTTP_2);
        let line = Rc::new(RequestLine {
            method: request.method().clone(),
            uri: request.uri().clone(),
            awaits_body: Cell::default(),
        });
        if requests.running.borrow().len() >= REQUESTS as usize {
            return ResponseFuture { task: None, requests, line, began };
        }
        let mut request = request.map(|body| Incoming::new(body, line.clone()));
        request.extensions_mut().insert(Peer(self.peer.clone()));
        let mut service = self.service.clone();
        let key = requests.running.borrow().vacant_key();
        let place = RequestGuard { requests: requests.clone(), key };
        requests.figures.task_began();
        let task = Builder::new().name(REQUEST_NAME).spawn(async move {
            let _place = place;
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        });
        // A kernel that shuts down ends a spawned task at once.
        if !task.is_finished() {
            let running = Running { task: task.task_ref().clone(), line: line.clone() };
            requests.running.borrow_mut().insert(running);
        }
        ResponseFuture { task: Some(task), requests, line, began }
    }
}

/// Waits for a request's task; without a task, answers 503. If hyper drops the future early, the
/// task is cancelled.
pub(crate) struct ResponseFuture<B, E> {
    task: Option<Task<Result<Response<B>, E>>>,
    requests: Rc<Requests>,
    line: Rc<RequestLine>,
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
