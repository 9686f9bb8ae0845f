//! What a wait queue asks of its kernel.

use std::fmt;

use super::WaitQueue;
use crate::door;
use crate::local::Local;
use crate::names::KernelId;

impl WaitQueue {
    /// Wakes up to `count` waiters, those that parked first, and tells how many there were.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends.
    #[inline]
    pub fn wake(&self, count: usize) -> usize {
        let notified = self.reach(|local| {
            let notified = local.kernel().notify(self, count);
            local.call_wakers();
            notified
        });
        notified.unwrap_or(0)
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.reach(|local| local.kernel().queue_len(self)).unwrap_or(0)
    }

    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn reach<R>(&self, ask: impl FnOnce(&Local) -> R) -> Option<R> {
        let kernel = self.kernel.get();
        if kernel == KernelId::NONE { None } else { door::reach(kernel, ask) }
    }

    /// Makes the queue known to a kernel, under the number that `number` gives. For kernels.
    ///
    /// # Panics
    ///
    /// When the queue is known to another kernel that still lives; it stays so.
    #[cold]
    #[inline(never)]
    pub fn bind(&self, kernel: KernelId, number: impl FnOnce() -> u32) -> u32 {
        let before = self.kernel.get();
        assert!(
            before == KernelId::NONE || door::reach(before, |_| ()).is_none(),
            "a wait queue (of a lock, a channel or a task) was used in two kernels at once: \
             kernel {before} knows it, and kernel {kernel} was asked to park on it"
        );
        let index = number();
        self.kernel.set(kernel);
        self.index.set(index);
        index
    }

    /// Gives the queue's number back to its kernel.
    #[inline]
    pub(crate) fn unbind(&self) {
        let kernel = self.kernel.replace(KernelId::NONE);
        if kernel != KernelId::NONE {
            forget(kernel, self.index.get());
        }
    }
}

#[inline(never)]
fn forget(kernel: KernelId, index: u32) {
    door::reach(kernel, |local| local.kernel().forget_queue(index));
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for WaitQueue {
    #[inline]
    fn drop(&mut self) {
        self.unbind();
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiting", &self.len()).finish()
    }
}
