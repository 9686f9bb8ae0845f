//! The ready queue: which task is stepped next.
//!
//! The kernel is generic over it, so that a simulator can choose at random where the real kernel
//! goes round and round.

use std::collections::VecDeque;

use pikake_traps::TaskRef;

/// A ready queue. A task is in it at most once (I6); the kernel sees to that.
pub trait Pick: Default {
    /// Puts a task in.
    fn push(&mut self, task: TaskRef);

    /// Takes the task to step next out.
    fn pop(&mut self) -> Option<TaskRef>;

    /// How many tasks are ready.
    fn len(&self) -> usize;

    /// Whether no task is ready.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out: round-robin, no priorities.
#[derive(Debug, Default)]
pub struct Fifo(VecDeque<TaskRef>);

impl Pick for Fifo {
    #[inline]
    fn push(&mut self, task: TaskRef) {
        self.0.push_back(task);
    }

    #[inline]
    fn pop(&mut self) -> Option<TaskRef> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
