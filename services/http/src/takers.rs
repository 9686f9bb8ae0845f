//! The services of one server on several kernels, which answer each other's requests.
//!
//! A request that comes while its kernel is late is offered to the other kernels
//! ([`Builder::offer`](pikake_traps::Builder::offer)). The kernel that takes the request answers it
//! with its own service. The request crosses, and its answer ([`Moved`]): never the
//! service, the handler's future or a body.
//!
//! The servers of one [`serve_on_all`](crate::serve_on_all) know each other by the [`Replicas`] of
//! their listeners.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use http::{Request, Response};
use http_body::Body;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use pikake_net::{EnteredReplica, Replicas};
use tower_service::Service;

use crate::BoxError;
use crate::figures::Peer;
use crate::incoming::Incoming;
use crate::moved::{Moved, send_body};
use crate::peer::show_to_current;
use crate::reply::has_no_body;
use crate::shed::{Patience, Shed};

/// A service of the current kernel, among the [`Replicas`] of its listener.
type Taker = Rc<dyn Answer>;

/// Enters the service of the current kernel, for as long as its server serves.
pub(crate) fn enter<S, B>(replicas: &Replicas, service: S) -> EnteredReplica
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let taker: Taker = Rc::new(Answers(TowerToHyperService::new(service)));
    replicas.enter(taker)
}

/// Answers a request of another kernel with the service of this one, unless it has waited for too
/// long.
///
/// # Errors
///
/// The request itself, if the server has ended on this kernel.
pub(crate) async fn answer(
    replicas: Replicas,
    request: Request<Incoming>,
    peer: Option<Peer>,
    patience: Option<Patience>,
) -> Result<Result<Response<Moved>, BoxError>, Request<Incoming>> {
    let Some(taker) = replicas.here::<Taker>() else { return Err(request) };
    if patience.is_some_and(Patience::is_over) {
        return Ok(Err(Shed.into()));
    }
    peer.into_iter().for_each(show_to_current);
    Ok(taker.answer(request).await)
}

/// A service that answers requests of other kernels.
trait Answer {
    fn answer(&self, request: Request<Incoming>) -> Answered;
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<Moved>, BoxError>>>>;

struct Answers<S>(TowerToHyperService<S>);

impl<S, B> Answer for Answers<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    fn answer(&self, request: Request<Incoming>) -> Answered {
        let service = self.0.clone();
        Box::pin(async move {
            let method = request.method().clone();
            let response = service.call(request).await.map_err(Into::into)?;
            let is_unread = has_no_body(&method, response.status());
            Ok(send_body(response, is_unread).await)
        })
    }
}
