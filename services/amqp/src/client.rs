//! The tasks of a connection, which drive its session, and the handles that the program holds.

pub(crate) mod address;
pub(crate) mod channel;
mod connection;
pub(crate) mod consumer;
pub(crate) mod error;
pub(crate) mod hub;
mod link;
pub(crate) mod options;
mod outage;
mod stream;
mod supervisor;
mod topology;
