//! The operations of a wait queue that need its kernel.

use std::fmt;

use super::{WaitQueue, WaiterList};
use crate::cell::reference::TaskRef;
use crate::door;
use crate::names::KernelId;

impl WaitQueue {
    /// Signals the first `count` waiters, or all if there are fewer. Returns the number signalled.
    /// Waiters for permits get no signal.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends.
    #[inline]
    pub fn wake(&self, count: usize) -> usize {
        if self.length.get() == 0 || self.has_takers.get() { 0 } else { self.signal(count) }
    }

    #[inline(never)]
    fn signal(&self, count: usize) -> usize {
        let notified = door::reach(self.kernel.get(), |local| {
            let notified = local.kernel().notify(self, count);
            local.call_wakers();
            notified
        });
        notified.unwrap_or_else(|| {
            self.forget_kernel();
            0
        })
    }

    /// Takes `count` permits, if they are free and no waiter is in the queue. Permits that a kernel
    /// had granted before its end are not free until [`recover`](Self::recover).
    #[inline(always)]
    pub fn try_take(&self, count: usize) -> bool {
        let free = self.free.get();
        if free < count {
            return false;
        }
        if self.length.get() > 0 {
            return self.forget_ended_kernel() && self.try_take(count);
        }
        self.free.set(free - count);
        true
    }

    /// Makes `count` permits free, and [serves](Self::serve) the waiters.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends. The permits
    /// need not have been taken before, as long as no more than `usize::MAX` are free.
    #[inline]
    pub fn give(&self, count: usize) {
        self.free.set(self.free.get() + count);
        self.serve();
    }

    /// Grants free permits to the waiters, the first one first.
    #[inline]
    pub fn serve(&self) {
        if self.length.get() > 0 && self.has_takers.get() {
            self.grant_free();
        }
    }

    #[inline(never)]
    fn grant_free(&self) {
        let reached = door::reach(self.kernel.get(), |local| {
            local.kernel().notify(self, usize::MAX);
            local.call_wakers();
        });
        if reached.is_none() {
            self.forget_kernel();
        }
    }

    /// The number of waiters.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.length.get() as usize }
    }

    /// Whether the queue has no waiter.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length.get() == 0 || self.forget_ended_kernel()
    }

    /// The task of a waiter that was granted permits and has not collected them, if there is one
    /// and the kernel knows it. The kernel may search all of its waits. For listings.
    pub fn granted_to(&self) -> Option<TaskRef> {
        door::reach(self.kernel.get(), |local| local.kernel().inspect()?.granted_to(self)).flatten()
    }

    /// Frees the permits that a kernel had granted before its end. For primitives, when a waiter
    /// has left: an ended kernel does not return the waiter's permits.
    pub fn recover(&self) {
        if self.kernel.get() != KernelId::NONE {
            self.forget_ended_kernel();
        }
    }

    /// Forgets the kernel if it has ended. Returns whether it has.
    #[inline(never)]
    fn forget_ended_kernel(&self) -> bool {
        let has_ended = door::reach(self.kernel.get(), |_| ()).is_none();
        if has_ended {
            self.forget_kernel();
        }
        has_ended
    }

    /// Forgets an ended kernel and its waiters, and frees the permits that were granted to them.
    #[cold]
    fn forget_kernel(&self) {
        self.kernel.set(KernelId::NONE);
        self.waiters.set(WaiterList::EMPTY);
        self.length.set(0);
        self.returned(self.granted.get());
    }

    /// Makes the queue part of a kernel, whose table has its waiters from now on, before a task
    /// waits in it for permits (`is_taker`) or for a signal.
    ///
    /// # Panics
    ///
    /// When the queue is part of another kernel that has not ended, or has waiters of the other
    /// kind.
    #[inline]
    pub(crate) fn join(&self, kernel: KernelId, is_taker: bool) {
        if self.kernel.get() != kernel {
            self.change_kernel(kernel);
        }
        if self.has_takers.get() != is_taker {
            assert!(
                self.length.get() == 0,
                "a wait queue cannot serve waiters for signals and for permits at once: give each \
                 a queue"
            );
            self.has_takers.set(is_taker);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_kernel(&self, kernel: KernelId) {
        let before = self.kernel.get();
        assert!(
            before == KernelId::NONE || self.forget_ended_kernel(),
            "a wait queue (of a lock, a channel or a task) was used in two kernels at once: \
             kernel {before} has its waiters, and a task of kernel {kernel} waits in it"
        );
        self.kernel.set(kernel);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for WaitQueue {
    #[inline]
    fn drop(&mut self) {
        // The remaining waiters are those of futures that the program has leaked.
        if self.length.get() > 0 {
            door::reach(self.kernel.get(), |local| local.kernel().forget(self));
        }
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WaitQueue");
        shown.field("waiting", &self.len()).field("free", &self.free()).finish()
    }
}
