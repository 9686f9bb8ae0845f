//! Names: the numbers of kernels, tasks and table entries, and the names of traps.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a kernel; no two kernels of a process share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelId(pub(crate) u32);

impl KernelId {
    pub(crate) const NONE: Self = Self(0);
    /// Marks a trap that has its answer, in place of the trap's kernel.
    pub(crate) const FINISHED: Self = Self(u32::MAX);

    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(id != 0 && id != Self::FINISHED.0, "a process makes fewer than 2^32 kernels");
        Self(id)
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names an entry of a kernel's tables. A kernel chooses the key, below [`WaitKey::LIMIT`]. The
/// future of the wait keeps the key, and passes it to the kernel's later calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitKey(pub u64);

impl WaitKey {
    /// The least key that a kernel must not choose.
    pub const LIMIT: u64 = 1 << 62;
}

/// The name of a trap, as observers and listings show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum TrapKind {
    /// Go to the end of the ready queue.
    Yield,
    /// Wait until a moment.
    Sleep,
    /// Wait until a moment, without interruption.
    Elapse,
    /// Wait until a socket may be read.
    ReadWait,
    /// Wait until a socket may be written.
    WriteWait,
    /// Wait in a wait queue.
    Park,
    /// Wait for the end of a task.
    Join,
    /// Wait for a future that the kernel does not know.
    FutureWait,
    /// Wait for a closure on a helper thread.
    Blocking,
    /// Wait for the addresses of a name.
    Lookup,
}

impl TrapKind {
    const ALL: [Self; 10] = [
        Self::Yield,
        Self::Sleep,
        Self::Elapse,
        Self::ReadWait,
        Self::WriteWait,
        Self::Park,
        Self::Join,
        Self::FutureWait,
        Self::Blocking,
        Self::Lookup,
    ];

    /// The kind whose [`number`](Self::number) this is.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The number of the kind in this build of pikake, below 64.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The trap's name in listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yield => "yield",
            Self::Sleep => "sleep",
            Self::Elapse => "elapse",
            Self::ReadWait => "read_wait",
            Self::WriteWait => "write_wait",
            Self::Park => "park",
            Self::Join => "join",
            Self::FutureWait => "future_wait",
            Self::Blocking => "blocking",
            Self::Lookup => "lookup",
        }
    }
}

impl fmt::Display for TrapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
