//! What follows from the end of a job, by the `embed` of its message: the jobs after it are sent
//! before its outcome is stored, and outcomes of jobs that are not to run any more are stored after
//! it.
//!
//! The message is acknowledged last, so a crash in between publishes jobs twice, with the same ids,
//! and loses none.

use std::collections::VecDeque;

use serde_json::Value;

use crate::canvas::Action;
use crate::canvas::embed::{Embed, Ended};
use crate::client::app::App;
use crate::message::{Message, Outcome};
use crate::wire::signature::{CanvasSignature, Refused};

/// A job that has ended, and whose message tells what follows.
#[derive(Clone, Copy)]
pub(crate) struct Follow<'a> {
    pub(crate) app: &'a App,
    pub(crate) message: &'a Message,
    /// How often the message was delivered before.
    pub(crate) attempt: u32,
    /// Whether another job joins the chord in the place of this one.
    pub(crate) joins_later: bool,
}

impl<'a> Follow<'a> {
    /// A job that was delivered once, if at all, and joins its chord itself.
    pub(crate) fn first(app: &'a App, message: &'a Message) -> Self {
        Self { app, message, attempt: 0, joins_later: false }
    }

    fn ended<T>(&self, plan: impl FnOnce(&Ended<'_>) -> T) -> T {
        let Self { app, message, attempt, joins_later } = *self;
        let arity = |name: &str| app.arity(name);
        plan(&Ended { message, attempt, joins_later, origin: app.origin(), arity: &arity })
    }

    fn embed(&self) -> Box<Embed> {
        Embed::of(self.message).unwrap_or_default()
    }

    /// What follows from a success, before its outcome is stored.
    pub(crate) fn success(&self, value: &Value) -> Result<VecDeque<Action>, Refused> {
        self.ended(|ended| self.embed().success(ended, value)).map(Into::into)
    }

    /// A workflow in the place of a job that has returned it.
    pub(crate) fn in_place(
        &self,
        mut workflow: CanvasSignature,
    ) -> Result<VecDeque<Action>, Refused> {
        workflow.set_queues(&|job| self.app.queue_of(job))?;
        self.ended(|ended| self.embed().replace(ended, workflow)).map(Into::into)
    }

    /// Members that a job adds to its chord, before its outcome is stored.
    pub(crate) fn added_members(
        &self,
        value: &Value,
        mut members: Vec<CanvasSignature>,
        queue: &str,
    ) -> Result<VecDeque<Action>, Refused> {
        for member in &mut members {
            member.set_queues(&|job| self.app.queue_of(job))?;
        }
        self.ended(|ended| self.embed().add_members(ended, value, &members, queue)).map(Into::into)
    }

    /// What follows from any end, after its outcome is stored.
    pub(crate) fn outcome(&self, outcome: &Outcome) -> VecDeque<Action> {
        self.ended(|ended| self.embed().stored(ended, outcome)).into()
    }

    /// What follows from the end of a job some of whose followers were not sent: these have
    /// outcomes of their own.
    pub(crate) fn unsent(&self, outcome: &Outcome) -> VecDeque<Action> {
        self.ended(|ended| self.embed().without_chain().stored(ended, outcome)).into()
    }
}
