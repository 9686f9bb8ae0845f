//! An AMQP 0-9-1 client.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod connection;
mod consumer;
mod dispatch;
mod error;
mod event;
#[cfg(feature = "testing")]
pub mod fake;
mod hub;
mod link;
mod message;
mod options;
mod publish;
mod recovery;
mod session;
mod session_channel;
mod session_frames;
mod session_handshake;
mod session_requests;
mod stream;
mod supervisor;
mod topology;
mod wire;

pub use address::Address;
pub use channel::Channel;
pub use connection::{Connection, State};
pub use consumer::{Consumer, Delivery, Receipt};
pub use error::{CloseReason, Error, PublishError, Stale};
pub use message::{
    Array, ConsumeOptions, ExchangeOptions, Message, Properties, Queue, QueueOptions, Table, Value,
    persistent, short,
};
pub use options::{Backoff, Options};
pub use publish::Confirm;
