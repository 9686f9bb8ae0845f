//! Remote procedure calls: many calls under way on one connection.
//!
//! A trait with `#[pikake::service]` is a service. A caller's deadline travels with the call, a
//! caller that gives up interrupts the handler, and a connection carries any number of calls, whose
//! answers come in any order.
//!
//! | for | use |
//! | --- | --- |
//! | a service of one's own | `#[pikake::service]` |
//! | calling it | [`Client`], in the `…Client` that the attribute makes |
//! | offering it | [`Server`], with the `…Server` that the attribute makes |
//! | many items in a call, in either direction | [`channel`], an end of which is an argument |
//! | the client of a call, its deadline and metadata | [`current_call`], [`Server::intercept`] |
//! | traces that go on through calls | [`trace`] |
//! | calls between kernels of one process | [`local`] |
//! | packets without calls | [`packets`] |
//!
//! # Examples
//!
//! ```
//! use std::cell::Cell;
//! use pikake::net::TcpListener;
//! use pikake::rpc::{Client, Error, Server};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Serialize, Deserialize)]
//! pub enum TillError {
//!     TooLittle { left: u64 },
//! }
//!
//! #[pikake::service]
//! pub trait Till {
//!     /// Takes an amount out, and returns what is left.
//!     async fn take(&self, amount: u64) -> Result<u64, TillError>;
//! }
//!
//! struct Drawer(Cell<u64>);
//!
//! impl Till for Drawer {
//!     async fn take(&self, amount: u64) -> Result<u64, TillError> {
//!         let left = self.0.get();
//!         self.0.set(left.checked_sub(amount).ok_or(TillError::TooLittle { left })?);
//!         Ok(self.0.get())
//!     }
//! }
//!
//! # pikake::sim::example(async {
//! let listener = TcpListener::bind("127.0.0.1:7000").await?;
//! let server = Server::new().add(TillServer::new(Drawer(Cell::new(100))));
//! let server = pikake::spawn(server.serve(listener));
//!
//! let till = TillClient::new(Client::tcp("127.0.0.1:7000"));
//! assert_eq!(till.take(30).await.unwrap(), 70);
//! match till.take(80).await {
//!     Err(Error::Service(TillError::TooLittle { left })) => assert_eq!(left, 70),
//!     Err(Error::Call(error)) => println!("{error}"), // such as a lost connection
//!     Ok(_) => unreachable!("the till has 70"),
//! }
//! # server.cancel().await?;
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! The book has a page about services: errors, deadlines, channels, limits, tests, and how services
//! evolve.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod breaker;
mod call;
mod calls;
mod client;
mod codec;
mod either;
mod endpoint;
mod error;
mod figures;
mod link;
pub mod local;
mod moved;
mod packet_error;
pub mod packets;
mod peer;
mod protocol;
mod server;
mod service;
mod session;
mod stream;
mod timer;
pub mod trace;
mod wire;

pub use call::{CallInfo, current_call};
pub use client::{Balance, Client, ClientBuilder};
pub use codec::Codec;
#[doc(hidden)]
pub use codec::{ArgumentReader, ArgumentWriter};
pub use error::{CallError, CallFailure, Error, Executed};
pub use peer::{Peer, Transport};
pub use server::{Report, Server, UnfinishedCall};
pub use service::{Answer, Handler, Service};
#[doc(hidden)]
pub use service::{Answered, Method, Returned};
pub use stream::{NotSent, ReceiveError, Receiver, SendError, Sender, channel};
