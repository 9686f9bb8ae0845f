//! One connection: hyper's future, and the orders that the connection gets.

use std::any::Any;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use pikake_net::{Replicas, SendIo, TcpStream};
use pikake_traps::{Interrupted, current, sleep};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::BoxError;
use crate::executor::Executor;
use crate::gate::{Accepted, Gate, OpenConnection};
use crate::handshake::Handshake;
use crate::incoming::Incoming;
use crate::io::Io;
use crate::pace::Limits;
use crate::request::{CLIENT_GONE, RequestService};
use crate::requests::{Order, REQUESTS, Requests};
use crate::stream::{Counted, Stream};
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
        self.gate.upgraded.set(self.gate.upgraded.get() + open.requests.upgraded.get());
        self.gate.shed.set(self.gate.shed.get() + open.requests.shed.get());
        self.gate.figures.connection_closed();
    }
}

/// Serves one connection until it and its requests have ended.
pub(crate) async fn serve_connection<C, H, A, S, B>(
    Accepted(connection, patience): Accepted<C>,
    handshake: H,
    peer: A,
    service: S,
    replicas: Option<Replicas>,
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
    let requests =
        Rc::new(Requests::new(gate.figures.clone(), gate.logs.then(|| format!("{peer:?}"))));
    requests.is_shut.set(gate.is_shut());
    requests.patience.set(patience);
    let task = current().task_ref().clone();
    let _peer = gate.figures.clone().show_peer(task.id(), Arc::new(peer.clone()));
    let open = OpenConnection { task, peer: format!("{peer:?}"), requests: requests.clone() };
    let key = gate.list(open);
    gate.figures.connection_opened();
    let _listed = ConnectionGuard { gate: gate.clone(), key };
    let served = async {
        match establish(handshake.establish(connection), &gate, &requests, limits).await? {
            Some(stream) => {
                let stream = Stream::new(stream, requests.clone());
                if gate.is_shut() {
                    requests.give_order(Order::FinishSoon);
                }
                let service = RequestService {
                    service: TowerToHyperService::new(service),
                    replicas,
                    late: limits.late,
                    requests: requests.clone(),
                };
                serve_http(stream, service, limits).await
            }
            None => Ok(()),
        }
    };
    if let Err(error) = served.await {
        tracing::debug!(error, "a connection ended early");
    }
    // The stream is closed or upgraded, and unanswered requests are cancelled. An interruption is
    // for upgrades only; the hard deadline drops the rest. It is held: what follows is cleanup.
    let mut held = Vec::new();
    while let Err(interrupted) = requests.until_ended().await {
        requests.cancel_upgrades(&interrupted);
        held.push(interrupted);
    }
}

/// Waits for a handshake; `None` if a shutdown comes before its end, as no request waits for an
/// answer.
async fn establish<C>(
    handshake: impl Future<Output = io::Result<C>>,
    gate: &Gate,
    requests: &Requests,
    limits: Limits,
) -> Result<Option<C>, BoxError> {
    let shutting = async {
        gate.until_shut().await?;
        sleep(limits.last).await
    };
    let (mut handshake, mut shutting) = (pin!(handshake), pin!(shutting));
    poll_fn(|cx| {
        if let Poll::Ready(stream) = handshake.as_mut().poll(cx) {
            return Poll::Ready(stream.map(Some).map_err(Into::into));
        }
        requests.patience.take();
        shutting.as_mut().poll(cx).map(|shut| shut.map(|()| None).map_err(Into::into))
    })
    .await
}

/// Speaks HTTP with a client, up to the end of the connection.
async fn serve_http<C, S, B>(
    stream: Rc<Stream<C>>,
    handling: RequestService<S>,
    limits: Limits,
) -> Result<(), BoxError>
where
    C: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let mut builder = auto::Builder::new(Executor);
    builder.http2().timer(Timer::new()).max_concurrent_streams(REQUESTS).enable_connect_protocol();
    // The server times heads, and looks ahead for the end of the client's side.
    builder.http1().header_read_timeout(None).half_close(true);
    let requests = handling.requests.clone();
    requests.begin_checks();
    let mut last: Option<Pin<Box<Sleep>>> = None;
    let mut client_end = ClientEnd { stream: stream.clone(), grace: limits.gone, sleep: None };
    let stream = Io::new(SendIo::new(Counted(stream)));
    let mut serving = pin!(builder.serve_connection_with_upgrades(stream, handling));
    poll_fn(|cx| {
        loop {
            if let Some(moment) = &mut last {
                if moment.as_mut().poll(cx)?.is_ready() {
                    requests.give_order(Order::Finish);
                }
            }
            // Before answers that are ready are written.
            match requests.take_order() {
                Some(Order::FinishSoon) => {
                    last = Some(Box::pin(sleep(limits.last)));
                    continue;
                }
                Some(Order::Finish) => {
                    last = None;
                    serving.as_mut().graceful_shutdown();
                }
                Some(Order::EndIdle) => {
                    return Poll::Ready(Err("the client sent no request in time".into()));
                }
                Some(Order::EndStalled) => {
                    let why = "the client neither sent its request nor read the response in time";
                    return Poll::Ready(Err(why.into()));
                }
                None => {}
            }
            if let Poll::Ready(served) = serving.as_mut().poll(cx) {
                return Poll::Ready(served);
            }
            // The next request has not come with the connection.
            requests.patience.take();
            client_end.tell(&requests, cx)?;
            if !requests.has_order() {
                return Poll::Pending;
            }
        }
    })
    .await
}

type Sleep = dyn Future<Output = Result<(), Interrupted>>;

/// The end of the client's side of a connection.
struct ClientEnd<C> {
    stream: Rc<Stream<C>>,
    /// The time that is left from then on, until handlers are interrupted.
    grace: Option<Duration>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<C: AsyncRead + Unpin> ClientEnd<C> {
    /// Interrupts the handlers of a client that has ended its side, since nothing shows whether it
    /// waits for their answers or has gone. What they then return is sent.
    ///
    /// Over HTTP/2 the end of a side is the end of the connection.
    fn tell(&mut self, requests: &Requests, cx: &mut Context<'_>) -> Result<(), BoxError> {
        if !requests.has_any() || requests.is_http2.get() {
            return Ok(());
        }
        self.stream.look_ahead(cx)?;
        if !self.stream.is_ended() || requests.awaits_last_body(cx.waker()) || !self.is_gone(cx)? {
            return Ok(());
        }
        for running in requests.all_running() {
            // A request to end would drop a handler that has not begun, so it comes a step later.
            match running.has_begun() {
                true => running.task.request_cancel(Interrupted::cancelled(CLIENT_GONE)),
                false => cx.waker().wake_by_ref(),
            }
        }
        match requests.awaits_body_of_service() {
            true => Err(CLIENT_GONE.into()),
            false => Ok(()),
        }
    }

    /// Whether a client that has ended its side has had its time.
    fn is_gone(&mut self, cx: &mut Context<'_>) -> Result<bool, Interrupted> {
        let Some(grace) = self.grace else { return Ok(false) };
        if !grace.is_zero() {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(grace)));
            if sleep.as_mut().poll(cx)?.is_pending() {
                return Ok(false);
            }
            self.grace = Some(Duration::ZERO);
        }
        Ok(true)
    }
}
