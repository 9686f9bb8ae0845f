//! Celery's canvas: what follows from the end of a job, as a list of actions, and workflows as
//! messages.
//!
//! No broker is needed for it. A worker or a sender carries the actions out, in their order, and
//! each again until the broker has answered. The same job gives the same actions with the same ids,
//! so that a second run of it sends no other jobs.

pub(crate) mod apply;
pub(crate) mod embed;

use std::any::Any;
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::message::{ChordMember, Message, Outcome};
use crate::wire::signature::Raw;

/// Celery's job, which these workers have, too, that returns the values of the group before it.
pub(crate) const COLLECT: &str = "celery.accumulate";

/// What is to be done at a broker.
#[derive(Debug)]
pub(crate) enum Action {
    Publish(Box<Outgoing>),
    /// Store the outcome of the job of a message that is not to run any more. The message has an id
    /// and a `reply_to`, if anything.
    Store(Box<Message>, Rc<Outcome>),
    /// Tell the broker how many members a chord has.
    BeginChord(String, u32),
    /// Add a member to its chord.
    Join(Box<Joining>),
    /// Forget a chord, and no longer keep its members from others.
    EndChord(String, Option<Box<dyn Any>>),
}

/// A member of a chord that has ended.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) member: ChordMember,
    /// The job that follows all members.
    pub(crate) body: Raw,
    /// The headers of the member's trace, which that job gets.
    pub(crate) headers: Map<String, Value>,
}

/// A job that is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The queue, if its signature names one.
    pub(crate) queue: Option<String>,
    pub(crate) message: Message,
    pub(crate) not_before: Option<SystemTime>,
}

impl Outgoing {
    /// The name of the job.
    pub(crate) fn job(&self) -> &str {
        self.message.headers.get("task").and_then(Value::as_str).unwrap_or_default()
    }
}
