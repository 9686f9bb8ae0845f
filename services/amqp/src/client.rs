//! What drives a session: the tasks of a connection, and the handles that tasks of the program hold.

pub(crate) mod address;
pub(crate) mod channel;
mod connection;
pub(crate) mod consumer;
pub(crate) mod error;
pub(crate) mod hub;
mod link;
pub(crate) mod options;
mod stream;
mod supervisor;
mod topology;
