//! The ends of tasks: the lists of the waiters that join a task. The table of the queues has the
//! waiters.

use pikake_traps::{Parked, TaskRef, WaitKey, Waiter, WaiterList};

use super::Queues;
use crate::tasks::Tasks;

pub(crate) fn park(
    tasks: &mut Tasks,
    queues: &mut Queues,
    task: &TaskRef,
    waiter: Waiter,
) -> Parked {
    match tasks.joiners(task) {
        Some(joiners) => queues.park(joiners, waiter, 0),
        None => Parked::Never,
    }
}

pub(crate) fn leave(
    tasks: &mut Tasks,
    queues: &mut Queues,
    task: &TaskRef,
    key: WaitKey,
) -> Waiter {
    let mut none = WaiterList::EMPTY;
    let joiners = tasks.joiners(task).unwrap_or(&mut none);
    queues.leave(key, joiners).0
}
