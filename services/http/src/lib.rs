//! hyper on pikake's kernel: an HTTP server whose requests are tasks, and a client.
//!
//! | you have | use |
//! | --- | --- |
//! | a [`tower_service::Service`], such as an `axum::Router` | [`serve`], which returns a [`Report`] at its end |
//! | a certificate | [`Server::tls`], with the feature `tls` |
//! | several cores | [`serve_on_all`] |
//! | handlers or state that are not `Send` | [`axum::routing`] and [`axum::Local`], with the feature `axum` |
//! | WebSockets, tunnels, or another protocol on the connection | [`upgrade`], which gives a handler the stream |
//! | a request whose client's address or whose interruption matters | [`peer`]; [`CLIENT_GONE`], [`SHUTTING_DOWN`] |
//! | a URL to ask for | [`Client`], with the feature `http-client` |
//! | a client of hyper, or a server of your own | [`Io`], [`Executor`] and [`Timer`], hyper's runtime traits |
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//! use pikake::http;
//! use pikake::net::TcpListener;
//!
//! #[pikake::main(signals)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let app = Router::new().route("/", get(async || "hello"));
//!     let listener = TcpListener::bind("127.0.0.1:8080").await?;
//!     let report = http::serve(listener, app).await?; // until SIGINT or SIGTERM
//!     println!("{report}");
//!     Ok(())
//! }
//! ```
//!
//! Each request is a *task*:
//!
//! ```text
//!    listener ──▶ connection task ──▶ hyper ──▶ request task ──▶ the service
//!                        │                           ▲
//!   the client has gone: └────────── cancel ─────────┘  its await returns `Interrupted`,
//!                                                       and it may clean up, awaiting
//! ```
//!
//! The request's task begins inside the step of its connection, and most end there. Other servers
//! drop a handler at its current await when the client hangs up. This one interrupts the handler,
//! which may clean up. A shutdown lets connections finish, then interrupts requests, then drops and
//! reports the rest.
//!
//! # Figures
//!
//! The servers of a kernel count their connections, requests and responses together.
//! `pikake::console::metrics` shows the counts, with the feature `console` of `pikake`, and so does
//! any other reader of [`pikake_traps::figures`]:
//!
//! | figure | type | labels | holds |
//! | --- | --- | --- | --- |
//! | `pikake_http_connections` | gauge | | the open connections |
//! | `pikake_http_running_requests` | gauge | | the requests whose handlers run |
//! | `pikake_http_upgrades` | gauge | | the connections, and streams of HTTP/2, that go on with another protocol ([`upgrade`]); also counted as connections |
//! | `pikake_http_responses` | counter | `status`: `1xx` to `5xx` | the responses |
//! | `pikake_http_unanswered_requests` | counter | | the requests without a response: the client has reset the connection or the stream, the service has failed, or a shutdown has dropped them |
//! | `pikake_http_shed_requests` | counter | | the requests that were answered 503, also counted there, since the [server was late](Server::shed_after) |
//! | `pikake_http_response_time` | times | | the time from the head of a request to that of its response |
//!
//! # Send
//!
//! axum and tonic require handlers' futures to be `Send`, though this server never moves one to
//! another thread. The module `axum`, with the feature of that name, has
//! [`routing`](axum::routing) for handlers and [`Local`](axum::Local) for state. Elsewhere
//! [`Bound`](pikake_traps::Bound) makes such a future:
//!
//! ```
//! use pikake::{Bound, Interrupted, sleep};
//! use std::time::Duration;
//!
//! async fn method() -> Result<&'static str, &'static str> {
//!     let slow = Bound::future(async { sleep(Duration::from_millis(5)).await });
//!     slow.await.map_err(|_: Interrupted| "interrupted")?;
//!     Ok("done")
//! }
//!
//! fn is_send<F: Send>(_: impl Fn() -> F) {}
//! is_send(method);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "client")]
pub mod client;
mod connection;
mod ending;
mod executor;
mod figures;
mod gate;
mod handshake;
mod incoming;
mod io;
mod moved;
mod on_all;
mod pace;
mod peer;
mod refused;
mod reply;
mod report;
mod request;
mod requests;
mod server;
mod shed;
mod stream;
mod takers;
mod timer;
mod upgrade;

#[cfg(feature = "client")]
pub use client::Client;
pub use ending::SHUTTING_DOWN;
pub use executor::Executor;
#[cfg(feature = "tls")]
pub use handshake::{ALPN, IntoTls, Tls};
pub use handshake::{Handshake, Plain};
pub use incoming::Incoming;
pub use io::Io;
pub use on_all::{Reports, serve_on_all};
pub use pace::MINIMUM_PACE;
pub use peer::peer;
pub use report::{Left, Report, ServeError};
pub use request::CLIENT_GONE;
pub use server::{
    CONNECTIONS, HARD_DEADLINE, HEADER_TIMEOUT, SOFT_DEADLINE, STALL_TIMEOUT, Server, serve,
};
pub use timer::Timer;
pub use upgrade::{Upgrade, Upgraded, upgrade};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
