//! The ready queue: which task is stepped next.
//!
//! Tasks that become ready are put into the list of the kernel's near half, in order. The kernel is generic
//! over what takes them out, so that a simulator can choose at random where the real kernel goes round
//! and round.

use pikake_traps::{ReadyList, TaskRef};

/// Takes tasks out of the ready list.
pub trait Pick: Default {
    /// Takes out the task to step next: from the list, or from among those that it has taken out of the
    /// list before.
    fn pop(&self, ready: &ReadyList) -> Option<TaskRef>;

    /// How many tasks it has taken out of the list and not given.
    fn len(&self) -> usize;

    /// Whether it has given all tasks that it has taken out of the list.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out: round-robin, no priorities.
#[derive(Debug, Default)]
pub struct Fifo;

impl Pick for Fifo {
    #[inline(always)]
    fn pop(&self, ready: &ReadyList) -> Option<TaskRef> {
        ready.pop()
    }

    #[inline(always)]
    fn len(&self) -> usize {
        0
    }
}
