//! A look into a live pikake process: its tasks, what each one waits for, and where the time goes.
//!
//! A process with a console listens on a Unix socket. A client, such as the program `pikake`, sends a
//! [`Request`](protocol::Request) and gets [`Part`](protocol::Part)s, in frames that [`protocol`] describes.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod answer;
pub mod client;
#[doc(hidden)]
pub mod for_main;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod model;
mod observed;
pub mod page;
pub mod place;
pub mod protocol;
mod server;
mod socket_file;
mod stacks;
mod system;
pub mod text;
#[cfg(feature = "tokio-console")]
pub mod tokio_console;
pub mod trace;

pub use server::{Builder, Console};
