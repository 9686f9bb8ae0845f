//! Names: the numbers of kernels, tasks and table entries.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a kernel; no two kernels of a process share one.
#[doc(alias = "Id")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelId(pub(crate) u32);

impl KernelId {
    pub(crate) const NONE: Self = Self(0);
    /// Marks a trap that has its answer, in place of the trap's kernel.
    pub(crate) const FINISHED: Self = Self(u32::MAX);

    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // Stays at the last number, so that no two kernels share one after the panic either.
        let id =
            NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        Self(id.expect("a process makes fewer than 2^32 kernels"))
    }

    /// The number of the kernel in its process: 1 for the first kernel.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a task within its kernel. Later tasks have larger ids. A kernel uses no id twice.
#[doc(alias = "Id")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names an entry of a kernel's tables. A kernel chooses the key, below [`WaitKey::LIMIT`]. The
/// future of the wait keeps the key, and passes it to the kernel's later calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitKey(pub u64);

impl WaitKey {
    /// The least key that a kernel must not choose.
    pub const LIMIT: u64 = 1 << 62;
}
