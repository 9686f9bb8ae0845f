//! What a kernel notes in a task's own header.
//!
//! Apart from the cell (`cell.rs`), since it is plain data of the kernel's, which the library makes room
//! for and never looks at.

use std::cell::Cell;

/// Room in a task's header for the kernel that owns the task. The library never looks at it.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where the kernel keeps the task.
    pub index: Cell<u32>,
    /// The first of the task's wait records.
    pub records: Cell<u32>,
    /// How many causes of interruption wait for the task's next suspension.
    pub pending: Cell<u32>,
    /// The number of the task's current or last step; 0 before the first, never again later.
    pub step: Cell<u32>,
    /// The first of the task's outermost scopes.
    pub scopes: Cell<u32>,
    /// The task's light yields.
    pub light: Cell<Light>,
    /// How many of them there are. Those of an earlier step than the last do not count, nor do
    /// those that have passed.
    pub lights: Cell<u16>,
    flags: Cell<u8>,
}

/// What is known of a task's *light yields*: those of its last step that were parked without a
/// record. They are all in one scope, or outside of all, and polled with the task's own waker.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum Light {
    /// There are to be none, nor any other wait without a record.
    #[default]
    Off,
    /// There are none.
    Free,
    /// They wait for the task's next step, or have just seen it begin.
    Parked,
}

/// What a kernel notes of a task by yes or no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Flag {
    /// It is in the ready queue.
    Queued = 1,
    /// It was woken, whether or not it was in the ready queue already.
    Woken = 1 << 1,
    /// It is to be made ready when its current step is over.
    Again = 1 << 2,
    /// Some cause has concerned it or one of its scopes, and may still.
    Troubled = 1 << 3,
}

impl Ledger {
    /// In the place of the first scope: there is none.
    pub const NO_SCOPE: u32 = u32::MAX;

    /// Whether that is so.
    #[inline]
    pub fn is(&self, flag: Flag) -> bool {
        self.flags.get() & flag as u8 != 0
    }

    /// Has the task made ready when its current step is over.
    #[inline]
    pub fn ask_again(&self) {
        self.flags.set(self.flags.get() | Flag::Again as u8 | Flag::Woken as u8);
    }

    /// Notes that it is so. Tells whether it was.
    #[inline]
    pub fn set(&self, flag: Flag) -> bool {
        let flags = self.flags.get();
        self.flags.set(flags | flag as u8);
        flags & flag as u8 != 0
    }

    /// Notes that it is not so any more. Tells whether it was.
    #[inline]
    pub fn clear(&self, flag: Flag) -> bool {
        let flags = self.flags.get();
        self.flags.set(flags & !(flag as u8));
        flags & flag as u8 != 0
    }
}
