//! Light parks: waits in a wait queue that need no record.
//!
//! Most tasks that wait in a queue wait for nothing else, are the only ones there, and are woken before
//! any cause concerns them. Such a wait is kept beside its task, in a *slot* of which each task has one:
//! nothing is inserted, linked and removed for it. It is seen and counted like any other.
//!
//! ```text
//!            (1)             (2)           (3)
//!    Free ────────▶ Waiting ──────▶ Woken ──────▶ Free
//!                     │               │             ▲
//!                     │ (4)           │ (4)         │ (5)
//!                     └──────▶ Made ◀─┘─────────────┘
//! ```
//!
//! (1) [`Book::park_lightly`]. (2) [`Book::wake_light`]. (3) [`Book::collect_light`]; or its future is
//! dropped, from (1) on ([`Book::drop_light`]). (4) [`Book::make_record_of`]: a cause concerns the task,
//! the task or the queue ends, or the wait is polled where it was not before. From then on it is a record
//! like others, which its future knows by the slot. (5) That has been collected or withdrawn.
//!
//! A slot belongs to a task's number in the book, and outlives the task: the next task with that number
//! finds the slot taken, as long as it is, and has records.

use std::panic::Location;
use std::task::{Context, Poll, Waker};

use pikake_time::Clock;
use pikake_traps::{Interrupted, Light, TrapKind};

use crate::book::{Book, NONE};
use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::queues::QueueRef;
use crate::record::State;

/// In a key: it names a slot, and not a record.
const LIGHT: u32 = 1 << 31;

/// The slot that a key names; `None`: it is that of a record.
#[inline]
pub(crate) fn slot_of(key: u32) -> Option<u32> {
    (key & LIGHT != 0).then_some(key & !LIGHT)
}

/// Where a task's light park is noted.
pub(crate) struct Slot {
    stage: Stage,
    pub(crate) place: &'static Location<'static>,
    queue: QueueRef,
    /// The step in which, or after which, it was woken.
    answered_in: u64,
}

/// How far a light park is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Free,
    /// It is the first in its queue.
    Waiting,
    /// It was woken from its queue.
    Woken,
    /// It is this record.
    Made(u32),
}

/// What a wait was whose future was dropped.
pub(crate) enum Dropped {
    /// It waited, and is out of its queue.
    Waiting,
    /// It had been woken from this queue.
    Woken(QueueRef),
    /// It is this record, which is still there.
    Record(u32),
}

impl Slot {
    pub(crate) fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }
}

impl<P: Pick> Book<P> {
    /// Parks the current task in a wait queue without a record, if that may be. Gives the key.
    #[inline]
    pub(crate) fn park_lightly(
        &mut self,
        queue: u32,
        waker: &Waker,
        place: &'static Location<'static>,
    ) -> Option<u32> {
        let stepping = self.stepping?;
        let task = &self.tasks[stepping as usize].task;
        if self.scope.is_some() || task.ledger().light.get() == Light::Off || !task.owns(waker) {
            return None;
        }
        let found = &mut self.queues[queue as usize];
        let slot = self.slots.get_mut(stepping as usize)?;
        if slot.stage != Stage::Free || !found.is_empty() {
            return None;
        }
        let queue = found.add_light(queue, stepping);
        *slot = Slot { stage: Stage::Waiting, place, queue, answered_in: 0 };
        Some(stepping | LIGHT)
    }

    /// Has the current task find a slot when it parks next.
    #[inline]
    pub(crate) fn add_slot(&mut self) {
        let count = self.stepping.map_or(0, |stepping| stepping as usize + 1);
        if self.slots.len() < count {
            let place = Location::caller();
            let queue = QueueRef::NONE;
            self.slots.resize_with(count, || Slot {
                stage: Stage::Free,
                place,
                queue,
                answered_in: 0,
            });
        }
    }

    /// Wakes a light park that has been taken out of its queue.
    #[inline(always)]
    pub(crate) fn wake_light(&mut self, slot: u32) {
        let found = &mut self.slots[slot as usize];
        found.stage = Stage::Woken;
        found.answered_in = self.step;
        self.rouse_task(slot);
    }

    /// Whether a light park that is polled is over, which ends it.
    #[inline]
    pub(crate) fn collect_light(&mut self, slot: u32) -> bool {
        let found = &mut self.slots[slot as usize];
        let is_over =
            found.stage == Stage::Woken && self.branch.is_empty() && self.stepping.is_some();
        if is_over {
            found.stage = Stage::Free;
        }
        is_over
    }

    /// Whether a light park waits, and is polled as it was before.
    pub(crate) fn waits_as_before(&self, slot: u32, waker: &Waker) -> bool {
        self.slots[slot as usize].is_waiting()
            && self.stepping == Some(slot)
            && self.scope.is_none()
            && self.branch.is_empty()
            && self.tasks[slot as usize].task.owns(waker)
    }

    /// Ends a light park whose future is dropped.
    pub(crate) fn drop_light(&mut self, slot: u32) -> Dropped {
        let found = &mut self.slots[slot as usize];
        let queue = found.queue;
        match std::mem::replace(&mut found.stage, Stage::Free) {
            Stage::Free => unreachable!("its slot is taken as long as it waits (I1)"),
            Stage::Waiting => {
                self.remove_light(queue.index);
                Dropped::Waiting
            }
            Stage::Woken => Dropped::Woken(queue),
            Stage::Made(record) => Dropped::Record(record),
        }
    }

    /// Gives a slot up whose wait had become a record, which is gone.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        self.slots[slot as usize].stage = Stage::Free;
    }

    /// Whether there is something in the slot of the task with that number.
    #[inline]
    pub(crate) fn has_slot_taken(&self, task: u32) -> bool {
        self.slots.get(task as usize).is_some_and(|slot| slot.stage != Stage::Free)
    }

    /// Makes a record of the light park of a task, if it has one; `None` if not.
    #[inline(never)]
    pub(crate) fn make_record_of(&mut self, slot: u32) -> Option<u32> {
        let &Slot { stage, place, queue, answered_in } = self.slots.get(slot as usize)?;
        match stage {
            Stage::Free => return None,
            Stage::Made(record) => return Some(record),
            Stage::Waiting | Stage::Woken => {}
        }
        let task = self.tasks[slot as usize].task.clone();
        let current = self.scope.take();
        let record = self.park(task, TrapKind::Park, None, place);
        self.scope = current;
        if stage == Stage::Waiting {
            self.put_in_place_of_light(record, queue);
        } else {
            let made = self.record_mut(record);
            made.state = State::Done(Some(queue));
            made.answered_in = answered_in;
        }
        self.slots[slot as usize].stage = Stage::Made(record);
        Some(record)
    }

    /// How many light parks have not been collected and are not records.
    pub(crate) fn light_parks(&self) -> usize {
        let is_one = |slot: &&Slot| matches!(slot.stage, Stage::Waiting | Stage::Woken);
        self.slots.iter().filter(is_one).count()
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Polls a light park, or the record that was made of it.
    #[inline]
    pub(crate) fn poll_light(&self, slot: u32, cx: &Context<'_>) -> Poll<Result<(), Interrupted>> {
        if self.book.borrow_mut().collect_light(slot) {
            return Poll::Ready(Ok(()));
        }
        self.poll_light_with_care(slot, cx)
    }

    #[inline(never)]
    fn poll_light_with_care(&self, slot: u32, cx: &Context<'_>) -> Poll<Result<(), Interrupted>> {
        let record = {
            let mut book = self.book.borrow_mut();
            if book.waits_as_before(slot, cx.waker()) {
                return Poll::Pending;
            }
            book.make_record_of(slot).expect("its slot is taken as long as it waits (I1)")
        };
        let polled = self.poll_record(record, cx);
        if polled.is_ready() {
            self.book.borrow_mut().free_slot(slot);
        }
        polled
    }
}

const _: () = assert!(NONE & LIGHT != 0, "no record and no slot has that number");
