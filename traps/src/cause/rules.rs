//! The rules of interruption: which cause is due to a wait that is polled, and what is dropped.
//!
//! `cause.rs` has the rule for one cause. Here it is put to the owners around a wait, from the inside out.
//!
//! # What is dropped
//!
//! | an owner with a cause that was polled, is pending, and | is |
//! | --- | --- |
//! | whose own grace is over | dropped |
//! | in whose poll a wait or a shield was pending and still is, or that has sub-waits that wait | left alone, and reported after a second |
//! | during whose poll the task was woken | polled again |
//! | whose cause no poll has returned, and no sub-wait's waker was called for nothing | dropped: only foreign futures remain, which cannot be told |
//! | otherwise | dropped after the foreign grace: it cleans up through a foreign future |

use pikake_time::{Deadline, Ticks};

use super::{Asked, Branch, Cause};
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::Count;
use crate::door;
use crate::interrupt::Interrupted;
use crate::local::Local;
use crate::wait::{Begun, Collected, Disarmed, Until, Wait, Waiter};

impl Cause {
    /// Takes the alarm back.
    pub(crate) fn end_alarm(&self, local: &Local) {
        if let Some((at, key)) = self.alarm.take() {
            local.kernel().withdraw(sleep_until(at), key);
        }
    }
}

fn sleep_until(at: Ticks) -> Wait<'static> {
    Wait::Sleep(Until::At(Deadline::at(at)))
}

impl Local {
    /// The cause that is due to a wait of the current task in the current scope, and the moment at which its owner was opened.
    fn find_due<'a>(&'a self, task: &'a TaskRef, asked: &Asked) -> Option<(u64, &'a Cause)> {
        let mut found = None;
        let mut at = self.innermost();
        while let Some(scope) = at {
            if scope.is_shield() {
                return found;
            }
            if let Some(cause) = scope.cause()
                && cause.is_due(scope.opened(), asked)
            {
                found = Some((scope.opened(), cause));
            }
            at = scope.parent();
        }
        match task.cause() {
            Some(cause) if cause.is_due(0, asked) => Some((0, cause)),
            _ => found,
        }
    }

    /// The interruption that is due to a wait, which returns it. The branch has been told of it.
    #[cold]
    pub(crate) fn due(&self, task: &TaskRef, asked: &Asked) -> Option<Interrupted> {
        let (opened, cause) = self.find_due(task, asked)?;
        cause.returned.set(true);
        let told = asked.branch.map(|branch| Branch { floor: opened + 1, ..branch });
        self.set_branch(told);
        Some(cause.why())
    }

    /// What [`due`](Self::due) would give, left where it is.
    pub(crate) fn peek_due(&self, task: &TaskRef) -> Option<Interrupted> {
        let asked = Asked::new(self.branch());
        self.find_due(task, &asked).map(|(_, cause)| cause.why())
    }

    /// A deadline that a scope [armed](crate::TrapHandler::arm) has passed: sees to it that all whom
    /// that concerns are polled. Gives the number of this moment. For the kernel, which then
    /// [calls the wakers](Self::call_wakers).
    pub fn deadline_passed(&self, waiter: &Waiter) -> u64 {
        let number = self.next_moment();
        add_cause(waiter.task());
        self.notify(waiter);
        if !waiter.sub_wait().is_none() {
            let inside = self.sub_waits().take_wakers(waiter.task(), Some(waiter.sub_wait()));
            self.add_wakers(inside);
        }
        number
    }
}

/// Flags a task: one more cause of it, or of its scopes, is live.
pub(crate) fn add_cause(task: &TaskRef) {
    if !task.is_watched() {
        door::try_with(|local| {
            if local.is_current(task) {
                local.watch(task);
            }
        });
    }
    task.count_cause();
}

/// After a step of a task that is flagged: whether it is to be dropped.
#[cold]
pub(crate) fn is_lost_after_step(local: &Local, task: &TaskRef) -> bool {
    let Some(cause) = task.cause() else { return false };
    let polled = Polled {
        since: local.step_began(),
        sub_waits: task.sub_waits().count(),
        is_woken: local.wakes() > 0,
    };
    judge(local, cause, polled, &Waiter::of_task(task))
}

/// What was seen while an owner was polled.
pub(crate) struct Polled {
    /// The moment before the poll.
    since: u64,
    /// The sub-waits in it, after the poll.
    sub_waits: Count,
    /// The task was woken.
    is_woken: bool,
}

impl Polled {
    pub(crate) fn new(since: u64, sub_waits: Count, is_woken: bool) -> Self {
        Self { since, sub_waits, is_woken }
    }
}

/// After a poll of an owner with a cause that is pending: whether it is to be dropped.
pub(crate) fn judge(local: &Local, cause: &Cause, polled: Polled, owner: &Waiter) -> bool {
    let kernel = local.kernel();
    let now = kernel.now();
    let graces = local.graces();
    if cause.grace_ends.is_some_and(|end| end <= now) {
        cause.end_alarm(local);
        return true;
    }
    let report_at = cause.since.saturating_add(graces.report);
    if !cause.is_reported.get() && report_at <= now {
        cause.is_reported.set(true);
        report(owner.task(), &cause.why);
    }
    if polled.sub_waits.waiting() > 0 || local.has_pending_since(polled.since) {
        cause.foreign_since.set(None);
    } else if polled.is_woken {
        local.notify(owner);
    } else if !cause.returned.get() && polled.sub_waits.called() == 0 {
        cause.end_alarm(local);
        return true;
    } else {
        let since = cause.foreign_since.get().unwrap_or(now);
        cause.foreign_since.set(Some(since));
        if since.saturating_add(graces.foreign) <= now {
            cause.end_alarm(local);
            return true;
        }
    }
    let report_at = (!cause.is_reported.get()).then_some(report_at);
    let foreign_ends = cause.foreign_since.get().map(|since| since.saturating_add(graces.foreign));
    let next = [report_at, cause.grace_ends, foreign_ends].into_iter().flatten().min();
    set_alarm(local, cause, next, owner);
    false
}

/// Has an owner polled at that moment.
fn set_alarm(local: &Local, cause: &Cause, at: Option<Ticks>, owner: &Waiter) {
    let kernel = local.kernel();
    if let Some((set_to, key)) = cause.alarm.get() {
        // It is bound to the owner as it is now, for the task and the waker may be others.
        let is_good = Some(set_to) == at
            && kernel.collect(sleep_until(set_to), key, owner) == Collected::Pending;
        if is_good {
            return;
        }
        if Some(set_to) == at {
            // It went off, and is gone.
            cause.alarm.set(None);
        } else {
            cause.end_alarm(local);
        }
    }
    let Some(at) = at else { return };
    match kernel.begin(sleep_until(at), owner) {
        Begun::Entry(key) => cause.alarm.set(Some((at, key))),
        Begun::Never => {}
        // It has come meanwhile.
        Begun::Answered | Begun::NextStep => local.notify(owner),
    }
}

fn report(task: &TaskRef, why: &Interrupted) {
    let (trap, awaited_at) = match task.last_wait() {
        Some((trap, place)) => (trap.name(), place.to_string()),
        None => ("a foreign future", "(not known)".into()),
    };
    tracing::warn!(
        task = task.id().0,
        name = task.name(),
        spawned_at = %task.spawned_at(),
        interruption = %why,
        trap,
        awaited_at,
        "cleaning up after an interruption takes long"
    );
}

/// What became of a deadline that is taken back: its cause, if it has passed, for which the task that
/// it was armed for counts no more.
pub(crate) fn end_of(disarmed: Disarmed) -> Option<(u64, Ticks)> {
    let Disarmed { waiter, passed } = disarmed;
    if passed.is_some() {
        waiter.task().discount_cause();
    }
    passed
}

impl TaskRef {
    /// Asks the task to end. See [`Task::cancel`](crate::Task::cancel).
    ///
    /// A second request changes nothing.
    pub fn request_cancel(&self, reason: Interrupted) {
        door::reach(self.kernel(), |local| {
            if self.is_ended() {
                return;
            }
            if !self.was_stepped() {
                return local.kernel().abort(self, reason);
            }
            if self.cause().is_some() {
                return;
            }
            self.set_cause(Cause::new(local.next_moment(), reason, local.kernel().now(), None));
            add_cause(self);
            local.make_ready(self);
            let inside = local.sub_waits().take_wakers(self, None);
            local.add_wakers(inside);
            local.call_wakers();
        });
    }

    /// Whether the task was asked to end by a cancel; also when it has ended.
    pub fn was_asked_to_end(&self) -> bool {
        self.cause().is_some()
    }
}
