//! Causes of interruption, and the rule by which polls find out whom they concern.
//!
//! A *cause* is a deadline that passed or a request to end. It has one owner, a scope or a task; the
//! number of the moment at which it came up; and one bit: whether a poll has returned it. Nobody keeps
//! a list of the waits that it may concern. When a cause comes up, the task is flagged and the futures
//! around and below the owner are polled ([`deadline_passed`](crate::Local::deadline_passed),
//! [`request_cancel`](crate::TaskRef::request_cancel)); each wait then asks for itself (`Local::due`):
//!
//! ```text
//!   a wait that is polled and not satisfied returns the outermost cause, of the owners between it and
//!   the innermost shield, that
//!      no poll has returned yet, or
//!      came up after the last pending poll of the wait, which was inside the owner:
//!          owner.opened <= wait.stamp < cause.number
//!   and marks that cause as returned
//! ```
//!
//! One counter numbers causes and opened scopes (`Local::next_moment`), so numbers are moments; a
//! task was opened at moment 0. Each pending poll of a wait takes the counter as its *stamp*. While a
//! task is watched, such a poll is a moment of its own (`Local::note_pending`).
//!
//! # The branch
//!
//! A wait that was satisfied before a cause came up gives its answer, and then the cause is due to what
//! its branch of the task awaits next, also if another branch has returned it already. So an older
//! wait that has its answer leaves its stamp behind ([`Branch`]), and a new wait takes it as its own. A
//! wait that returned one of two causes leaves its stamp, too, with the owner up to which the branch has
//! been told. A branch ends when an older wait is polled, when a new wait parks, and with the step.
//! A shield that ends leaves the moment at which it was opened, so that its branch is told of
//! what came up meanwhile.
//!
//! `rules.rs` applies the rule to the scopes and the task that are polled, and says what is dropped.

use std::cell::Cell;

use pikake_time::Ticks;

use crate::interrupt::{Interrupted, ScopeId};
use crate::names::WaitKey;

pub(crate) mod rules;

/// What an older wait has left to the branch that goes on. See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    /// The last pending poll of that wait.
    stamp: u64,
    /// Owners that were opened before this moment have told the branch what they had to tell.
    floor: u64,
}

impl Branch {
    /// What a wait leaves that was polled last at that moment, and is told of nothing yet.
    #[inline(always)]
    pub(crate) fn of(stamp: u64) -> Self {
        Self { stamp, floor: 0 }
    }
}

/// What a wait asks with that is polled and not satisfied.
pub(crate) struct Asked {
    /// What an older wait has left to it, or its own stamp; `None`: it has none.
    branch: Option<Branch>,
    /// It is told of nothing that came up after this moment.
    before: u64,
}

impl Asked {
    pub(crate) fn new(branch: Option<Branch>) -> Self {
        Self { branch, before: u64::MAX }
    }

    pub(crate) fn before(self, moment: u64) -> Self {
        Self { before: moment, ..self }
    }
}

/// A deadline that passed, or a request to end.
pub(crate) struct Cause {
    number: u64,
    why: Interrupted,
    returned: Cell<bool>,
    /// When it came up.
    since: Ticks,
    /// When its owner's grace ends.
    grace_ends: Option<Ticks>,
    /// That it takes long was reported.
    is_reported: Cell<bool>,
    /// Since when the owner waits on foreign futures alone.
    foreign_since: Cell<Option<Ticks>>,
    /// The timer that has the owner polled when the next of these is due.
    alarm: Cell<Option<(Ticks, WaitKey)>>,
}

impl Cause {
    fn new(number: u64, why: Interrupted, since: Ticks, grace_ends: Option<Ticks>) -> Self {
        Self {
            number,
            why,
            returned: Cell::new(false),
            since,
            grace_ends,
            is_reported: Cell::new(false),
            foreign_since: Cell::new(None),
            alarm: Cell::new(None),
        }
    }

    /// The cause of a scope whose deadline has passed.
    pub(crate) fn of_scope(opened: u64, passed: (u64, Ticks), grace: Option<u64>) -> Self {
        let (number, since) = passed;
        let why = Interrupted::timed_out(ScopeId(opened));
        Self::new(number, why, since, grace.map(|grace| since.saturating_add(grace)))
    }

    /// Why what is inside the owner is interrupted.
    pub(crate) fn why(&self) -> Interrupted {
        self.why.clone()
    }

    pub(crate) fn was_returned(&self) -> bool {
        self.returned.get()
    }

    /// Whether the cause is due to a wait inside an owner that was opened then.
    fn is_due(&self, opened: u64, asked: &Asked) -> bool {
        let is_new = asked.branch.is_some_and(|Branch { stamp, floor }| {
            floor <= opened && opened <= stamp && stamp < self.number
        });
        (is_new || !self.returned.get()) && self.number <= asked.before
    }
}
