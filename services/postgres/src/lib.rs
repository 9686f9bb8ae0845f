//! PostgreSQL: pooled connections that come back clean, and statements that end when their task is
//! interrupted.
//!
//! The protocol is that of [`tokio_postgres`], without tokio's runtime.
//!
//! | for | use |
//! | --- | --- |
//! | a pool | [`Config::pool`]; with options [`Manager`] |
//! | one connection | [`Config::connect`] |
//! | one connection that many tasks share, for short queries | [`Pipelined`] |
//! | statements | [`query`](Connection::query), [`execute`](Connection::execute) and others of [`Connection`] |
//! | rows one by one | [`Connection::query_rows`] |
//! | a transaction, a savepoint | [`Connection::transaction`], [`Transaction::savepoint`] |
//! | notifications (`LISTEN`) | [`Listener`] |
//! | types of columns and values | [`types`] |
//!
//! # Examples
//!
//! ```no_run
//! use pikake::postgres::Config;
//! use pikake::timeout_after;
//! use std::time::Duration;
//!
//! #[pikake::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config: Config = "postgres://shop@localhost/shop?application_name=shop".parse()?;
//!     let pool = config.pool(10);
//!     let connection = pool.get().await?;
//!     let price = connection.query_one("SELECT price FROM item WHERE name = $1", &[&"tea"]);
//!     // When the deadline passes, the server cancels the statement.
//!     let row = timeout_after(Duration::from_secs(2), price).await??;
//!     println!("{}", row.get::<_, i32>(0));
//!     Ok(())
//! }
//! ```
//!
//! # What a connection leaves behind
//!
//! The next holder of a connection finds nothing of the last one's, however the last one ended:
//!
//! * A statement that still runs is cancelled on the server, and its end awaited. If the server
//!   does not end it within [`CANCEL_WITHIN`], the connection is closed.
//! * An open transaction is rolled back. The server's messages tell whether one is open, so this
//!   holds for a `BEGIN` that was interrupted half-way, and for one in a string.
//! * The session is reset as by `DISCARD ALL`, and keeps the statements that the connection itself
//!   has prepared: see [`Reset`]. The pool sends the reset when the lease is dropped, and does not
//!   wait for its answer.
//!
//! # Prepared statements
//!
//! A connection prepares each text once, and keeps [`STATEMENT_CACHE`] of them. After a change of
//! tables or types the server may refuse a prepared statement: the connection prepares it again and
//! repeats it, if no transaction is open. In a transaction, which has failed then, the error is
//! returned, and the next transaction prepares the statement again.
//!
//! # Several hosts
//!
//! `host=a,b` names hosts that are tried in order, each for [`CONNECT_TIMEOUT`] or
//! `connect_timeout`. `target_session_attrs=read-write` skips those that allow no writes: after a
//! failover, the pool's next connections are those to the new primary, and a connection whose
//! server refuses a write as read-only is not used again. `load_balance_hosts=random` shuffles the
//! hosts.
//!
//! # TLS
//!
//! With the feature `tls`, [`Config::tls`] takes a connector. `sslmode=prefer`, the default,
//! accepts a server without TLS; `sslmode=require` does not. Logins by SCRAM are bound to the
//! server's certificate (channel binding).

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod connect;
mod connection;
mod error;
mod listener;
mod pipelined;
mod pool;
mod reset;
mod rows;
mod statements;
mod transaction;
mod wire;

pub use config::{CONNECT_TIMEOUT, Config, Reset, STATEMENT_CACHE};
pub use connection::{CANCEL_WITHIN, Connection};
pub use error::{ConnectError, Error, Fate, Refusal};
pub use listener::{Event, HEARTBEAT, Listener};
pub use pipelined::Pipelined;
pub use pool::{Lease, Manager, Pool, VERIFY_WITHIN};
pub use rows::Rows;
pub use tokio_postgres::{Notification, Row, SimpleQueryMessage, Statement, types};
pub use transaction::Transaction;

/// tokio-postgres itself, in the version of these types.
#[doc(hidden)]
pub use tokio_postgres;
