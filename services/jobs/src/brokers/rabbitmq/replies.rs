//! Outcomes that come back by RabbitMQ's direct reply-to.
//!
//! The answers come to the channel that published the question. One task of each channel reads
//! them, and a table has the outcomes that are expected. A question that was asked over a channel
//! or a connection that is lost is not answered any more.

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
    /// The channel over which the answer comes, and the epoch of its connection; set once the
    /// broker has the question, until the answer has come or is lost. Meanwhile the channel stays
    /// open.
    asked_over: Option<(Rc<ReplyReader>, u64)>,
    /// Whether that channel is lost.
    is_lost: bool,
    /// Set when something has changed.
    changed: Rc<Event>,
}

impl Expected {
    /// Whether its outcome has come.
    fn is_over(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.state.is_final())
    }
}

type Table = RefCell<BTreeMap<JobId, Expected>>;

#[derive(Debug, Default)]
pub(crate) struct Replies {
    table: Rc<Table>,
    /// The number of the last reader.
    numbers: Cell<u64>,
    /// Cloned by each reader, so that they can be counted.
    living: Rc<()>,
}

/// Reads the answers that come to a channel, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    number: u64,
    channel: Channel,
    reader: CancelOnDrop<()>,
    _watcher: CancelOnDrop<()>,
    _living: Rc<()>,
    /// The name by which others answer to this channel, in an epoch of its connection.
    address: RefCell<Option<(u64, String)>>,
}

impl ReplyReader {
    /// The name by which others answer to this channel, if it is known in this epoch.
    pub(crate) fn address(&self) -> Option<String> {
        let epoch = self.channel.connection().epoch();
        let address = self.address.borrow();
        address.as_ref().filter(|(of, _)| *of == epoch).map(|(_, address)| address.clone())
    }

    pub(crate) fn set_address(&self, epoch: u64, address: String) {
        self.address.replace(Some((epoch, address)));
    }
}

impl Replies {
    /// Begins to read what comes to a channel.
    pub(crate) async fn read(&self, channel: &Channel) -> Result<Rc<ReplyReader>, Error> {
        let consumer = channel.direct_reply_to().await?;
        let number = self.numbers.replace(self.numbers.get() + 1);
        let table = || Rc::downgrade(&self.table);
        let reader = Builder::new().name("replies").spawn(read(consumer, table(), number));
        let watch = watch(channel.connection().clone(), table(), number);
        let watcher = Builder::new().name("lost replies").spawn(watch);
        Ok(Rc::new(ReplyReader {
            number,
            channel: channel.clone(),
            reader: reader.cancel_on_drop(),
            _watcher: watcher.cancel_on_drop(),
            _living: self.living.clone(),
            address: RefCell::default(),
        }))
    }

    /// How many channels are read.
    pub(crate) fn readers(&self) -> usize {
        Rc::strong_count(&self.living) - 1
    }

    /// The broker has had the question over that channel, in that epoch of the connection. The
    /// channel may be lost by now.
    pub(crate) fn set_asked(&self, job: &JobId, over: &Rc<ReplyReader>, epoch: u64) {
        let mut table = self.table.borrow_mut();
        if let Some(expected) = table.get_mut(job).filter(|expected| !expected.is_over()) {
            let is_current = epoch == over.channel.connection().epoch();
            expected.is_lost = over.reader.is_finished() || !is_current;
            expected.asked_over = (!expected.is_lost).then(|| (over.clone(), epoch));
            if expected.is_lost {
                expected.changed.set();
            }
        }
    }

    pub(crate) fn expect(&self, job: JobId) {
        self.table.borrow_mut().entry(job).or_default();
    }

    pub(crate) fn forget(&self, job: &JobId) {
        let gone = self.table.borrow_mut().remove(job);
        if let Some(expected) = gone {
            expected.changed.set();
        }
    }

    pub(crate) fn outcome(&self, job: &JobId) -> Option<Outcome> {
        self.table.borrow().get(job)?.outcome.clone()
    }

    pub(crate) async fn wait(&self, job: &JobId) -> Result<Outcome, BrokerError> {
        loop {
            let changed = {
                let mut table = self.table.borrow_mut();
                let expected = table.get_mut(job).ok_or(BrokerError::NoOutcome)?;
                if let Some(outcome) = expected.outcome.as_ref().filter(|o| o.state.is_final()) {
                    return Ok(outcome.clone());
                }
                if expected.is_lost {
                    return Err(BrokerError::NoOutcome);
                }
                expected.changed.clear();
                expected.changed.clone()
            };
            changed.wait().await?;
        }
    }

    /// Notifies all waiters that nothing comes any more.
    pub(crate) fn close(&self) {
        let gone = self.table.take();
        for expected in gone.values() {
            expected.changed.set();
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
            expected.changed.set();
        }
        if expected.is_over() {
            // The channel may go with it, and this task with that.
            expected.asked_over = None;
        }
    }
    set_lost(&table, number, |_| true);
}

/// What was asked over that channel in a lost epoch is not answered any more. What is still to be
/// asked goes over another channel.
fn set_lost(table: &Weak<Table>, number: u64, is_lost: impl Fn(u64) -> bool) {
    let Some(table) = table.upgrade() else { return };
    for expected in table.borrow_mut().values_mut() {
        let asked_over = expected.asked_over.as_ref();
        if asked_over.is_some_and(|(over, epoch)| over.number == number && is_lost(*epoch)) {
            expected.asked_over = None;
            expected.is_lost = true;
            expected.changed.set();
        }
    }
}

/// Looks at each change of the connection for one that has lost the answers.
async fn watch(connection: Connection, table: Weak<Table>, number: u64) {
    while !matches!(connection.changed().await, Ok(State::Closed(_)) | Err(_)) {
        // It may have been lost, and recovered since.
        set_lost(&table, number, |epoch| epoch != connection.epoch());
    }
}
