//! HTTP by other people's protocol code and our own waits: hyper on pikake's kernel.
//!
//! [`Io`], [`Executor`] and [`Timer`] are what hyper 1.x asks of a runtime, for servers and clients
//! alike. [`serve`] is a server on top of them that takes any [`tower_service::Service`], such as an
//! `axum::Router`. What it adds to hyper is that a request is a *task*:
//!
//! ```text
//!    listener ──▶ connection task ──▶ hyper ──▶ request task ──▶ the service
//!                                       │            ▲
//!                 the client has gone:  └── cancel ──┘  its await returns `Interrupted`,
//!                 hyper drops its future                 and it may clean up, awaiting
//! ```
//!
//! Elsewhere a handler whose client hangs up is dropped wherever it stands. Here it is told, and it
//! ends as it sees fit. The same happens at a shutdown: connections are given time to finish, then
//! requests are told, then what is left is dropped and reported.
//!
//! # `Send`
//!
//! Some libraries, axum among them, demand `Send` of a handler's future, though nothing here ever
//! moves one to another thread. [`Bound`](pikake_traps::Bound) is the way in:
//!
//! ```
//! use pikake_traps::{Bound, Interrupted, sleep};
//! use std::time::Duration;
//!
//! async fn handler() -> Result<&'static str, &'static str> {
//!     let slow = Bound::future(async { sleep(Duration::from_millis(5)).await });
//!     slow.await.map_err(|_: Interrupted| "told to end")?;
//!     Ok("done")
//! }
//!
//! fn is_send<F: Send>(_: impl Fn() -> F) {}
//! is_send(handler);
//! ```
#![forbid(unsafe_code)]

mod connection;
mod ending;
mod executor;
mod gate;
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
pub use incoming::Incoming;
pub use io::Io;
pub use pace::MINIMUM_PACE;
pub use reply::Reply;
pub use report::{Left, Report, ServeError};
pub use request::{CLIENT_GONE, Peer};
pub use server::{
    CONNECTIONS, HARD_DEADLINE, HEADER_TIMEOUT, SOFT_DEADLINE, STALL_TIMEOUT, Server, serve,
};
pub use timer::Timer;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
