//! What a wait queue asks of its kernel.

use std::fmt;

use super::{WaitQueue, WaiterList};
use crate::door;
use crate::names::KernelId;

impl WaitQueue {
    /// Signals up to `count` waiters, those that parked first, and tells how many there were. Waiters for
    /// permits get no signal.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends.
    #[inline]
    pub fn wake(&self, count: usize) -> usize {
        if self.length.get() == 0 { 0 } else { self.signal(count) }
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

    /// Takes permits, if so many are free and nobody waits for some. Permits that were granted in a kernel that has
    /// ended are not, before they are [recovered](Self::recover).
    #[inline(always)]
    pub fn try_take(&self, count: usize) -> bool {
        let free = self.free.get();
        if free < count {
            return false;
        }
        if self.length.get() > 0 {
            return self.has_lost_kernel() && self.try_take(count);
        }
        self.free.set(free - count);
        true
    }

    /// Makes permits free, and grants what is free to those that wait, the first one first.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends.
    /// What was never taken may be given as well, as long as no more than `usize::MAX` are free.
    #[inline]
    pub fn give(&self, count: usize) {
        self.free.set(self.free.get() + count);
        self.serve();
    }

    /// Grants what is free to those that wait, the first one first.
    #[inline]
    pub fn serve(&self) {
        if self.length.get() > 0 {
            self.grant_free();
        }
    }

    #[inline(never)]
    fn grant_free(&self) {
        let reached = door::reach(self.kernel.get(), |local| {
            local.kernel().serve(self);
            local.call_wakers();
        });
        if reached.is_none() {
            self.forget_kernel();
        }
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.length.get() as usize }
    }

    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length.get() == 0 || self.has_lost_kernel()
    }

    /// Frees what was granted to waiters of a kernel that has ended since. For primitives, when a waiter has
    /// left: a kernel that has ended cannot tell what it was granted.
    pub fn recover(&self) {
        if self.kernel.get() != KernelId::NONE {
            self.has_lost_kernel();
        }
    }

    #[inline(never)]
    fn has_lost_kernel(&self) -> bool {
        let is_lost = door::reach(self.kernel.get(), |_| ()).is_none();
        if is_lost {
            self.forget_kernel();
        }
        is_lost
    }

    /// The kernel has ended, and the waiters with it: what was granted to them is free again.
    #[cold]
    fn forget_kernel(&self) {
        self.kernel.set(KernelId::NONE);
        self.waiters.set(WaiterList::EMPTY);
        self.length.set(0);
        self.returned(self.granted.get());
    }

    /// Makes the queue part of a kernel, in whose table its waiters are from now on. For kernels, before a
    /// task waits.
    ///
    /// # Panics
    ///
    /// When the queue is part of another kernel that still lives; it stays so.
    #[inline]
    pub fn join_kernel(&self, kernel: KernelId) {
        if self.kernel.get() != kernel {
            self.change_kernel(kernel);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_kernel(&self, kernel: KernelId) {
        let before = self.kernel.get();
        assert!(
            before == KernelId::NONE || self.has_lost_kernel(),
            "a wait queue (of a lock, a channel or a task) was used in two kernels at once: \
             kernel {before} knows it, and kernel {kernel} was asked to park on it"
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
        // Waiters that are left were forgotten by the program: nobody polls them any more.
        if self.length.get() > 0 {
            door::reach(self.kernel.get(), |local| local.kernel().forget_waiters(self));
        }
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WaitQueue");
        shown.field("waiting", &self.len()).field("free", &self.free()).finish()
    }
}
