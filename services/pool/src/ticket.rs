//! A caller's place in the queue of a pool.
//!
//! The slot is in the queue until it has its answer: a lease or an error. A caller who goes away
//! leaves the queue, or gives back the lease that it has not seen.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use pikake_traps::{About, Interrupted, WaitQueue, park_at};

use crate::core::Core;
use crate::error::GetError;
use crate::holder::{Note, holders_text};
use crate::lease::Lease;
use crate::manager::Manager;

pub(crate) type Answer<M> = Result<Lease<M>, GetError<<M as Manager>::Error>>;

/// A caller who waits.
pub(crate) struct Slot<M: Manager> {
    pub(crate) number: u64,
    pub(crate) note: Note,
    answer: OnceCell<Cell<Option<Answer<M>>>>,
    queue: WaitQueue,
}

impl<M: Manager> Slot<M> {
    pub(crate) fn new(number: u64, note: Note) -> Self {
        Self { number, note, answer: OnceCell::new(), queue: WaitQueue::new() }
    }

    /// Answers a caller who was taken out of the queue.
    pub(crate) fn answer(&self, answer: Answer<M>) {
        let _ = self.answer.set(Cell::new(Some(answer)));
        self.queue.wake(1);
    }
}

/// The drop gives up.
pub(crate) struct Ticket<M: Manager> {
    core: Rc<Core<M>>,
    slot: Rc<Slot<M>>,
}

impl<M: Manager> Ticket<M> {
    pub(crate) fn new(core: &Rc<Core<M>>, slot: Rc<Slot<M>>) -> Self {
        Self { core: core.clone(), slot }
    }

    /// Waits for the answer, which is given once.
    pub(crate) async fn wait(&self) -> Result<Answer<M>, Interrupted> {
        loop {
            if let Some(answer) = self.slot.answer.get().and_then(Cell::take) {
                return Ok(answer);
            }
            park_at((&self.slot.queue, || self.about()), self.slot.note.place).await?;
        }
    }

    fn about(&self) -> About {
        let (stats, holders) = (self.core.stats(), self.core.holders());
        let mut text = format!(
            "object of pool{}, {} of {} in use",
            self.core.label(),
            stats.leased,
            stats.limit
        );
        if !holders.is_empty() {
            text.push_str(", ");
            text.push_str(&holders_text(&holders, holders.len()));
        }
        About::new(text).owned_by(self.core.owners())
    }
}

impl<M: Manager> Drop for Ticket<M> {
    fn drop(&mut self) {
        match self.slot.answer.get() {
            None => self.core.leave(self.slot.number),
            Some(answer) => {
                if let Some(Ok(lease)) = answer.take() {
                    Lease::return_unused(lease);
                }
            }
        }
        self.core.keep_slot(&self.slot);
    }
}
