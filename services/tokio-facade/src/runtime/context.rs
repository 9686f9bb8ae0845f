//! The thread-locals of tokio's files: the current task's id, its budget, random numbers.

use std::cell::Cell;
use std::task::Waker;
use std::thread::AccessError;

use super::names::Id;
use crate::task::coop::Budget;
use crate::util::rand::{FastRand, RngSeed};

thread_local! {
    static TASK: Cell<Option<Id>> = const { Cell::new(None) };
    static BUDGET: Cell<Budget> = const { Cell::new(Budget::unconstrained()) };
    static RANDOM: Cell<Option<FastRand>> = const { Cell::new(None) };
}

pub(crate) fn current_task_id() -> Option<Id> {
    TASK.try_with(Cell::get).ok().flatten()
}

/// Calls `work` with a task's id as the current one.
pub(crate) fn with_task_id<R>(id: Id, work: impl FnOnce() -> R) -> R {
    struct Back(Option<Id>);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = TASK.try_with(|task| task.set(self.0));
        }
    }
    let _back = Back(TASK.try_with(|task| task.replace(Some(id))).ok().flatten());
    work()
}

pub(crate) fn budget<R>(work: impl FnOnce(&Cell<Budget>) -> R) -> Result<R, AccessError> {
    BUDGET.try_with(work)
}

/// Wakes a task that has spent its budget: it is stepped after the tasks that are ready.
pub(crate) fn defer(waker: &Waker) {
    waker.wake_by_ref();
}

pub(crate) fn thread_rng_n(n: u32) -> u32 {
    RANDOM.with(|random| {
        let mut numbers = random.get().unwrap_or_else(|| FastRand::from_seed(RngSeed::new()));
        let number = numbers.fastrand_n(n);
        random.set(Some(numbers));
        number
    })
}

/// Permission to block this thread.
pub(crate) struct BlockingRegionGuard(());

/// `None` inside a kernel, whose tasks would all be blocked.
pub(crate) fn try_enter_blocking_region() -> Option<BlockingRegionGuard> {
    pikake_traps::door::current_kernel().is_none().then_some(BlockingRegionGuard(()))
}

impl BlockingRegionGuard {
    pub(crate) fn block_on<F: std::future::Future>(
        &mut self,
        future: F,
    ) -> Result<F::Output, AccessError> {
        super::park::CachedParkThread::new().block_on(future)
    }
}
