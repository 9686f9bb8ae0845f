//! One connection: hyper's future, a shutdown, and the client's time limits.

use std::any::Any;
use std::fmt::Debug;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::{Request, Response};
use http_body::Body;
use hyper_util::server::conn::auto;
use pikake_net::TcpStream;
use pikake_traps::{Interrupted, current, sleep};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::BoxError;
use crate::executor::Executor;
use crate::gate::{Gate, OpenConnection};
use crate::handshake::Handshake;
use crate::incoming::Incoming;
use crate::io::Io;
use crate::pace::{Allowance, Counted, Limits, Phase, Traffic};
use crate::request::{REQUESTS, RequestService, Requests};
use crate::timer::Timer;

/// Removes a connection from the open ones on drop.
struct ConnectionGuard {
    gate: Rc<Gate>,
    key: usize,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let open = self.gate.open.borrow_mut().remove(self.key);
        self.gate.answered.set(self.gate.answered.get() + open.requests.answered.get());
        self.gate.figures.connection_closed();
    }
}

/// Serves one connection until it and its requests have ended.
pub(crate) async fn serve_connection<C, H, A, S, B>(
    connection: C,
    handshake: H,
    peer: A,
    service: S,
    gate: Rc<Gate>,
    limits: Limits,
) where
    C: 'static,
    H: Handshake<C>,
    A: Debug + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    if gate.is_over() {
        return;
    }
    // hyper batches its writes itself. With Nagle's algorithm, the second of two small writes would
    // wait for the acknowledgement of the first, up to 40 ms.
    if let Some(tcp) = (&connection as &dyn Any).downcast_ref::<TcpStream>() {
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended before it was served");
        }
    }
    let requests = Rc::new(Requests::new(gate.figures.clone()));
    let task = current().task_ref().clone();
    let open = OpenConnection { task, peer: format!("{peer:?}"), requests: requests.clone() };
    let key = gate.open.borrow_mut().insert(open);
    let _listed = ConnectionGuard { gate: gate.clone(), key };
    gate.figures.connection_opened();
    let handling = RequestService { service, peer, requests: requests.clone() };
    let served = async {
        match establish(handshake.establish(connection), &gate, &requests, limits).await? {
            Some(stream) => serve_http(stream, handling, &gate, limits).await,
            None => Ok(()),
        }
    };
    if let Err(error) = served.await {
        tracing::debug!(error, "a connection ended early");
    }
    // The stream is closed and unanswered requests are cancelled. An interruption adds nothing to
    // that; the hard deadline drops the requests.
    while requests.until_ended().await.is_err() {}
}

/// Waits for a handshake; `None` if a shutdown comes before its end, as no request waits for an
/// answer.
async fn establish<C>(
    handshake: impl Future<Output = io::Result<C>>,
    gate: &Gate,
    requests: &Requests,
    limits: Limits,
) -> Result<Option<C>, BoxError> {
    let mut handshake = pin!(handshake);
    let mut shutting = pin!(until_announced(gate, requests, limits));
    poll_fn(|cx| {
        if let Poll::Ready(stream) = handshake.as_mut().poll(cx) {
            return Poll::Ready(stream.map(Some).map_err(Into::into));
        }
        shutting.as_mut().poll(cx).map(|shut| shut.map(|()| None).map_err(Into::into))
    })
    .await
}

/// Speaks HTTP with a client, up to the end of the connection.
async fn serve_http<C, A, S, B>(
    stream: C,
    handling: RequestService<S, A>,
    gate: &Gate,
    limits: Limits,
) -> Result<(), BoxError>
where
    C: AsyncRead + AsyncWrite + Unpin + 'static,
    A: Debug + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let mut builder = auto::Builder::new(Executor);
    let timer = Timer::new();
    builder.http2().timer(timer).max_concurrent_streams(REQUESTS);
    builder.http1().timer(timer).header_read_timeout(limits.idle);
    let (requests, traffic) = (handling.requests.clone(), Rc::<Traffic>::default());
    let stream = Io::new(Counted { stream, traffic: traffic.clone() });
    let mut serving = pin!(builder.serve_connection(stream, handling));
    let mut shutting = pin!(until_announced(gate, &requests, limits));
    let mut watching = pin!(watch(&requests, &traffic, limits));
    let (mut is_shutting_down, mut is_closing) = (false, false);
    poll_fn(|cx| {
        loop {
            // Before answers that are ready are written.
            if !is_shutting_down {
                if let Poll::Ready(announced) = shutting.as_mut().poll(cx) {
                    announced?;
                    is_shutting_down = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(served);
            }
            let Poll::Ready(phase) = watching.as_mut().poll(cx) else { return Poll::Pending };
            let why = match phase {
                Err(interrupted) => return Poll::Ready(Err(interrupted.into())),
                // hyper closes the connection in order, with a GOAWAY over HTTP/2.
                Ok(Phase::Idle) if !is_closing => {
                    is_closing = true;
                    serving.as_mut().graceful_shutdown();
                    watching.set(watch(&requests, &traffic, limits.while_closing()));
                    continue;
                }
                Ok(Phase::Idle) => "the client sent no request in time",
                Ok(_) => "the client neither sent its request nor read the response in time",
            };
            return Poll::Ready(Err(why.into()));
        }
    })
    .await
}

/// Waits until the client is to learn of the shutdown: with the answer of a request that runs, or
/// of the next request within a moment, or without one after the moment.
///
/// A client may have sent a request that has not arrived. Over HTTP/1 the end of an idle connection
/// would leave that request without an answer. Over HTTP/2 many clients fail the requests that they
/// have prepared when they read of the end, and they prepare requests when they read answers. So no
/// announcement follows an answer directly.
async fn until_announced(
    gate: &Gate,
    requests: &Requests,
    limits: Limits,
) -> Result<(), Interrupted> {
    gate.until_shut().await?;
    if !requests.running.borrow().is_empty() {
        return Ok(());
    }
    let begun = requests.begun.get();
    let mut moment = pin!(sleep(limits.last));
    poll_fn(|cx| match requests.begun.get() == begun {
        true => moment.as_mut().poll(cx),
        false => Poll::Ready(Ok(())),
    })
    .await
}

/// Waits until the client has used up its time, and returns the phase in which that happened.
async fn watch(
    requests: &Requests,
    traffic: &Traffic,
    limits: Limits,
) -> Result<Phase, Interrupted> {
    let Some(interval) = limits.interval() else { return pending().await };
    let mut allowance = Allowance::new(limits);
    loop {
        sleep(interval).await?;
        let phase = match requests.phase() {
            // What hyper has copied and not written is a response.
            Phase::Idle if traffic.is_blocked.get() && !requests.is_http2.get() => {
                Phase::AwaitsClient
            }
            phase => phase,
        };
        let moved = traffic.moved.get();
        if allowance.spend(interval, phase, moved, requests.is_caught_up.take()) {
            return Ok(phase);
        }
    }
}
