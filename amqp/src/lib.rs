//! An AMQP 0-9-1 client.
#![forbid(unsafe_code)]

mod address;
mod api;
mod event;
mod error;
mod message;
mod options;
mod session;
mod session_channel;
mod session_frames;
mod session_handshake;
mod session_requests;
mod wire;

pub use address::Address;
pub use api::*;
pub use error::{CloseReason, Error, PublishError, Stale};
pub use message::{
    Array, ConsumeOptions, ExchangeOptions, Message, Properties, Queue, QueueOptions, Table, Value,
    persistent, short,
};
pub use options::{Backoff, Options};
