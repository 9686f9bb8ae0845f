//! Light yields: waits for a task's next step that need no record.
//!
//! Most yields are over before anybody asks about them. So those that are polled with the task's own
//! waker are only counted, in the task's ledger; the scope that they are all in remembers the step.
//!
//! ```text
//!             (1) begin                 (2) the next step begins
//!   no yield ───────────▶ light yield ─────────────────────────▶ over
//!                           │     │
//!                   (3) make│     │(4) end
//!                           ▼     ▼
//!                        record  gone
//! ```
//!
//! (1) The library, outside of scopes, or [`Book::begin_light_yield`]. (2) Nothing is done. (3)
//! [`Book::make_records`]: a cause concerns the task, so from now on its yields are waits like others; a
//! yield finds its record when it is polled or dropped next. (4) [`Book::end_light_yield`]: it is dropped,
//! or polled where it does not belong, and begins anew.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pikake_traps::{Flag, Light, LightYield, RecordKey, TaskId, TaskRef, TrapKind};

use crate::book::Book;
use crate::cause::{Holder, Owner};
use crate::pick::Pick;
use crate::record::Place;
use crate::scope::{Depth, index_of};

/// The records that were made of light yields and whose futures have not asked for them yet, by the
/// task and the step of it in which the yields were. Many tasks may be interrupted at once.
pub(crate) type Made = BTreeMap<(TaskId, u32), Vec<u32>>;

impl<P: Pick> Book<P> {
    /// Counts a yield of the current task in the current scope, if it may be a light one: those of
    /// one step are all in the same scope.
    #[inline]
    pub(crate) fn begin_light_yield(&mut self) -> bool {
        let (Some(scope), Some(stepping)) = (self.scope, self.stepping) else { return false };
        let Some(found) = self.scopes.get_mut(index_of(scope)).filter(|found| found.id == scope)
        else {
            return false;
        };
        let ledger = self.tasks[stepping as usize].task.ledger();
        let step = ledger.step.get();
        let has_some = ledger.is(Flag::Again) && ledger.light.get() == Light::Parked;
        if (has_some && found.lights_in != step) || !ledger.begin_light_yield() {
            return false;
        }
        found.lights_in = step;
        true
    }

    /// Makes records of the light yields of a task that wait, which is to have none from now on.
    #[cold]
    pub(crate) fn make_records(&mut self, task: &TaskRef) {
        let ledger = task.ledger();
        let have_passed = self.stepping == Some(ledger.index.get()) && !ledger.is(Flag::Again);
        let are_parked = ledger.light.replace(Light::Off) == Light::Parked && !have_passed;
        if !are_parked || ledger.lights.get() == 0 {
            return;
        }
        let step = ledger.step.get();
        let is_theirs = |holder: &Holder| match holder {
            Holder::Scope(scope) => self.scope(*scope).is_some_and(|found| found.lights_in == step),
            Holder::Record(_) => false,
        };
        let all = self.inside(Owner::Task(ledger.index.get()), Depth::BeyondShields);
        let scope = match all.into_iter().find(is_theirs) {
            Some(Holder::Scope(scope)) => Some(scope),
            _ => None,
        };
        let current = std::mem::replace(&mut self.scope, scope);
        for _ in 0..ledger.lights.replace(0) {
            // Where it is awaited is seen when it is polled.
            let record = self.park(task.clone(), TrapKind::Yield, None, task.spawned_at());
            self.put(record, Place::NextStep(step));
            self.made.entry((task.id(), step)).or_default().push(record);
        }
        self.scope = current;
    }

    /// Whether some light yield of the task has not asked for its record.
    pub(crate) fn has_made(&self, task: &TaskRef) -> bool {
        self.made.range((task.id(), 0)..=(task.id(), u32::MAX)).next().is_some()
    }

    /// A light yield is polled or dropped: gives it its record, if one was made of it. If not, it does
    /// not count any more.
    pub(crate) fn end_light_yield(&mut self, light: LightYield) -> Option<RecordKey> {
        if let Entry::Occupied(mut made) = self.made.entry((light.task, light.step)) {
            let record = made.get_mut().pop();
            if made.get().is_empty() {
                made.remove();
            }
            return record.map(RecordKey);
        }
        let stepping = self.stepping.and_then(|index| self.tasks.get(index as usize));
        let task = match stepping.filter(|entry| entry.task.id() == light.task) {
            Some(entry) => entry,
            // It was moved to another task, or is dropped outside of any. Hardly ever.
            None => self.tasks.iter().find(|(_, entry)| entry.task.id() == light.task)?.1,
        };
        let ledger = task.task.ledger();
        if ledger.light.get() == Light::Parked && ledger.step.get() == light.step {
            ledger.lights.set(ledger.lights.get() - 1);
        }
        None
    }
}
