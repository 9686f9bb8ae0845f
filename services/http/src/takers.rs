//! The services of one server on several kernels, which answer each other's requests.
//!
//! A request that comes while its kernel is late is offered to the other kernels
//! ([`Builder::offer`](pikake_traps::Builder::offer)). The kernel that takes the request answers it
//! with its own service. What crosses is the request, and its answer ([`Moved`]): never the
//! service, the handler's future or a body.
//!
//! The servers of one [`serve_on_all`](crate::serve_on_all) have one list in common. Each enters
//! its service when it begins, and removes it when it ends.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use http::{Request, Response};
use http_body::Body;
use pikake_traps::{Bound, current, figures};
use tower_service::Service;

use crate::BoxError;
use crate::figures::{Peer, ServerFigures};
use crate::incoming::Incoming;
use crate::moved::{Moved, send_body};

/// A service of the current kernel.
type Taker = Rc<dyn Answer>;

/// The services of a server, one for each of its kernels.
#[derive(Default)]
pub(crate) struct Takers(Mutex<Vec<Bound<Taker>>>);

impl Takers {
    fn list(&self) -> MutexGuard<'_, Vec<Bound<Taker>>> {
        // No user code runs under the lock, so the list behind a poisoned lock is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the service of the current kernel, until the guard is dropped.
    pub(crate) fn enter<S, B>(self: &Arc<Self>, service: S) -> Entered
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
        S::Error: Into<BoxError>,
        B: Body + 'static,
        B::Error: Into<BoxError>,
    {
        let taker: Taker = Rc::new(Answers(service));
        self.list().push(Bound::new(taker));
        Entered(self.clone())
    }

    /// Answers a request of another kernel with the service of this one.
    ///
    /// # Errors
    ///
    /// The request itself, if the server has ended on this kernel.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Option<Peer>,
    ) -> Result<Result<Response<Moved>, BoxError>, Request<Incoming>> {
        let taker =
            self.list().iter().find(|taker| taker.is_home()).map(|taker| taker.get().clone());
        let Some(taker) = taker else { return Err(request) };
        let figures = figures::of_kernel::<ServerFigures>();
        let _peer = peer.map(|peer| figures.show_peer(current().id(), peer));
        Ok(taker.answer(request).await)
    }
}

impl fmt::Debug for Takers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takers").field("services", &self.list().len()).finish()
    }
}

/// The entry of a service, for the time of its server.
pub(crate) struct Entered(Arc<Takers>);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut list = self.0.list();
        let index = list.iter().position(Bound::is_home);
        let taker = index.map(|index| list.swap_remove(index));
        drop(list);
        drop(taker);
    }
}

/// A service that answers requests of other kernels.
trait Answer {
    fn answer(&self, request: Request<Incoming>) -> Answered;
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<Moved>, BoxError>>>>;

struct Answers<S>(S);

impl<S, B> Answer for Answers<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    fn answer(&self, request: Request<Incoming>) -> Answered {
        let service = self.0.clone();
        Box::pin(async move { Ok(send_body(call(service, request).await?).await) })
    }
}

/// Calls a service once it is ready.
pub(crate) async fn call<S, B>(
    mut service: S,
    request: Request<Incoming>,
) -> Result<Response<B>, BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    poll_fn(|cx: &mut Context<'_>| service.poll_ready(cx)).await.map_err(Into::into)?;
    service.call(request).await.map_err(Into::into)
}
