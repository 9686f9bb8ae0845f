//! Waits as listings show them: the thing that a wait is for, the scopes around the wait, all waits
//! of a task.
//!
//! A kernel does not know what its tasks wait for. The futures of the waits know it, and can tell
//! it only while they are polled. So a look at a task takes three calls, all inside of the task's
//! kernel, such as in a closure of a [`KernelHandle`](crate::KernelHandle):
//!
//! 1. [`TaskRef::inspect`] schedules a poll of the task and of its sub-waits.
//! 2. The kernel steps the task. During that step each pending poll of a wait leaves a
//!    [`SeenWait`]. A look from outside of the kernel's steps lets the kernel make a turn
//!    meanwhile. A task that looks at others yields, until the other tasks are no longer
//!    [ready](TaskRef::is_ready).
//! 3. [`TaskRef::waits`] lists the waits of the task, and looks at no other task. If the task goes
//!    on, the details are gone after a few of its steps.
//!
//! Nothing of this costs anything in tasks that nobody inspects.

use std::panic::Location;

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::kind::TrapKind;
use crate::local::Local;
use crate::seen::{About, SeenScope, SeenWait};

impl Local {
    /// The scopes around the code that is being polled, the innermost first.
    fn seen_scopes(&self) -> Vec<SeenScope> {
        let mut scopes = Vec::new();
        let mut at = self.step.innermost();
        while let Some(scope) = at {
            scopes.push(scope.seen());
            at = scope.parent();
        }
        scopes
    }

    /// Notes a pending poll of a wait in an inspected task, for listings.
    pub(crate) fn note_seen(
        &self,
        task: &TaskRef,
        sub_wait: Option<SubWait>,
        (trap, place): (TrapKind, &'static Location<'static>),
        about: Option<About>,
    ) {
        let thing = about.as_ref().and_then(About::thing);
        let seen =
            SeenWait { about, thing, scopes: self.seen_scopes(), ..SeenWait::plain(trap, place) };
        match sub_wait {
            Some(node) => self.sub_waits().set_seen(node, seen),
            None => task.note_seen(seen),
        }
    }
}

impl TaskRef {
    /// Schedules a step of the task, and polls of its sub-waits, and keeps all pending waits of
    /// that step for [`waits`](Self::waits), with all details. Each of the next few steps replaces
    /// them by its own, since combinators may need more than one. Then the details are gone.
    ///
    /// A task whose work is offered is not stepped: the step would begin the work.
    pub fn inspect(&self) {
        if self.offers_work() {
            return;
        }
        self.begin_inspection();
        door::reach(self.kernel(), |local| {
            local.make_ready(self);
            local.wakers.add(local.sub_waits().take_all_wakers(self));
            local.call_wakers();
        });
    }

    /// All pending waits of the task, without a look at other tasks: those of the last step that
    /// were polled with the task's own waker, and those that a combinator polls with other wakers.
    ///
    /// If the task was [inspected](Self::inspect) and stepped since, the list is complete, and has
    /// the details. Otherwise the list has only the last wait of those with the task's own waker.
    pub fn waits(&self) -> Vec<SeenWait> {
        let mut waits = self.seen_waits();
        door::reach(self.kernel(), |local| local.sub_waits().push_waits_of(self, &mut waits));
        waits
    }
}
