//! A request as a task: told when its client has gone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body;
use pikake_traps::{Builder, Interrupted, Task, TaskError, TaskRef, WaitQueue, park};
use slab::Slab;
use tower_service::Service;

use crate::BoxError;
use crate::incoming::Incoming;
use crate::pace::Turn;
use crate::reply::Reply;

/// The reason with which a request's task is cancelled when nobody waits for its answer any more:
/// the client hung up, reset the stream, or the connection broke.
pub const CLIENT_GONE: &str = "the client has gone";

/// The name of the tasks that answer requests.
const REQUEST_NAME: &str = "http request";

/// Where a request comes from; in its extensions.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use pikake_http::Peer;
/// use std::net::SocketAddr;
///
/// fn peer<B>(request: &Request<B>) -> Option<SocketAddr> {
///     request.extensions().get().map(|Peer(address)| *address)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Peer<A>(pub A);

/// How many requests of one connection may run at a time, also those whose client did not wait for
/// the answer and which clean up. A client has no use for more, and one that asks and resets in turn
/// (the "rapid reset" of HTTP/2) would start tasks without a limit.
pub(crate) const REQUESTS: u32 = 200;

/// What a request asks for.
pub(crate) struct Line {
    method: Method,
    uri: Uri,
    /// Whether a piece of its body was asked for that has not come.
    pub(crate) awaits_body: Cell<bool>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.uri)
    }
}

/// A request whose task has not ended.
pub(crate) struct Running {
    pub(crate) task: TaskRef,
    pub(crate) line: Rc<Line>,
}

/// The requests of one connection.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) running: RefCell<Slab<Running>>,
    /// Where the connection waits for the last of them.
    ended_one: WaitQueue,
    /// How many there ever were.
    pub(crate) begun: Cell<u64>,
    pub(crate) answered: Cell<u64>,
    /// How many bodies of responses there are, and how many of them are waited for.
    pub(crate) replies: Cell<usize>,
    pub(crate) replies_due: Cell<usize>,
}

impl Requests {
    /// The tasks that run, to be told or dropped with nothing borrowed.
    pub(crate) fn tasks(&self) -> Vec<TaskRef> {
        self.running.borrow().iter().map(|(_, running)| running.task.clone()).collect()
    }

    pub(crate) fn tell(&self, reason: &str) {
        for task in self.tasks() {
            task.request_cancel(Interrupted::cancelled(reason));
        }
    }

    /// Whose turn it is.
    pub(crate) fn turn(&self) -> Turn {
        let running = self.running.borrow();
        let is_busy = |running: &Running| !running.line.awaits_body.get();
        if self.replies_due.get() > 0 || running.iter().any(|(_, running)| is_busy(running)) {
            Turn::Server
        } else if !running.is_empty() || self.replies.get() > 0 {
            Turn::Client
        } else {
            Turn::Idle
        }
    }

    /// Waits until none runs.
    pub(crate) async fn until_ended(&self) -> Result<(), Interrupted> {
        while !self.running.borrow().is_empty() {
            park(&self.ended_one).await?;
        }
        Ok(())
    }
}

/// Held by a request's task for as long as it lives, however it ends.
struct Place {
    requests: Rc<Requests>,
    key: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let ended = self.requests.running.borrow_mut().try_remove(self.key);
        drop(ended);
        self.requests.ended_one.wake(1);
    }
}

/// The service as hyper sees it: each call starts a task.
pub(crate) struct Handling<S, A> {
    pub(crate) service: S,
    pub(crate) peer: A,
    pub(crate) requests: Rc<Requests>,
}

impl<S, A, B> hyper::service::Service<Request<body::Incoming>> for Handling<S, A>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    A: Clone + Send + Sync + 'static,
    B: 'static,
{
    type Response = Response<Reply<B>>;
    type Error = BoxError;
    type Future = Answering<B, S::Error>;

    fn call(&self, request: Request<body::Incoming>) -> Self::Future {
        let requests = self.requests.clone();
        requests.begun.set(requests.begun.get() + 1);
        let line = Rc::new(Line {
            method: request.method().clone(),
            uri: request.uri().clone(),
            awaits_body: Cell::default(),
        });
        if requests.running.borrow().len() >= REQUESTS as usize {
            return Answering { task: None, requests, line };
        }
        let mut request = request.map(|body| Incoming::new(body, line.clone()));
        request.extensions_mut().insert(Peer(self.peer.clone()));
        let mut service = self.service.clone();
        let key = requests.running.borrow().vacant_key();
        let place = Place { requests: requests.clone(), key };
        let task = Builder::new().name(REQUEST_NAME).spawn(async move {
            let _place = place;
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        });
        // In a kernel that is being shut down it has ended already, and never ran.
        if !task.is_finished() {
            let running = Running { task: task.task_ref().clone(), line: line.clone() };
            requests.running.borrow_mut().insert(running);
        }
        Answering { task: Some(task), requests, line }
    }
}

/// Waits for a request's task, if there was room for one. Dropped by hyper before that has ended, it
/// tells the task that nobody wants its answer.
pub(crate) struct Answering<B, E> {
    task: Option<Task<Result<Response<B>, E>>>,
    requests: Rc<Requests>,
    line: Rc<Line>,
}

impl<B, E> Unpin for Answering<B, E> {}

impl<B, E: Into<BoxError>> Future for Answering<B, E> {
    type Output = Result<Response<Reply<B>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.task.as_mut() {
            Some(task) => Some(ready!(Pin::new(task).poll(cx))),
            None => None,
        };
        let status = match outcome {
            Some(Err(TaskError::Interrupted(interrupted))) => {
                // The connection's task is to end, and its drop of this tells the request.
                return Poll::Ready(Err(interrupted.into()));
            }
            Some(Ok(answer)) => {
                self.task = None;
                let response = answer.map_err(Into::into)?;
                self.requests.answered.set(self.requests.answered.get() + 1);
                return Poll::Ready(Ok(response.map(|body| Reply::own(body, &self.requests))));
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
        let mut response = Response::new(Reply::EMPTY);
        *response.status_mut() = status;
        Poll::Ready(Ok(response))
    }
}

impl<B, E> Drop for Answering<B, E> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.request_cancel(CLIENT_GONE);
        }
    }
}
