//! Handlers and state of axum that are not `Send`.
//!
//! axum demands that handlers, their futures and the state of a router are `Send`, for runtimes
//! that move them between threads. This server moves none, and pikake's waits are not `Send`. The
//! functions of [`routing`] take such handlers, and [`Local`] makes a state of a value. Both are
//! bound to the thread of their kernel:
//!
//! ```
//! use std::cell::RefCell;
//! use std::rc::Rc;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::extract::{Path, State};
//! use pikake::http::axum::Local;
//! use pikake::http::axum::routing::get;
//! use pikake::sleep;
//!
//! #[derive(Default)]
//! struct Shop {
//!     names: Rc<RefCell<Vec<String>>>,
//! }
//!
//! async fn order(State(shop): State<Local<Shop>>, Path(name): Path<String>) -> String {
//!     if let Err(interrupted) = sleep(Duration::from_millis(1)).await {
//!         return format!("not ordered: {interrupted}"); // the client has gone
//!     }
//!     shop.names.borrow_mut().push(name);
//!     format!("order {}", shop.names.borrow().len())
//! }
//!
//! # fn is_router(_: Router) {}
//! # pikake::sim::example(async {
//! let router = Router::new().route("/order/{name}", get(order));
//! let router = router.with_state(Local::new(Shop::default()));
//! # is_router(router);
//! # Ok::<(), pikake::Interrupted>(()) }).unwrap();
//! ```
//!
//! axum's own functions and methods refuse such a handler. The compiler's note on `Handler` names
//! [`local`], which makes a handler for them: `axum::routing::get(local(order))`, or
//! `router.fallback(local(order))`. The refusal:
//!
//! ```compile_fail,E0277
//! use axum::Router;
//! use axum::routing::get;
//!
//! async fn nap() -> &'static str {
//!     pikake::sleep(std::time::Duration::from_millis(1)).await.map_or("interrupted", |()| "rested")
//! }
//!
//! let router: Router = Router::new().route("/nap", get(nap));
//! ```
//!
//! Middleware and the bodies of responses have no such wrapper: there, [`Bound`] makes a future or
//! a stream `Send`.

pub mod routing;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use ::axum::extract::{FromRequest, FromRequestParts, Request};
use ::axum::handler::Handler;
use ::axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use pikake_traps::Bound;

use crate::{Upgrade, peer};

/// A value that stays on its kernel's thread: the state of a router, or a handler ([`local`]).
/// Clones share the value.
///
/// # Examples
///
/// ```
/// use pikake::http::axum::Local;
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// fn is_state<S: Clone + Send + Sync + 'static>(_: &S) {}
///
/// pikake::run(async {
///     let count = Local::new(Rc::new(Cell::new(1)));
///     is_state(&count);
///     count.clone().set(2);
///     assert_eq!(count.get(), 2);
/// });
/// ```
///
/// # Panics
///
/// When the value is used on another thread than the one that made it, or in another kernel.
pub struct Local<T: 'static>(Arc<Bound<Box<T>>>);

impl<T> Local<T> {
    /// Binds a value to the current kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self(Arc::new(Bound::new(Box::new(value))))
    }
}

impl<T> Clone for Local<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Local<T> {
    type Target = T;

    #[track_caller]
    fn deref(&self) -> &T {
        self.0.get()
    }
}

impl<T: fmt::Debug> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The client's address as an argument of a handler. See [`peer`].
///
/// A handler that no server of this crate has called is answered with the status 500.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use pikake::http::axum::Peer;
/// use std::net::SocketAddr;
///
/// let hello = async |Peer(peer): Peer<SocketAddr>| format!("hello, {}", peer.ip());
/// let router: Router = Router::new().route("/", get(hello));
/// ```
#[derive(Debug)]
pub struct Peer<A>(pub A);

impl<A: Clone + Send + 'static, S: Sync> FromRequestParts<S> for Peer<A> {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let unknown = (StatusCode::INTERNAL_SERVER_ERROR, "the client's address is not known");
        peer().map(Self).ok_or(unknown)
    }
}

/// The wish for an upgrade as an argument of a handler. See [`upgrade`](crate::upgrade).
///
/// axum's own `WebSocketUpgrade` starts a task of tokio, which a program on pikake has not, so it
/// rejects all requests with the status 426. A request that asks for no upgrade is answered with
/// the status 400.
///
/// # Examples
///
/// WebSockets, by async-tungstenite; browsers ask by `GET` over HTTP/1.1, and by `CONNECT` over
/// HTTP/2:
///
/// ```
/// use async_tungstenite::WebSocketStream;
/// use async_tungstenite::tungstenite::handshake::derive_accept_key;
/// use async_tungstenite::tungstenite::protocol::Role;
/// use axum::Router;
/// use axum::http::HeaderMap;
/// use axum::response::Response;
/// use axum::routing::any;
/// use futures::StreamExt;
/// use pikake::http::{Upgrade, Upgraded};
///
/// async fn echo(stream: Upgraded) {
///     let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
///     while let Some(Ok(message)) = socket.next().await {
///         if message.is_text() && socket.send(message).await.is_err() {
///             return;
///         }
///     }
/// }
///
/// async fn chat(upgrade: Upgrade, headers: HeaderMap) -> Response {
///     let mut response: Response = upgrade.accept(echo);
///     if let Some(key) = headers.get("sec-websocket-key") {
///         let key = derive_accept_key(key.as_bytes());
///         response.headers_mut().insert("sec-websocket-accept", key.parse().unwrap());
///     }
///     response
/// }
///
/// let router: Router = Router::new().route("/chat", any(chat));
/// ```
impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let none = (StatusCode::BAD_REQUEST, "the request asks for no upgrade");
        Self::take(&mut parts.extensions).ok_or(none)
    }
}

/// A function that answers requests on its kernel's thread, for [`local`] and [`routing`].
///
/// Every `async` function and closure whose arguments are extractors of axum implements it, up to
/// 16, if only the last one takes the request's body and the result is a response of axum. Neither
/// the function nor its future has to be `Send`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of HTTP requests",
    note = "a handler is an async function whose arguments are extractors for the router's state, of which only the \
            last may take the body, and whose result implements `IntoResponse`",
    note = "a state that is not `Send` is `State<Local<T>>` on a router `with_state(Local::new(..))`; other values \
            that must be `Send` are wrapped in `pikake::Bound`"
)]
pub trait LocalHandler<M, S>: Clone + 'static {
    /// Answers a request.
    fn answer(self, request: Request, state: S) -> impl Future<Output = Response>;
}

/// Makes a handler of axum from a function that is not `Send` or has a future that is not, see the
/// [module](self). The functions of [`routing`] need no such call.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::http::Uri;
/// use pikake::http::axum::local;
/// use pikake::sleep;
/// use std::time::Duration;
///
/// async fn missing(uri: Uri) -> String {
///     drop(sleep(Duration::from_millis(1)).await);
///     format!("nothing is at {uri}")
/// }
///
/// # pikake::sim::example(async {
/// let router: Router = Router::new().fallback(local(missing));
/// # Ok::<(), pikake::Interrupted>(()) }).unwrap();
/// ```
///
/// # Panics
///
/// Outside a kernel. The handler panics when another thread calls it.
#[track_caller]
pub fn local<H>(handler: H) -> Local<H> {
    Local::new(handler)
}

// The compiler prints this head below axum's refusal of a handler, if it has five lines at most.
impl<H, M: 'static, S: 'static> Handler<M, S> for Local<H>
where
    // If the handler's future is not `Send`: `get(pikake::http::axum::local(handler))`.
    H: LocalHandler<M, S>,
{
    type Future = Bound<Pin<Box<dyn Future<Output = Response>>>>;

    #[track_caller]
    fn call(self, request: Request, state: S) -> Self::Future {
        let handler = H::clone(&self);
        Bound::new(Box::pin(async move { handler.answer(request, state).await }))
    }
}

impl<F, Fut, R, S> LocalHandler<((),), S> for F
where
    F: FnOnce() -> Fut + Clone + 'static,
    Fut: Future<Output = R>,
    R: IntoResponse,
{
    async fn answer(self, _: Request, _: S) -> Response {
        self().await.into_response()
    }
}

macro_rules! local_handlers {
    () => {};
    ($last:ident $($part:ident)*) => {
        impl<F, Fut, R, S, M, $($part,)* $last> LocalHandler<(M, $($part,)* $last), S> for F
        where
            F: FnOnce($($part,)* $last) -> Fut + Clone + 'static,
            Fut: Future<Output = R>,
            R: IntoResponse,
            $($part: FromRequestParts<S>,)*
            $last: FromRequest<S, M>,
        {
            #[expect(non_snake_case, reason = "an argument has the name of its type")]
            #[allow(unused_mut, reason = "a single argument changes no parts")]
            async fn answer(self, request: Request, state: S) -> Response {
                let (mut parts, body) = request.into_parts();
                $(
                    let $part = match $part::from_request_parts(&mut parts, &state).await {
                        Ok(part) => part,
                        Err(rejection) => return rejection.into_response(),
                    };
                )*
                let request = Request::from_parts(parts, body);
                match $last::from_request(request, &state).await {
                    Ok($last) => self($($part,)* $last).await.into_response(),
                    Err(rejection) => rejection.into_response(),
                }
            }
        }

        local_handlers!($($part)*);
    };
}

local_handlers!(T16 T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11 T12 T13 T14 T15);
