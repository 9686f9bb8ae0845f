//! An AMQP 0-9-1 client, for RabbitMQ.
//!
//! The tasks of a kernel share one [`Connection`]. [`Channel`]s send requests and publish, with
//! confirms by default; [`Consumer`]s survive lost connections. Every wait is an interruption
//! point, and loses nothing when it is interrupted.
//!
//! | you want | use |
//! | --- | --- |
//! | to publish a message and wait for its confirm | [`Channel::publish`] |
//! | many messages in flight from one task | [`Channel::post`], which returns the future of the confirm |
//! | deliveries | [`Channel::consume`], [`Consumer::next`], [`Delivery::ack`] |
//! | to settle a delivery after its content was moved out | [`Delivery::receipt`] |
//! | replies without a reply queue | [`Channel::direct_reply_to`] |
//! | to observe the state of the connection | [`Connection::state`], [`Connection::changed`] |
//! | TLS | the feature `tls`, and an `amqps://` [`Address`] |
//! | a broker for tests | the crate `pikake-amqp-testing`, a dev-dependency |
//!
//! # When the connection is lost
//!
//! The client reconnects, with waits that double up to a cap ([`Backoff`]). Then:
//!
//! * The client restores declarations, limits and consumers; failed declarations are skipped with a
//!   warning.
//! * Unconfirmed messages are sent again with the same message id, so some may be duplicates. After
//!   an internal error of the broker they are uncertain instead: one of them may be the cause.
//! * The broker redelivers unacknowledged messages. Settling an old delivery is [`Stale`].
//! * Pending requests fail with [`Error::ConnectionLost`]. New ones wait for the next connection,
//!   up to [`Options::blocked_deadline`].
//!
//! # Hostile peers
//!
//! Publishers may write any octets into names and properties, and brokers pass them on. The client
//! rejects a delivery whose names or properties are not UTF-8, or whose headers are nested too
//! deep, with a warning and without requeueing: the queue's dead-letter exchange receives the
//! message, if there is one. If a peer breaks the protocol, floods or falls silent, the client
//! drops the connection and reconnects.
//!
//! # Implementation
//!
//! The session (`session.rs`) uses no socket, clock or task. Four tasks drive the session: reader,
//! writer and timer (`client/link.rs`), and the supervisor, which reconnects
//! (`client/supervisor.rs`). They are shielded from a shutdown, since tasks that are ending still
//! have to acknowledge and requeue. They end when the last handle is dropped.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod error;
mod message;
mod reply_name;
mod session;

pub use client::address::Address;
pub use client::channel::Channel;
pub use client::channel::publish::{Confirm, Room};
pub use client::consumer::Consumer;
pub use client::error::{PublishError, Stale};
pub use client::hub::{Connection, Delivery, Receipt, State};
pub use client::options::{Backoff, Options};
pub use error::{CloseReason, Error};
pub use message::{
    Array, ConsumeOptions, ExchangeOptions, Message, Properties, Queue, QueueOptions, Table, Value,
    persistent, short,
};
pub use reply_name::is_malformed_reply_to;

/// The codec, shared with the broker of `pikake-amqp-testing`. Hidden because programs have no use
/// for the codec, and its interface changes with the client.
#[doc(hidden)]
pub mod wire {
    pub use crate::message::REPLY_TO;
    pub use crate::session::wire::{
        Frame, PROTOCOL_HEADER, Raw, append, append_body, append_method, split,
    };
}
