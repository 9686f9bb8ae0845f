//! What a task, or a scope, knows of the sub-waits in it: the first of them, and how many they are.
//!
//! The sub-waits themselves are in a table of the kernel (`sub_waits.rs`).

/// Names a node; most waits and scopes have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubWait(u32);

impl SubWait {
    /// There is none.
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }

    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer than 2^32 sub-waits"))
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The nodes under a task or a scope.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    /// The newest of those directly under it.
    first: SubWait,
    count: Count,
}

impl List {
    /// The newest of those directly under it.
    pub(crate) fn first(self) -> SubWait {
        self.first
    }

    pub(crate) fn with_first(self, first: SubWait) -> Self {
        Self { first, ..self }
    }

    /// How many waits and shields there are under it, at any depth.
    pub(crate) fn count(self) -> Count {
        self.count
    }

    pub(crate) fn with_count(self, count: Count) -> Self {
        Self { count, ..self }
    }
}

/// How many waits and shields there are under something, at any depth.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// Their wakers were not called since their last poll.
    waiting: u32,
    /// They were, and the sub-waits were not polled since.
    called: u32,
}

impl Count {
    /// One that waits.
    pub(crate) const WAITING: Self = Self { waiting: 1, called: 0 };
    /// One whose waker was called.
    pub(crate) const CALLED: Self = Self { waiting: 0, called: 1 };

    pub(crate) fn add(self, other: Self) -> Self {
        Self { waiting: self.waiting + other.waiting, called: self.called + other.called }
    }

    pub(crate) fn subtract(self, other: Self) -> Self {
        Self { waiting: self.waiting - other.waiting, called: self.called - other.called }
    }

    pub(crate) fn waiting(self) -> u32 {
        self.waiting
    }

    pub(crate) fn called(self) -> u32 {
        self.called
    }
}

impl Default for SubWait {
    fn default() -> Self {
        Self::NONE
    }
}
