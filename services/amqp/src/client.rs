//! What drives a session: the tasks of a connection, and the handles that tasks of the program hold.

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod connection;
pub(crate) mod consumer;
pub(crate) mod error;
pub(crate) mod hub;
pub(crate) mod link;
pub(crate) mod options;
pub(crate) mod stream;
pub(crate) mod supervisor;
pub(crate) mod topology;
