//! One connection: hyper's future, and what ends it from outside.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Debug;
use std::future::{Future, pending, poll_fn};
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
use crate::gate::{Gate, Open};
use crate::incoming::Incoming;
use crate::io::Io;
use crate::pace::{Allowance, Counted, Limits, Turn};
use crate::request::{Handling, REQUESTS, Requests};
use crate::timer::Timer;

/// Held by a connection's task for as long as it is open.
struct Listed {
    gate: Rc<Gate>,
    key: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let open = self.gate.open.borrow_mut().remove(self.key);
        self.gate.answered.set(self.gate.answered.get() + open.requests.answered.get());
    }
}

/// Serves one connection until it ends, by itself or when the gate is shut, and its requests have.
pub(crate) async fn serve_connection<C, A, S, B>(
    stream: C,
    peer: A,
    service: S,
    gate: Rc<Gate>,
    limits: Limits,
) where
    C: AsyncRead + AsyncWrite + Unpin + 'static,
    A: Debug + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    // What hyper writes it means to be sent. Kept back until the client has acknowledged what came
    // before, the second of two small writes comes 40 ms late.
    if let Some(tcp) = (&stream as &dyn Any).downcast_ref::<TcpStream>()
        && let Err(error) = tcp.set_nodelay(true)
    {
        tracing::debug!(%error, "a connection ended before it was served");
    }
    let requests = Rc::<Requests>::default();
    let task = current().task_ref().clone();
    let open = Open { task, peer: format!("{peer:?}"), requests: requests.clone() };
    let key = gate.open.borrow_mut().insert(open);
    let _listed = Listed { gate: gate.clone(), key };
    let handling = Handling { service, peer, requests: requests.clone() };
    if let Err(error) = converse(stream, handling, &gate, limits).await {
        tracing::debug!(error, "a connection ended early");
    }
    // The stream is closed and requests that were not answered are told. An interruption has nothing
    // to add to that; who does not wait any longer drops them.
    while requests.until_ended().await.is_err() {}
}

/// Speaks HTTP with a client, up to the end of the connection.
async fn converse<C, A, S, B>(
    stream: C,
    handling: Handling<S, A>,
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
    let (requests, moved) = (handling.requests.clone(), Rc::<Cell<u64>>::default());
    let stream = Io::new(Counted { stream, moved: moved.clone() });
    let mut serving = pin!(builder.serve_connection(stream, handling));
    let mut shutting = pin!(gate.until_shut());
    let mut watching = pin!(watch(&requests, &moved, limits));
    let (mut is_told, mut is_late) = (false, false);
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(served);
            }
            if !is_told && let Poll::Ready(told) = shutting.as_mut().poll(cx) {
                told?;
                is_told = true;
                serving.as_mut().graceful_shutdown();
                continue;
            }
            let Poll::Ready(turn) = watching.as_mut().poll(cx) else { return Poll::Pending };
            let why = match turn {
                Err(interrupted) => return Poll::Ready(Err(interrupted.into())),
                // hyper says goodbye, if there is anybody to say it to.
                Ok(Turn::Idle) if !is_late => {
                    is_late = true;
                    serving.as_mut().graceful_shutdown();
                    watching.set(watch(&requests, &moved, limits.goodbye()));
                    continue;
                }
                Ok(Turn::Idle) => "its client asked for nothing in time",
                Ok(_) => "its client neither sent its request nor read the response in time",
            };
            return Poll::Ready(Err(why.into()));
        }
    })
    .await
}

/// Waits until the client has used up its time, and says over what.
async fn watch(
    requests: &Requests,
    moved: &Cell<u64>,
    limits: Limits,
) -> Result<Turn, Interrupted> {
    let Some(interval) = limits.interval() else { return pending().await };
    let mut allowance = Allowance::new(limits);
    loop {
        sleep(interval).await?;
        let turn = requests.turn();
        if allowance.is_used_up(interval, turn, moved.get(), requests.begun.get()) {
            return Ok(turn);
        }
    }
}
