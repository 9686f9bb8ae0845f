//! One connection: hyper's future, and what ends it from outside.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::server::conn::auto;
use pikake_traps::{current, sleep};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::BoxError;
use crate::executor::Executor;
use crate::gate::{Gate, Open};
use crate::io::Io;
use crate::request::{Handling, Requests};
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

/// Serves one connection until it ends, by itself or when the gate is shut.
pub(crate) async fn serve_connection<C, A, S, B>(
    stream: C,
    peer: A,
    service: S,
    gate: Rc<Gate>,
    header_timeout: Option<Duration>,
) where
    C: AsyncRead + AsyncWrite + Unpin + 'static,
    A: Debug + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let requests = Rc::<Requests>::default();
    let task = current().task_ref().clone();
    let open = Open { task, peer: format!("{peer:?}"), requests: requests.clone() };
    let key = gate.open.borrow_mut().insert(open);
    let _listed = Listed { gate: gate.clone(), key };

    let mut builder = auto::Builder::new(Executor);
    let timer = Timer::new();
    builder.http2().timer(timer);
    builder.http1().timer(timer).header_read_timeout(header_timeout);
    let handling = Handling { service, peer, requests: requests.clone() };
    let mut serving = pin!(builder.serve_connection(Io::new(stream), handling));
    let mut shutting = pin!(gate.until_shut());
    // hyper's own clock starts with the first byte.
    let mut silence = pin!(async {
        match header_timeout {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
    });
    let (mut is_told, mut has_spoken) = (false, false);
    let served = poll_fn(|cx| {
        loop {
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(served);
            }
            if !is_told && shutting.as_mut().poll(cx).is_ready() {
                is_told = true;
                serving.as_mut().graceful_shutdown();
                continue;
            }
            has_spoken |= requests.seen.get();
            if !has_spoken && silence.as_mut().poll(cx).is_ready() {
                has_spoken = true;
                serving.as_mut().graceful_shutdown();
                if !requests.seen.get() {
                    return Poll::Ready(Ok(()));
                }
            }
            return Poll::Pending;
        }
    });
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended early");
    }
}
