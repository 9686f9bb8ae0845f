//! A request as a task, cancelled when its client has gone.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body;
use hyper::service::Service as _;
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};
use pikake_net::Replicas;
use pikake_time::Ticks;
use pikake_traps::trigger::{Kind, fire_if_slow};
use pikake_traps::{Builder, Claim, Task, TaskError, should_offer, try_current};
use tower_service::Service;

use crate::BoxError;
use crate::access::{self, Entry};
use crate::incoming::Incoming;
use crate::refused::{self, Fault};
use crate::reply::{self, Reply};
use crate::requests::{Order, RequestLine, Requests};
use crate::shed::{self, Patience, Shed};
use crate::takers::answer;
use crate::upgrade::Pending;

/// The reason with which a request's task is cancelled when its client hangs up or resets the
/// stream, or when the connection breaks.
pub const CLIENT_GONE: &str = "the client has gone";

/// The name of the tasks that answer requests.
const REQUEST_NAME: &str = "http request";

/// Removes a request from the running ones on drop.
struct RequestGuard {
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.requests.figures.task_ended();
        self.requests.end(&self.line);
    }
}

/// The service for hyper: each call spawns a task, which begins at once. A call that comes late is
/// offered to the other kernels of the server.
pub(crate) struct RequestService<S> {
    pub(crate) service: TowerToHyperService<S>,
    /// `None` for a server on one kernel.
    pub(crate) replicas: Option<Replicas>,
    /// How late the kernel may be; `None`: at will.
    pub(crate) late: Option<Duration>,
    pub(crate) requests: Rc<Requests>,
}

impl<S, B> hyper::service::Service<Request<body::Incoming>> for RequestService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Reply<B>>;
    type Error = BoxError;
    type Future = ResponseFuture<B>;

    fn call(&self, mut request: Request<body::Incoming>) -> Self::Future {
        let requests = self.requests.clone();
        let began = requests.figures.request_began();
        let line = RequestLine::of(&request);
        let entry = Entry::begin(&requests, &line, request.version());
        let has_room = requests.begin(request.version(), &line, !request.body().is_end_stream());
        let refusal = match refused::fault(&request) {
            _ if !has_room => Some(Refusal::TooMany),
            fault => fault.map(Refusal::Fault),
        };
        if let Some(refusal) = refusal {
            let state = State::Refused(refusal);
            return ResponseFuture { state, requests, line, began, upgrade: None, entry };
        }
        let is_shut = requests.is_shut.get();
        if is_shut {
            // The client learns of the shutdown before it has the answer.
            requests.give_order(Order::Finish);
        }
        let upgrade = Pending::of(&mut request, &line, &requests);
        // An upgraded connection stays on its kernel, with its handler.
        let may_offer = || upgrade.is_none() && !is_shut && should_offer();
        let replicas = self.replicas.as_ref().filter(|_| may_offer());
        // A request that is offered may find a kernel that is on time.
        let is_over = || requests.patience.get().is_some_and(Patience::is_over);
        if replicas.is_none() && (shed::is_late(self.late) || is_over()) {
            let state = State::Refused(Refusal::Late);
            return ResponseFuture { state, requests, line, began, upgrade: None, entry };
        }
        requests.figures.task_began();
        let place = RequestGuard { requests: requests.clone(), line: line.clone() };
        let request = request.map(|body| Incoming::new(body, &line));
        let service = &self.service;
        let task = match replicas {
            Some(replicas) => offer(replicas.clone(), service.clone(), request, place, self.late),
            None => {
                let task = Builder::new();
                let task = if is_shut { task } else { task.eager() };
                task.spawn(Answering { call: service.call(request), place })
            }
        };
        if !task.is_finished() {
            task.task_ref().set_name(REQUEST_NAME);
            requests.list(task.task_ref().clone(), &line);
        }
        let state = State::Running(task);
        ResponseFuture { state, requests, line, began, upgrade, entry }
    }
}

pin_project_lite::pin_project! {
    /// The answer of the service on this kernel. By hand, since an async block would keep the
    /// request twice: as what it captured, and in the call.
    struct Answering<S>
    where
        S: Service<Request<Incoming>>,
    {
        #[pin]
        call: Call<S>,
        // Ends after the call.
        place: RequestGuard,
    }
}

impl<S, B> Future for Answering<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    type Output = Result<Response<Reply<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.call.poll(cx)).map_err(Into::into)?;
        let RequestGuard { requests, line } = &*this.place;
        Poll::Ready(Ok(Reply::own(response, &line.method, requests)))
    }
}

/// Starts the task of a request that another kernel may answer.
fn offer<S, B>(
    replicas: Replicas,
    service: TowerToHyperService<S>,
    request: Request<Incoming>,
    place: RequestGuard,
    late: Option<Duration>,
) -> RequestTask<B>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
{
    let connection = try_current().map(|task| task.id());
    let peer = connection.and_then(|connection| place.requests.figures.peer(connection));
    let line = place.line.clone();
    line.set_offered(true);
    let patience = Patience::begin(late);
    let there = move |request| {
        line.set_offered(false);
        answer(replicas, request, peer, patience)
    };
    let here = move |claim| async move {
        let RequestGuard { requests, line } = &place;
        let request = match claim {
            Claim::Here(request) => request,
            Claim::There(taken) => match taken.output().await {
                Ok(answer) => return Ok(Reply::moved(answer?, &line.method, requests)),
                Err(request) => request,
            },
        };
        line.set_offered(false);
        if patience.is_some_and(Patience::is_over) || shed::is_late(late) {
            return Err(Shed.into());
        }
        let response = service.call(request).await.map_err(Into::into)?;
        Ok(Reply::own(response, &line.method, requests))
    };
    Builder::new().name(REQUEST_NAME).offer(request, there, here)
}

/// The call of a service, which waits until the service is ready.
type Call<S> = TowerToHyperServiceFuture<S, Request<Incoming>>;

type RequestTask<B> = Task<Result<Response<Reply<B>>, BoxError>>;

/// Why a request is answered without the service.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// The connection has too many requests.
    TooMany,
    Fault(Fault),
    /// The server is late.
    Late,
}

enum State<B> {
    Running(RequestTask<B>),
    Refused(Refusal),
    Ended,
}

/// Waits for a request's task; without a task, answers for it. If hyper drops the future early, the
/// task is cancelled.
pub(crate) struct ResponseFuture<B> {
    state: State<B>,
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
    /// When the request has begun, if it is timed.
    began: Option<Ticks>,
    /// If the request asks for an upgrade.
    upgrade: Option<Rc<Pending>>,
    /// `None` without an access log.
    entry: Option<Rc<Entry>>,
}

impl<B> Unpin for ResponseFuture<B> {}

impl<B> ResponseFuture<B> {
    /// Counts a response in the figures, and marks a slow one in a recording.
    fn responded(&self, status: StatusCode) {
        if let Some(took) = self.requests.figures.responded(status, self.began) {
            fire_if_slow(Kind::SlowRequest, took, || format!("{} ({status})", self.line));
        }
    }

    /// Counts an answer.
    fn answered(&self, status: StatusCode) {
        self.responded(status);
        self.requests.answered.set(self.requests.answered.get() + 1);
    }
}

impl<B: Body> ResponseFuture<B> {
    /// The answer of the server itself.
    fn refuse(&mut self, refusal: Refusal) -> Response<Reply<B>> {
        match refusal {
            Refusal::Fault(fault) => {
                tracing::debug!(request = %self.line, fault = fault.why, "a request was refused");
                self.answered(fault.status);
                let mut response = refused::answer(fault, &self.requests);
                reply::log(&mut response, self.entry.take(), access::REFUSED);
                response
            }
            Refusal::TooMany => {
                tracing::debug!(request = %self.line, "too many requests on one connection");
                self.empty(StatusCode::SERVICE_UNAVAILABLE, access::REFUSED)
            }
            Refusal::Late => {
                self.requests.figures.shed();
                self.requests.shed.set(self.requests.shed.get() + 1);
                let mut response = self.empty(StatusCode::SERVICE_UNAVAILABLE, access::SHED);
                Shed::add_retry_after(&mut response);
                response
            }
        }
    }

    fn empty(&mut self, status: StatusCode, outcome: &'static str) -> Response<Reply<B>> {
        self.responded(status);
        let mut response = Reply::empty(status, &self.requests);
        reply::log(&mut response, self.entry.take(), outcome);
        response
    }
}

impl<B: Body> Future for ResponseFuture<B> {
    type Output = Result<Response<Reply<B>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.state {
            State::Running(task) => ready!(Pin::new(task).poll(cx)),
            State::Refused(refusal) => {
                let refusal = *refusal;
                return Poll::Ready(Ok(self.refuse(refusal)));
            }
            State::Ended => unreachable!("a future is not polled after its end"),
        };
        if let Err(TaskError::Interrupted(interrupted)) = outcome {
            // The connection's task is interrupted: it drops this future, which cancels the
            // request.
            return Poll::Ready(Err(interrupted.into()));
        }
        self.state = State::Ended;
        Poll::Ready(match outcome {
            Ok(Ok(mut response)) => {
                self.answered(response.status());
                if let Some(upgrade) = self.upgrade.take() {
                    upgrade.begin(response.status());
                }
                reply::log(&mut response, self.entry.take(), access::ANSWERED);
                Ok(response)
            }
            Ok(Err(error)) if Shed::is(&error) => Ok(self.refuse(Refusal::Late)),
            Ok(Err(error)) => {
                self.requests.figures.left_unanswered();
                self.entry.iter().for_each(|entry| entry.fail());
                Err(error)
            }
            Err(error @ TaskError::Panicked(_)) => {
                tracing::error!(request = %self.line, %error, "a request's handler panicked");
                Ok(self.empty(StatusCode::INTERNAL_SERVER_ERROR, access::PANICKED))
            }
            Err(_) => Ok(self.empty(StatusCode::SERVICE_UNAVAILABLE, access::CANCELLED)),
        })
    }
}

impl<B> Drop for ResponseFuture<B> {
    fn drop(&mut self) {
        if let State::Running(task) = &self.state {
            task.request_cancel(CLIENT_GONE);
            self.requests.figures.left_unanswered();
        }
    }
}
