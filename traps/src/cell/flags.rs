//! The flags of a task: one word in its header.
//!
//! A step and a wake each test the word once, for all rare cases together.

use std::cell::Cell;

use crate::kind::TrapKind;

/// The way in which a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exit {
    /// The future returned.
    Returned,
    /// The future panicked.
    Panicked,
    /// The future was dropped unfinished.
    Dropped,
}

/// The flags of a task, and the kind of the wait that the task polled last.
pub(crate) struct Flags(Cell<u32>);

impl Flags {
    /// The task is ready: new, in the ready list, or taken out and not stepped yet.
    pub(crate) const QUEUED: u32 = 1;
    /// The task becomes ready when its current step is over.
    pub(crate) const AGAIN: u32 = 1 << 1;
    /// The task was stepped.
    pub(crate) const STEPPED: u32 = 1 << 2;
    /// The future is being polled or dropped right now.
    pub(crate) const BUSY: u32 = 1 << 3;
    /// A cause of the task, or of one of its scopes, is live.
    pub(crate) const CAUSE: u32 = 1 << 4;
    /// The task's kernel has observers.
    pub(crate) const OBSERVED: u32 = 1 << 5;
    /// The task's waits are being listed.
    pub(crate) const INSPECTED: u32 = 1 << 6;
    /// The task is linked into the ready list. `QUEUED` stays set until the step.
    pub(crate) const LISTED: u32 = 1 << 7;
    /// The task is not polled any more. The two bits hold the [`Exit`].
    pub(crate) const ENDED: u32 = 0b11 << 8;
    /// Each poll of the task's waits has more to do than to wait.
    pub(crate) const WATCHED: u32 = Self::CAUSE | Self::OBSERVED | Self::INSPECTED;

    /// The number of the task's steps, modulo the range of these bits.
    const STEPS: u32 = Self::MOST_STEPS << Self::STEPS_SHIFT;
    /// The greatest [count of steps](Self::steps).
    pub(crate) const MOST_STEPS: u32 = 0x3fff;
    const STEPS_SHIFT: u32 = 10;
    const EXIT_SHIFT: u32 = 8;
    const KIND_SHIFT: u32 = 24;
    const KIND: u32 = 0x7f << Self::KIND_SHIFT;
    /// The task has a name.
    pub(crate) const NAMED: u32 = 1 << 31;

    /// The flags of a new task, which counts as ready until its first step.
    pub(crate) fn new(is_named: bool) -> Self {
        Self(Cell::new(Self::QUEUED | if is_named { Self::NAMED } else { 0 }))
    }

    /// Whether one of these flags is set.
    #[inline(always)]
    pub(crate) fn has(&self, any: u32) -> bool {
        self.0.get() & any != 0
    }

    #[inline(always)]
    pub(crate) fn set(&self, flags: u32) {
        self.0.set(self.0.get() | flags);
    }

    #[inline(always)]
    pub(crate) fn clear(&self, flags: u32) {
        self.0.set(self.0.get() & !flags);
    }

    /// Begins a step: the task is no longer ready, and none of its waits was polled.
    #[inline(always)]
    pub(crate) fn begin_step(&self) {
        let gone = Self::QUEUED | Self::AGAIN | Self::KIND;
        let flags = self.0.get();
        assert!(
            flags & (Self::BUSY | Self::LISTED) == 0,
            "a task was stepped inside its own step, or while it is in the ready list (I6)"
        );
        let steps = flags.wrapping_add(1 << Self::STEPS_SHIFT) & Self::STEPS;
        self.0.set(flags & !(gone | Self::STEPS) | steps | Self::STEPPED | Self::BUSY);
    }

    /// The last fourteen bits of the number of the task's steps.
    #[inline(always)]
    pub(crate) fn steps(&self) -> u32 {
        (self.0.get() & Self::STEPS) >> Self::STEPS_SHIFT
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        match (self.0.get() & Self::ENDED) >> Self::EXIT_SHIFT {
            0 => None,
            1 => Some(Exit::Returned),
            2 => Some(Exit::Panicked),
            _ => Some(Exit::Dropped),
        }
    }

    #[inline]
    pub(crate) fn set_exit(&self, exit: Exit) {
        let number = match exit {
            Exit::Returned => 1,
            Exit::Panicked => 2,
            Exit::Dropped => 3,
        };
        self.set(number << Self::EXIT_SHIFT);
    }

    /// Notes the kind of a wait that was polled and is pending. The kind has its number.
    #[inline(always)]
    pub(crate) fn set_kind(&self, kind: TrapKind) {
        self.0.set(self.0.get() & !Self::KIND | kind.number_if_any() << Self::KIND_SHIFT);
    }

    /// The kind of the wait that was polled last in the last step; `None`: there was none.
    pub(crate) fn kind(&self) -> Option<TrapKind> {
        TrapKind::from_number(self.kind_number())
    }

    /// The number of that kind; zero if there was none.
    #[inline(always)]
    pub(crate) fn kind_number(&self) -> u32 {
        (self.0.get() & Self::KIND) >> Self::KIND_SHIFT
    }
}
