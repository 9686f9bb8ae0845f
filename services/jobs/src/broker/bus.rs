//! The bus of a broker: control messages and events, which reach all subscribers of the moment and
//! nobody later.
//!
//! The messages are Celery's (`control/`); a bus only carries them. RabbitMQ's bus has Celery's
//! exchanges, so Celery's tools and workers share it.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::broker::{BrokerError, LocalFuture};

/// The kinds of messages on a bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Topic {
    /// Commands, for all workers.
    Commands,
    /// Replies, for one subscriber.
    Replies,
    /// Events of workers and jobs, for all who listen.
    Events,
}

/// A message on a bus.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Notice {
    /// The kind.
    pub topic: Topic,
    /// The name of the subscriber of a reply, or the kind of an event (`worker.heartbeat`,
    /// `task.multi`).
    pub key: String,
    /// The headers.
    pub headers: Map<String, Value>,
    /// The body: JSON.
    pub body: Vec<u8>,
}

impl Notice {
    /// A message.
    pub fn new(topic: Topic, key: impl Into<String>, body: Vec<u8>) -> Self {
        Self { topic, key: key.into(), headers: Map::new(), body }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.headers.insert(name.to_owned(), value.into());
        self
    }
}

/// A fact that workers share, also those that start later.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedFact {
    /// The job of this id is revoked.
    Revoked(String),
    /// The queue of this name is paused.
    Paused(String),
    /// The queue of this name is no longer paused.
    Resumed(String),
}

/// The facts that workers share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SharedFacts {
    /// The ids of revoked jobs, oldest first.
    pub revoked: Vec<String>,
    /// The names of paused queues.
    pub paused: Vec<String>,
}

/// The bus of a broker. Every wait is an interruption point, and loses nothing but the call.
pub trait Bus: fmt::Debug {
    /// Sends a message to the present subscribers, of whom there may be none.
    fn notify(&self, notice: Notice) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// Receives messages of a topic: as the worker `name` (commands), under this name (replies), or
    /// those whose key begins with `name` (events). A subscriber that reads too slowly loses the
    /// oldest messages.
    fn subscribe<'a>(
        &'a self,
        topic: Topic,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Box<dyn Notices>, BrokerError>>;

    /// The names under which workers receive commands now; `None` if the broker does not know.
    fn workers(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(async { Ok(None) })
    }

    /// How often a worker sends a heartbeat as an event; `None` if [`workers`](Self::workers) needs
    /// none.
    fn heartbeat_interval(&self) -> Option<Duration> {
        None
    }

    /// Keeps a fact for workers that start later; `false` if the broker cannot, and workers tell
    /// each other.
    fn share<'a>(&'a self, fact: &'a SharedFact) -> LocalFuture<'a, Result<bool, BrokerError>>;

    /// The kept facts; `None` if the broker keeps none.
    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>>;

    /// Whether other workers may receive commands at this moment. Without any, a worker that starts
    /// asks nobody.
    fn has_others(&self) -> LocalFuture<'_, Result<bool, BrokerError>> {
        Box::pin(async { Ok(false) })
    }
}

/// A subscription. Dropped, it ends.
pub trait Notices: fmt::Debug {
    /// Waits for the next message.
    fn next(&mut self) -> LocalFuture<'_, Result<Notice, BrokerError>>;
}
