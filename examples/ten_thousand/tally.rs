//! What one end counts, and how its tasks wait for each other.
//!
//! The tasks of an end share a `Tally`: plain cells, since they share a thread, and a wait queue
//! for those that wait for a count to be complete. A failure ends every such wait.

use std::cell::{Cell, RefCell};

use pikake::traps::{WaitQueue, park};

use crate::options::Options;
use crate::{Failure, system};

pub(crate) struct Tally {
    pub(crate) options: Options,
    /// Connections that were made, all of them at the same time if none has ended.
    joined: Cell<usize>,
    /// Connections that have done what they were to do.
    finished: Cell<usize>,
    bytes: Cell<u64>,
    resident_at_the_end: Cell<Option<u64>>,
    /// The first failure; the others follow from it.
    failure: RefCell<Option<String>>,
    changed: WaitQueue,
}

impl Tally {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            joined: Cell::new(0),
            finished: Cell::new(0),
            bytes: Cell::new(0),
            resident_at_the_end: Cell::new(None),
            failure: RefCell::new(None),
            changed: WaitQueue::new(),
        }
    }

    pub(crate) fn joined(&self) -> usize {
        self.joined.get()
    }

    /// How many connections are open.
    pub(crate) fn held(&self) -> usize {
        self.joined.get() - self.finished.get()
    }

    /// How many messages have gone through.
    pub(crate) fn messages(&self) -> u64 {
        self.bytes.get() / self.options.size as u64
    }

    pub(crate) fn is_exchange_over(&self) -> bool {
        self.bytes.get() >= self.options.bytes()
    }

    /// The resident set when the last byte had gone through.
    pub(crate) fn resident_at_the_end(&self) -> Option<u64> {
        self.resident_at_the_end.get()
    }

    pub(crate) fn join(&self) {
        self.count(&self.joined);
    }

    pub(crate) fn finish(&self) {
        self.count(&self.finished);
    }

    fn count(&self, counter: &Cell<usize>) {
        counter.set(counter.get() + 1);
        // Those that wait do so for the last one; to wake them for each would cost its square.
        if counter.get() == self.options.connections {
            self.changed.wake(usize::MAX);
        }
    }

    pub(crate) fn add_bytes(&self, count: usize) {
        self.bytes.set(self.bytes.get() + count as u64);
        if self.is_exchange_over() {
            self.resident_at_the_end.set(system::resident_bytes());
        }
    }

    pub(crate) fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
        self.changed.wake(usize::MAX);
    }

    pub(crate) fn failure(&self) -> Result<(), Failure> {
        self.failure.borrow().as_ref().map_or(Ok(()), |why| Err(why.as_str().into()))
    }

    /// Waits until every connection is made; fails as soon as something has.
    pub(crate) async fn all_joined(&self) -> Result<(), Failure> {
        self.all(&self.joined).await
    }

    /// Waits until every connection has finished; fails as soon as something has.
    pub(crate) async fn all_finished(&self) -> Result<(), Failure> {
        self.all(&self.finished).await
    }

    async fn all(&self, counter: &Cell<usize>) -> Result<(), Failure> {
        loop {
            self.failure()?;
            if counter.get() == self.options.connections {
                return Ok(());
            }
            park(&self.changed).await?;
        }
    }
}
