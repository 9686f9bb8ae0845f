//! What a task does after it has caught an interruption.
//!
//! An interruption is an error that a program may swallow without notice: a loop that logs errors
//! and continues, a retry that turns errors into texts. So the waits are counted that begin after a
//! poll has returned a cause, inside its owner and outside of shields, until the owner ends. The
//! report of `rules.rs` has their number, and so have listings.
//!
//! Cleanup may wait as often as it likes, also at the place that was interrupted, as a rollback by
//! the same function does. `TRAPS.md` lists what is not cleanup ([`HowSwallowed`]). A program holds
//! the error while an [`Interrupted`](crate::Interrupted) that a poll has returned for the cause
//! exists, or a clone, alone or inside another error. Cleanup that returns the error afterwards
//! holds it, and a loop that goes on has dropped it.
//!
//! A task without a cause pays nothing: only the polls of flagged tasks come here.

use std::panic::Location;

use pikake_time::Ticks;

use super::{Caught, Cause, PLACES_BEFORE, SCOPES};
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::kind::PlacedTrap;
use crate::local::Local;
use crate::swallowed::{GoesOn, HowSwallowed, Swallowed};

impl Cause {
    /// Notes that the wait at a place, inside these scopes of the owner, returns the cause.
    pub(super) fn note_returned(
        &self,
        place: &'static Location<'static>,
        now: Ticks,
        inside: [Option<u64>; SCOPES],
    ) {
        let mut caught = self.caught.borrow_mut();
        let new = || Caught {
            inside,
            place,
            places_before: [None; PLACES_BEFORE],
            since: now,
            waits: 0,
            last: None,
        };
        let caught = caught.get_or_insert_with(new);
        let differs = caught.inside.iter().zip(inside).position(|(before, now)| *before != now);
        caught.inside[differs.unwrap_or(SCOPES)..].fill(None);
        if caught.place != place {
            let before = &mut caught.places_before;
            let known = before.iter().position(|known| *known == Some(place));
            before[..=known.unwrap_or(PLACES_BEFORE - 1)].rotate_right(1);
            before[0] = Some(std::mem::replace(&mut caught.place, place));
        }
    }

    /// Notes that a scope has dropped what its body returned, after a wait inside had returned the
    /// scope's own cause or the body was dropped. Returns whether that took this cause, too: all
    /// waits that have returned it were inside the scope. The cause is due again then.
    pub(super) fn take_back(&self, scope: u64) -> bool {
        let mut caught = self.caught.borrow_mut();
        let is_lost = caught.as_ref().is_some_and(|caught| caught.inside.contains(&Some(scope)));
        if is_lost {
            *caught = None;
        }
        is_lost
    }

    /// The last place that returned the cause, the number of waits since, and the last of these.
    pub(super) fn waits_since(
        &self,
    ) -> Option<(&'static Location<'static>, u64, Option<PlacedTrap>)> {
        let caught = self.caught.borrow();
        let caught = caught.as_ref()?;
        Some((caught.place, caught.waits, caught.last.map(|(wait, _)| wait)))
    }

    /// The moment from which on a wait outside of shields swallows the cause, whatever else the
    /// program does. An owner with a grace of its own has no such moment.
    pub(super) fn patience_ends(&self, local: &Local) -> Option<Ticks> {
        let length = local.graces().cleanup_limit?;
        let caught = self.caught.borrow();
        let caught = caught.as_ref().filter(|_| self.grace_ends.get().is_none())?;
        Some(caught.since.saturating_add(length))
    }

    /// The wait that was polled last since a poll has returned the cause, if it is pending in the
    /// current step.
    pub(super) fn pending_wait(&self, local: &Local) -> Option<PlacedTrap> {
        let (wait, moment) = self.caught.borrow().as_ref()?.last?;
        local.step.is_pending(moment).then_some(wait)
    }

    /// Notes the cause as swallowed if its owner has a wait outside of shields, at the end of the
    /// patience and after a poll of the owner.
    pub(super) fn end_patience(&self, local: &Local, task: &TaskRef, scope: SubWait) {
        let scope = (!scope.is_none()).then_some(scope);
        let of_sub_waits = || match scope {
            // A scope without sub-waits.
            None if self.why.is_timeout() => None,
            scope => local.sub_waits().first_wait(task, scope),
        };
        if let Some(wait) = self.pending_wait(local).or_else(of_sub_waits) {
            self.note_swallowed(local, task, wait, HowSwallowed::GoesOn);
        }
    }

    /// Notes a wait that did not return the cause. `moment`: of its pending poll.
    fn note_wait(&self, local: &Local, task: &TaskRef, wait: PlacedTrap, is: Noted, moment: u64) {
        let is_dropped = !self.why.is_held();
        let how = match &mut *self.caught.borrow_mut() {
            None => return,
            Some(caught) => {
                caught.last = Some((wait, moment));
                caught.waits += u64::from(is.new);
                let is_known =
                    caught.place == wait.1 || caught.places_before.contains(&Some(wait.1));
                let is_again = is_known && !is_shared(wait.1);
                match is.new && is_dropped {
                    true if is_again => Some(HowSwallowed::WaitsAgain),
                    true if is.accepting => Some(HowSwallowed::Accepts),
                    _ => None,
                }
            }
        };
        let is_late = || self.patience_ends(local).is_some_and(|end| end <= local.kernel().now());
        let late = || (is.new && is_late()).then_some(HowSwallowed::GoesOn);
        if let Some(how) = how.or_else(late) {
            self.note_swallowed(local, task, wait, how);
        }
    }

    fn note_swallowed(&self, local: &Local, task: &TaskRef, wait: PlacedTrap, how: HowSwallowed) {
        let caught = self.caught.borrow();
        let Some(caught) = &*caught else { return };
        let kernel = local.kernel();
        let (trap, awaited_at) = wait;
        local.note_swallowed(|| Swallowed {
            task: format!("{} (spawned at {})", task.label(), task.spawned_at()),
            interruption: self.why.to_string(),
            caught_at: caught.place,
            waits: caught.waits,
            trap,
            awaited_at,
            how,
            after: kernel.rate().duration_floor(kernel.now().since(caught.since)),
        });
    }
}

/// Whether many awaits of a program share a place: it is in this crate, in the standard library, as
/// that of `(&mut task).await`, or in a package from elsewhere, as that of `stream.next().await`.
fn is_shared(place: &Location<'_>) -> bool {
    const FOREIGN: [&str; 4] =
        ["/library/core/src/", "/library/alloc/src/", "/registry/src/", "/git/checkouts/"];
    let own = file!().trim_end_matches("cause/caught.rs");
    place.file().starts_with(own) || FOREIGN.iter().any(|part| place.file().contains(part))
}

/// What a noted wait is.
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    /// The poll is the first one.
    pub(crate) new: bool,
    pub(crate) accepting: bool,
}

impl Local {
    /// Notes a wait of the current task, which is pending or accepts a connection, at each owner
    /// around it whose cause was returned. `moment`: of the poll.
    pub(crate) fn note_wait(&self, task: &TaskRef, wait: PlacedTrap, is: Noted, moment: u64) {
        // Another branch has returned the cause, and the next wait of this one returns it as well.
        if is.accepting && self.peek_due(task).is_some() {
            return;
        }
        for (_, cause) in self.causes_around(task) {
            cause.note_wait(self, task, wait, is, moment);
        }
    }
}

impl TaskRef {
    /// What the task did since it caught the cancel that asked it to end. `None` if there was no
    /// cancel, if no wait has returned its interruption yet, and after the task's end.
    pub fn goes_on(&self) -> Option<GoesOn> {
        let cause = self.cause().filter(|_| !self.is_ended())?;
        let (caught_at, waits, _) = cause.waits_since()?;
        let asked = door::reach(self.kernel(), |local| {
            let kernel = local.kernel();
            kernel.rate().duration_floor(kernel.now().since(cause.since))
        });
        Some(GoesOn { asked: asked?, caught_at, waits })
    }
}

/// The first interruption that a task of the current kernel has swallowed, if one has:
/// [`Swallowed`] says when.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn swallowed() -> Option<Swallowed> {
    door::with(|local| local.swallowed().cloned())
}
