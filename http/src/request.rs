//! A request as a task: told when its client has gone.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use pikake_traps::{Builder, Interrupted, Task, TaskError, TaskRef};
use slab::Slab;
use tower_service::Service;

use crate::BoxError;
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

/// A request that is being answered.
pub(crate) struct Running {
    pub(crate) task: TaskRef,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
}

/// The requests of one connection.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) running: RefCell<Slab<Running>>,
    /// Whether there ever was one.
    pub(crate) seen: Cell<bool>,
    pub(crate) answered: Cell<u64>,
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
}

/// The service as hyper sees it: each call starts a task.
pub(crate) struct Handling<S, A> {
    pub(crate) service: S,
    pub(crate) peer: A,
    pub(crate) requests: Rc<Requests>,
}

impl<S, A, B> hyper::service::Service<Request<Incoming>> for Handling<S, A>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    A: Clone + Send + Sync + 'static,
    B: 'static,
{
    type Response = Response<Reply<B>>;
    type Error = BoxError;
    type Future = Answering<B, S::Error>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.requests.seen.set(true);
        let (method, uri) = (request.method().clone(), request.uri().clone());
        request.extensions_mut().insert(Peer(self.peer.clone()));
        let mut service = self.service.clone();
        let task = Builder::new().name(REQUEST_NAME).spawn(async move {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        });
        let running = Running { task: task.task_ref().clone(), method, uri };
        let key = self.requests.running.borrow_mut().insert(running);
        Answering { task: Some(task), requests: self.requests.clone(), key, body: PhantomData }
    }
}

/// Waits for a request's task. Dropped by hyper before that has ended, it tells the task that nobody
/// wants its answer.
pub(crate) struct Answering<B, E> {
    task: Option<Task<Result<Response<B>, E>>>,
    requests: Rc<Requests>,
    key: usize,
    body: PhantomData<B>,
}

impl<B, E> Unpin for Answering<B, E> {}

impl<B, E> Answering<B, E> {
    fn end(&mut self) -> Option<Task<Result<Response<B>, E>>> {
        let task = self.task.take()?;
        let ended = self.requests.running.borrow_mut().remove(self.key);
        drop(ended);
        Some(task)
    }
}

impl<B, E: Into<BoxError>> Future for Answering<B, E> {
    type Output = Result<Response<Reply<B>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.task.as_mut().expect("hyper polls no future that has given its answer");
        let outcome = ready!(Pin::new(task).poll(cx));
        if let Err(TaskError::Interrupted(interrupted)) = outcome {
            // The connection's task is to end, and its drop of this tells the request.
            return Poll::Ready(Err(interrupted.into()));
        }
        let running = self.requests.running.borrow();
        let status = match &outcome {
            Err(error @ TaskError::Panicked(_)) => {
                let Running { method, uri, .. } = &running[self.key];
                tracing::error!(%method, %uri, %error, "a request's handler panicked");
                StatusCode::INTERNAL_SERVER_ERROR
            }
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        drop(running);
        drop(self.end());
        Poll::Ready(match outcome {
            Ok(Ok(response)) => {
                self.requests.answered.set(self.requests.answered.get() + 1);
                Ok(response.map(Reply::own))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let mut response = Response::new(Reply::EMPTY);
                *response.status_mut() = status;
                Ok(response)
            }
        })
    }
}

impl<B, E> Drop for Answering<B, E> {
    fn drop(&mut self) {
        if let Some(task) = self.end() {
            task.request_cancel(CLIENT_GONE);
        }
    }
}
