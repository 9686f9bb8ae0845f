//! Causes of interruption, and the rule by which a polled wait finds a cause to return.
//!
//! A *cause* is a deadline that passed or a request to end. A cause has one owner, a scope or a
//! task. A cause also has the number of the moment at which it came up, and a bit that tells
//! whether a poll has returned it. There is no list of the waits inside an owner. When a cause
//! comes up, the task is flagged, and the owner and the sub-waits below are polled
//! ([`deadline_passed`](crate::Local::deadline_passed),
//! [`request_cancel`](crate::TaskRef::request_cancel)). Each wait then applies the rule
//! (`Local::collect_due`):
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
//! One counter numbers causes and opened scopes (`step::Moments`), so numbers are moments; a
//! task was opened at moment 0. Each pending poll of a wait takes the counter as its *stamp*. While
//! a task is watched, such a poll is a moment of its own (`Local::note_pending`).
//!
//! # The branch
//!
//! A wait that was satisfied before a cause came up gives its answer. The cause is then due to the
//! next wait of the same branch of the task, also if another branch has returned the cause already.
//! So an older wait that has its answer leaves its stamp behind ([`Branch`]), which a new wait
//! takes for its own. A wait that returned one of two causes leaves its stamp, too, with a floor.
//! Owners that were opened before the floor have no more causes for the branch. A branch ends when
//! an older wait is polled, when a new wait parks, and with the step. A shield that ends leaves the
//! moment at which it was opened, so causes that came up meanwhile are due to its branch.
//!
//! # Causes that were lost
//!
//! A timeout drops the late output of its body, and so may drop what a wait inside has returned of
//! an outer cause. Each cause keeps the scopes that contain all waits that returned it. If such a
//! scope drops its output, the mark goes, and the owner is polled as when the cause came up
//! (`Local::take_back_lost`).
//!
//! `rules.rs` applies the rule to the scopes and the task that are polled, and decides which bodies
//! are dropped. `caught.rs` watches what a task does after a poll has returned a cause.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use pikake_time::Ticks;

use crate::interrupt::{Interrupted, ScopeId};
use crate::kind::PlacedTrap;
use crate::names::WaitKey;

pub(crate) mod caught;
pub(crate) mod rules;

/// The state that an older wait has left to its branch. See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    /// The last pending poll of the older wait.
    stamp: u64,
    /// The branch has handled the causes of owners that were opened before this moment.
    floor: u64,
}

impl Branch {
    /// The branch of a wait whose last pending poll was at this moment.
    #[inline(always)]
    pub(crate) fn of(stamp: u64) -> Self {
        Self { stamp, floor: 0 }
    }
}

/// The search of a polled, unsatisfied wait for a cause.
pub(crate) struct Query {
    /// The branch of the wait, or the wait's own stamp.
    branch: Option<Branch>,
    /// Causes that came up after this moment are not due.
    before: u64,
}

impl Query {
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
    /// What happened since a poll has returned the cause, if one has.
    caught: RefCell<Option<Caught>>,
    /// The time at which the cause came up.
    since: Ticks,
    /// The end of the owner's grace.
    grace_ends: Cell<Option<Ticks>>,
    /// A report said that the cleanup takes long.
    is_reported: Cell<bool>,
    /// The time since which the owner waits on foreign futures alone.
    foreign_since: Cell<Option<Ticks>>,
    /// The timer that notifies the owner at the next report or end of a grace.
    alarm: Cell<Option<(Ticks, WaitKey)>>,
}

/// The number of other places that a cause keeps. Few programs have more places that one cause
/// interrupts.
const PLACES_BEFORE: usize = 3;

/// The number of scopes that a cause keeps of those around the waits that returned it.
const SCOPES: usize = 4;

/// The state of a cause that a poll has returned.
struct Caught {
    /// The scopes inside the owner that contain each wait that returned the cause, by the moments
    /// at which they were opened, the outermost first.
    inside: [Option<u64>; SCOPES],
    /// The place of the last wait that returned the cause.
    place: &'static Location<'static>,
    /// The places of the waits before, each once. In an array, since a scope that never has a cause
    /// would pay for the drop of a vector.
    places_before: [Option<&'static Location<'static>>; PLACES_BEFORE],
    /// The time at which the first poll returned the cause.
    since: Ticks,
    /// The number of waits that have begun since.
    waits: u64,
    /// The wait that was polled last since, with the moment of that poll.
    last: Option<(PlacedTrap, u64)>,
}

impl Cause {
    fn new(number: u64, why: Interrupted, since: Ticks, grace_ends: Option<Ticks>) -> Self {
        Self {
            number,
            why,
            caught: RefCell::default(),
            since,
            grace_ends: Cell::new(grace_ends),
            is_reported: Cell::new(false),
            foreign_since: Cell::new(None),
            alarm: Cell::new(None),
        }
    }

    /// The cause of a scope whose deadline has passed.
    pub(crate) fn of_scope(
        opened: u64,
        set_at: &'static Location<'static>,
        passed: (u64, Ticks),
        grace: Option<u64>,
    ) -> Self {
        let (number, since) = passed;
        let why = Interrupted::timed_out(ScopeId(opened), set_at);
        Self::new(number, why, since, grace.map(|grace| since.saturating_add(grace)))
    }

    /// The interruption that waits inside the owner return.
    pub(crate) fn why(&self) -> Interrupted {
        self.why.clone()
    }

    pub(crate) fn was_returned(&self) -> bool {
        self.caught.borrow().is_some()
    }

    /// Whether the cause is due to a wait inside the owner, which was opened at the moment
    /// `opened`.
    fn is_due(&self, opened: u64, query: &Query) -> bool {
        let is_new = query.branch.is_some_and(|Branch { stamp, floor }| {
            floor <= opened && opened <= stamp && stamp < self.number
        });
        (is_new || !self.was_returned()) && self.number <= query.before
    }
}
