//! An AMQP 0-9-1 client, for RabbitMQ.
//!
//! One [`Connection`] of the kernel's, shared by its tasks; [`Channel`]s to ask and to publish over,
//! with confirms unless said otherwise; [`Consumer`]s that go on over lost connections. Everything that
//! waits is an interruption point and loses nothing when it is interrupted.
//!
//! | you want | use |
//! | --- | --- |
//! | to know that a message is in the broker's hands | [`Channel::publish`] |
//! | many messages under way from one task | [`Channel::post`], which gives the future of the confirm |
//! | deliveries | [`Channel::consume`], [`Consumer::next`], [`Delivery::ack`] |
//! | to settle a delivery when its content has long been used up | [`Delivery::receipt`] |
//! | answers without a queue for them | [`Channel::direct_reply_to`] |
//! | to see how the connection is | [`Connection::state`], [`Connection::changed`] |
//! | TLS | the feature `tls`, and an `amqps://` [`Address`] |
//! | a broker for tests | the crate `pikake-amqp-testing`, a dev-dependency |
//!
//! # When the connection is lost
//!
//! It is made again, with waits that double up to a cap ([`Backoff`]). What was declared, limits and
//! consumers are as before (what cannot be declared any more is left out, with a warning); messages that
//! were not confirmed are sent again, with the same message id, so that some may be there twice (not if
//! the broker has closed it for an error of its own: one of them may be the cause, so they are
//! uncertain); deliveries that were not acknowledged come again, and to settle the old ones is
//! [`Stale`]. A request whose answer was outstanding fails with
//! [`Error::ConnectionLost`], and one that comes up meanwhile waits for the next connection, though not
//! for ever ([`Options::blocked_deadline`]).
//!
//! # What others do
//!
//! Publishers may write any octets into names and properties, and brokers pass them on. The client rejects
//! a delivery whose names or properties are not UTF-8, or whose headers are nested too deep, with a warning
//! and without requeueing it: the queue's dead-letter exchange gets it, if there is one. A peer that breaks
//! the protocol, floods or falls silent costs its connection, which is made again, with waits in between.
//!
//! # How it is made
//!
//! The session (`session.rs`) knows no socket, clock or task. Four tasks of the client drive it: one
//! reads, one writes what others have queued until its turn comes, one watches the time
//! (`client/link.rs`), and one keeps the connection up (`client/supervisor.rs`). They are shielded
//! from a shutdown, since tasks that are being ended still have to acknowledge and to give back; they end
//! when the last handle is gone.
#![forbid(unsafe_code)]

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

/// The codec, for the broker of `pikake-amqp-testing`, so that it is written once. Public because that
/// broker is a crate of its own, which only tests depend on; hidden because it is of no use to programs
/// and changes with the client.
#[doc(hidden)]
pub mod wire {
    pub use crate::message::REPLY_TO;
    pub use crate::session::wire::{
        Frame, PROTOCOL_HEADER, Raw, append, append_body, append_method, split,
    };
}
