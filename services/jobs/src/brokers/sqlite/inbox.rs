//! How the thread of a database hands messages to the tasks of a kernel.
//!
//! Besides this, the two share only the outcomes (`outcomes.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pikake_sync::shared::Event;

use crate::broker::BrokerError;
use crate::message::Message;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No foreign code runs under these locks, so the content of a poisoned one is consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages that were taken for a consumer, and that it has not seen yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    content: Mutex<Content>,
    /// Set when `look` would return something.
    look: Event,
}

#[derive(Debug, Default)]
struct Content {
    messages: VecDeque<Arrived>,
    error: Option<BrokerError>,
    state: InboxState,
}

/// The state of a consumer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InboxState {
    /// It takes messages.
    #[default]
    Open,
    /// It takes no more messages.
    Cancelled,
    /// The consumer has been dropped: its messages are requeued.
    Left,
    /// The database has been closed.
    Closed,
}

/// A message on its way to a consumer.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) tag: u64,
    pub(crate) attempt: u32,
    pub(crate) message: Message,
}

impl Inbox {
    /// The next message or error; `None` if there is nothing yet.
    pub(crate) fn look(&self) -> Option<Result<Option<Arrived>, BrokerError>> {
        let mut content = lock(&self.content);
        if content.state == InboxState::Closed {
            return Some(Err(BrokerError::Closed));
        }
        if let Some(arrived) = content.messages.pop_front() {
            return Some(Ok(Some(arrived)));
        }
        if let Some(error) = content.error.take() {
            return Some(Err(error));
        }
        if content.state == InboxState::Cancelled {
            return Some(Ok(None));
        }
        self.look.clear();
        None
    }

    pub(crate) fn event(&self) -> &Event {
        &self.look
    }

    pub(crate) fn put(&self, arrived: Vec<Arrived>) {
        lock(&self.content).messages.extend(arrived);
        self.look.set();
    }

    pub(crate) fn fail(&self, error: BrokerError) {
        lock(&self.content).error = Some(error);
        self.look.set();
    }

    /// Goes on to a later state; never back.
    pub(crate) fn set_state(&self, state: InboxState) {
        {
            let mut content = lock(&self.content);
            content.state = content.state.max(state);
        }
        self.look.set();
    }

    pub(crate) fn state(&self) -> InboxState {
        lock(&self.content).state
    }

    /// The tags of the messages that the consumer has not seen.
    pub(crate) fn unseen(&self) -> BTreeSet<u64> {
        lock(&self.content).messages.iter().map(|arrived| arrived.tag).collect()
    }

    /// Removes the messages that the consumer has not seen.
    pub(crate) fn clear(&self) {
        let messages = std::mem::take(&mut lock(&self.content).messages);
        drop(messages);
    }
}
