//! The ends of tasks: the lists of the waiters that join a task. The table of the queues has the
//! waiters.

use pikake_traps::{Parked, TaskRef, WaitKey, Waiter, WaiterList};

use super::Queues;
use crate::tasks::Tasks;

/// The ends of tasks.
pub(crate) struct Ends<'a> {
    pub(crate) tasks: &'a mut Tasks,
    pub(crate) queues: &'a mut Queues,
}

impl Ends<'_> {
    pub(crate) fn park(self, task: &TaskRef, waiter: Waiter) -> Parked {
        match self.tasks.joiners(task) {
            Some(joiners) => self.queues.park(joiners, waiter, 0),
            None => Parked::Never,
        }
    }

    pub(crate) fn leave(self, task: &TaskRef, key: WaitKey) -> Waiter {
        let mut none = WaiterList::EMPTY;
        let joiners = self.tasks.joiners(task).unwrap_or(&mut none);
        self.queues.leave(key, joiners).0
    }
}
