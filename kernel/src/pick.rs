//! The order of steps: which of the ready tasks the kernel steps next.
//!
//! Tasks that become ready enter the kernel's ready list at its end. A [`Pick`] takes them out: the
//! real kernel's from the front, a simulator's at random.

use pikake_traps::{ReadyList, TaskRef};

/// Takes tasks out of the ready list.
pub trait Pick: Default {
    /// Returns the task to step next, from the list or from tasks that earlier calls took out of
    /// the list.
    fn pop(&self, ready: &ReadyList) -> Option<TaskRef>;

    /// The number of tasks that were taken out of the list and not returned.
    fn len(&self) -> usize;

    /// Whether a new task that may make its first step at once does so. Called once for each.
    fn begins_at_once(&self) -> bool {
        true
    }

    /// Whether work that another kernel may begin is offered although the kernel is on time. Called
    /// once for each.
    fn offers_early(&self) -> bool {
        false
    }

    /// Whether all tasks that were taken out of the list were returned.
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
