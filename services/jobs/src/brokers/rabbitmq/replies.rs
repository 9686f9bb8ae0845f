//! Outcomes that are sent back to who asked: RabbitMQ's direct reply-to.
//!
//! The answers come to the channel that published the question, so one task
//! reads them, and a table says who waits for which. What was asked over a connection that is lost can
//! not be answered any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pikake_amqp::{Channel, Connection, Consumer, Error, State};
use pikake_sync::Event;
use pikake_traps::{Builder, CancelOnDrop};

use crate::broker::BrokerError;
use crate::broker::outcomes::replaces;
use crate::message::{JobId, Outcome};

/// The queue that stands for the channel which publishes.
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

#[derive(Debug, Default)]
struct Expected {
    outcome: Option<Outcome>,
    /// Set once the question has reached the broker: over which channel the answer comes, which is kept for
    /// that until it has come or cannot come any more, and the epoch of its connection.
    asked_over: Option<(Rc<Reading>, u64)>,
    /// The channel is gone over which it was to come.
    is_lost: bool,
    /// Set when there is something to look at.
    look: Rc<Event>,
}

impl Expected {
    /// Its outcome has come.
    fn is_over(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.state.is_final())
    }
}

type Table = RefCell<BTreeMap<JobId, Expected>>;

#[derive(Debug, Default)]
pub(crate) struct Replies {
    table: Rc<Table>,
    readings: Cell<u64>,
}

/// Reads what comes to a channel, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    number: u64,
    pub(crate) channel: Channel,
    reader: CancelOnDrop<()>,
    _watcher: CancelOnDrop<()>,
}

impl Replies {
    /// Begins to read what comes to a channel.
    pub(crate) async fn read(&self, channel: &Channel) -> Result<Rc<Reading>, Error> {
        let consumer = channel.direct_reply_to().await?;
        let number = self.readings.replace(self.readings.get() + 1);
        let table = || Rc::downgrade(&self.table);
        let reader = Builder::new().name("replies").spawn(read(consumer, table(), number));
        let watch = watch(channel.connection().clone(), table(), number);
        let watcher = Builder::new().name("lost replies").spawn(watch);
        let (reader, _watcher) = (reader.cancel_on_drop(), watcher.cancel_on_drop());
        Ok(Rc::new(Reading { number, channel: channel.clone(), reader, _watcher }))
    }

    /// The broker had the question in that epoch of the connection: when the channel is gone, or that
    /// connection, it is not answered any more. They may be by now.
    pub(crate) fn is_asked(&self, job: &JobId, over: &Rc<Reading>, epoch: u64) {
        if let Some(expected) = self.table.borrow_mut().get_mut(job)
            && !expected.is_over()
        {
            let is_current = epoch == over.channel.connection().epoch();
            expected.is_lost = over.reader.is_finished() || !is_current;
            expected.asked_over = (!expected.is_lost).then(|| (over.clone(), epoch));
            if expected.is_lost {
                expected.look.set();
            }
        }
    }

    pub(crate) fn expect(&self, job: JobId) {
        self.table.borrow_mut().entry(job).or_default();
    }

    pub(crate) fn forget(&self, job: &JobId) {
        let gone = self.table.borrow_mut().remove(job);
        if let Some(expected) = gone {
            expected.look.set();
        }
    }

    pub(crate) fn outcome(&self, job: &JobId) -> Option<Outcome> {
        self.table.borrow().get(job)?.outcome.clone()
    }

    pub(crate) async fn wait(&self, job: &JobId) -> Result<Outcome, BrokerError> {
        loop {
            let look = {
                let mut table = self.table.borrow_mut();
                let expected = table.get_mut(job).ok_or(BrokerError::NoOutcome)?;
                if let Some(outcome) = expected.outcome.as_ref().filter(|o| o.state.is_final()) {
                    return Ok(outcome.clone());
                }
                if expected.is_lost {
                    return Err(BrokerError::NoOutcome);
                }
                expected.look.clear();
                expected.look.clone()
            };
            look.wait().await?;
        }
    }

    /// Nothing comes any more.
    pub(crate) fn close(&self) {
        let gone = self.table.take();
        for expected in gone.values() {
            expected.look.set();
        }
    }
}

async fn read(mut consumer: Consumer, table: Weak<Table>, number: u64) {
    while let Ok(reply) = consumer.next().await {
        let Ok((job, outcome)) = Outcome::from_meta(&reply.body) else { continue };
        let Some(table) = table.upgrade() else { return };
        let mut table = table.borrow_mut();
        let Some(expected) = table.get_mut(&job) else { continue };
        let before = expected.outcome.as_ref();
        if before.is_none_or(|before| replaces(outcome.state, before.state)) {
            expected.outcome = Some(outcome);
            expected.look.set();
        }
        if expected.is_over() {
            // The channel may go with it, and this task with that.
            expected.asked_over = None;
        }
    }
    lose(&table, number, |_| true);
}

/// The channel or its connection is gone. What was asked over it, in such an epoch, is not answered any
/// more; what is still to be asked goes over another.
fn lose(table: &Weak<Table>, number: u64, is_gone: impl Fn(u64) -> bool) {
    let Some(table) = table.upgrade() else { return };
    for expected in table.borrow_mut().values_mut() {
        let asked_over = expected.asked_over.as_ref();
        if asked_over.is_some_and(|(over, epoch)| over.number == number && is_gone(*epoch)) {
            expected.asked_over = None;
            expected.is_lost = true;
            expected.look.set();
        }
    }
}

async fn watch(connection: Connection, table: Weak<Table>, number: u64) {
    while !matches!(connection.changed().await, Ok(State::Closed(_)) | Err(_)) {
        // It may have been lost, and made again since.
        lose(&table, number, |epoch| epoch != connection.epoch());
    }
}
