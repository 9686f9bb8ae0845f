//! The list of sub-waits of a task or a scope: the first one, and their number.
//!
//! The sub-waits themselves are in a table of the kernel (`sub_waits.rs`).

/// Names a node in the table of sub-waits. Most waits and scopes have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubWait(u32);

impl SubWait {
    /// No node.
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
    /// The newest node directly under the owner of the list.
    first: SubWait,
    count: Count,
}

impl List {
    /// The newest node directly under the owner of the list.
    pub(crate) fn first(self) -> SubWait {
        self.first
    }

    pub(crate) fn with_first(self, first: SubWait) -> Self {
        Self { first, ..self }
    }

    /// The number of waits and shields under the owner of the list, at any depth.
    pub(crate) fn count(self) -> Count {
        self.count
    }

    pub(crate) fn with_count(self, count: Count) -> Self {
        Self { count, ..self }
    }
}

/// The number of waits and shields under a task or a scope, at any depth.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// Those whose wakers were not called since their last poll.
    waiting: u32,
    /// Those whose wakers were called since their last poll.
    called: u32,
}

impl Count {
    /// One sub-wait that waits.
    pub(crate) const WAITING: Self = Self { waiting: 1, called: 0 };
    /// One sub-wait whose waker was called since its last poll.
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
