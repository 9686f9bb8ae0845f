//! hyper on pikake's kernel, and an HTTP server whose requests are tasks.
//!
//! | for | use |
//! | --- | --- |
//! | a server for axum, tonic or another tower service | [`serve`] |
//! | the address of a request's client | [`Peer`] |
//! | a client or a server of hyper's own | [`Io`], [`Executor`], [`Timer`] |
//! | the reason of an interruption in a handler | [`CLIENT_GONE`], [`SHUTTING_DOWN`] |
//!
//! [`Io`], [`Executor`] and [`Timer`] implement the runtime traits of hyper 1.x, for servers and clients. [`serve`] is
//! a server on top of them for any [`tower_service::Service`], such as an `axum::Router`. Each request is a *task*:
//!
//! ```text
//!    listener ──▶ connection task ──▶ hyper ──▶ request task ──▶ the service
//!                                       │            ▲
//!                 the client has gone:  └── cancel ──┘  its await returns `Interrupted`,
//!                 hyper drops its future                 and it may clean up, awaiting
//! ```
//!
//! Other servers drop a handler at its current await when the client hangs up. This one interrupts the handler,
//! which may clean up. A shutdown lets connections finish, then interrupts requests, then drops and reports the rest.
//!
//! # Send
//!
//! axum and tonic require handlers' futures to be `Send`, though this server never moves one to another thread. The
//! module `axum`, with the feature of that name, has [`local`](axum::local) for handlers and [`Local`](axum::Local) for
//! state. Elsewhere [`Bound`](pikake_traps::Bound) makes such a future:
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

#[cfg(feature = "axum")]
pub mod axum;
mod connection;
mod ending;
mod executor;
mod gate;
mod handshake;
mod incoming;
mod io;
mod pace;
mod reply;
mod report;
mod request;
mod server;
mod timer;

pub use ending::SHUTTING_DOWN;
pub use executor::Executor;
#[cfg(feature = "tls")]
pub use handshake::{ALPN, IntoTls, Tls};
pub use handshake::{Handshake, Plain};
pub use incoming::Incoming;
pub use io::Io;
pub use pace::MINIMUM_PACE;
pub use report::{Left, Report, ServeError};
pub use request::{CLIENT_GONE, Peer};
pub use server::{
    CONNECTIONS, HARD_DEADLINE, HEADER_TIMEOUT, SOFT_DEADLINE, STALL_TIMEOUT, Server, serve,
};
pub use timer::Timer;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
