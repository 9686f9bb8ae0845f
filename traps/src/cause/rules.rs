//! The rules of interruption: which cause is due to a polled wait, and which bodies are dropped.
//!
//! `cause.rs` has the rule for one cause. This file applies it to the owners around a wait, from
//! the inside out.
//!
//! # Dropped bodies
//!
//! | After a pending poll of an owner with a cause: | the owner's body is |
//! | --- | --- |
//! | the owner's own grace is over | dropped |
//! | a wait or a shield of the poll is pending, or a sub-wait waits | left alone, and reported
//! after a second |
//! | the task was woken during the poll | polled again |
//! | no poll has returned the cause, and no sub-wait's waker was called since its last poll |
//! dropped: only foreign futures remain, which cannot be interrupted |
//! | otherwise | dropped after the foreign grace: the body cleans up through a foreign future |

use std::iter::successors;
use std::panic::Location;
use std::time::Duration;

use pikake_time::Ticks;

use super::{Branch, Cause, Query, SCOPES};
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::{Count, SubWait};
use crate::door;
use crate::interrupt::{Interrupted, TaskError};
use crate::local::Local;
use crate::scope::Frame;
use crate::step::Step;
use crate::swallowed::Waits;
use crate::wait::{Parked, WaitPlace, Waiter};

impl Cause {
    /// Withdraws the alarm.
    pub(crate) fn end_alarm(&self, local: &Local) {
        if let Some((at, key)) = self.alarm.take() {
            local.kernel().leave(WaitPlace::Moment(at), key);
        }
    }
}

impl Local {
    /// The cause that is due to a wait in the current scope, and the moment at which its owner was
    /// opened.
    fn find_due<'a>(&'a self, task: &'a TaskRef, query: &Query) -> Option<(u64, &'a Cause)> {
        let causes = self.causes_around(task);
        let causes = causes.map(|(owner, cause)| (owner.map_or(0, Frame::opened), cause));
        causes.filter(|(opened, cause)| cause.is_due(*opened, query)).last()
    }

    /// The causes of the owners around the current poll, from the inside out and up to a shield,
    /// each with its owner; without a scope it is the task.
    pub(super) fn causes_around<'a>(
        &'a self,
        task: &'a TaskRef,
    ) -> impl Iterator<Item = (Option<&'a Frame>, &'a Cause)> {
        let scopes = || successors(self.step.innermost(), |scope| scope.parent());
        let open = scopes().take_while(|scope| !scope.is_shield());
        let causes = open.filter_map(|scope| Some((Some(scope), scope.cause()?)));
        let own = task.cause().filter(|_| !scopes().any(Frame::is_shield));
        causes.chain(own.map(|cause| (None, cause)))
    }

    /// The interruption that is due to the wait at a place, which must return it. Marks the cause
    /// as returned, and raises the branch's floor.
    #[cold]
    pub(crate) fn collect_due(
        &self,
        task: &TaskRef,
        query: &Query,
        place: &'static Location<'static>,
    ) -> Option<Interrupted> {
        let (opened, cause) = self.find_due(task, query)?;
        cause.note_returned(place, self.kernel().now(), self.scopes_inside(opened));
        let raised = query.branch.map(|branch| Branch { floor: opened + 1, ..branch });
        self.step.branch.set(raised);
        Some(cause.why())
    }

    /// The outermost scopes around the current poll that are inside an owner which was opened at
    /// this moment.
    fn scopes_inside(&self, owner: u64) -> [Option<u64>; SCOPES] {
        let scopes = successors(self.step.innermost(), |scope| scope.parent());
        let mut inside = [None; SCOPES];
        for scope in scopes.take_while(|scope| scope.opened() != owner) {
            inside.rotate_right(1);
            inside[0] = Some(scope.opened());
        }
        inside
    }

    /// Makes the causes due again that an ended scope has lost with its body's output.
    #[cold]
    pub(crate) fn take_back_lost(&self, task: &TaskRef, scope: u64) {
        for (owner, cause) in self.causes_around(task) {
            if cause.take_back(scope) {
                self.poll_soon(task, owner.map(|owner| owner.node.get()));
            }
        }
        self.call_wakers();
    }

    /// Notifies an owner that has a cause, a scope by its node or the task, and the sub-waits
    /// inside.
    fn poll_soon(&self, task: &TaskRef, scope: Option<SubWait>) {
        self.notify(&Waiter::uncounted(task, scope.unwrap_or(SubWait::NONE)));
        if scope.is_none_or(|node| !node.is_none()) {
            self.wakers.add(self.sub_waits().take_wakers(task, scope));
        }
    }

    /// The result that [`collect_due`](Self::collect_due) would have, without changes. It does not
    /// count as held.
    pub(crate) fn peek_due(&self, task: &TaskRef) -> Option<Interrupted> {
        let query = Query::new(self.step.branch.get());
        self.find_due(task, &query).map(|(_, cause)| cause.why().not_held())
    }

    /// Notes that the deadline of a scope has passed ([`WaitPlace::Deadline`]), and notifies the
    /// scope and the sub-waits inside. Returns the number of this moment. For the kernel, which
    /// then [calls the wakers](Self::call_wakers).
    pub fn deadline_passed(&self, waiter: &Waiter) -> u64 {
        let number = self.moments.next();
        add_cause(waiter.task());
        self.poll_soon(waiter.task(), Some(waiter.sub_wait()));
        number
    }
}

/// Flags a task: one more cause of the task, or of its scopes, is live.
pub(crate) fn add_cause(task: &TaskRef) {
    if !task.is_watched() {
        door::try_with(|local| local.step.of(task).map(Step::watch_from_now));
    }
    task.count_cause();
}

/// Applies the rules after a step of a flagged task. Returns whether the kernel must drop the task.
#[cold]
pub(crate) fn apply_rules_after_step(local: &Local, task: &TaskRef) -> bool {
    let Some(cause) = task.cause() else { return false };
    let step = &local.step;
    let is_woken = step.wakes() > 0;
    let polled = Polled::new(step, step.began(), task.sub_waits().count(), is_woken);
    apply_rules(local, cause, polled, &Waiter::uncounted(task, SubWait::NONE))
}

/// The observations during an owner's poll.
pub(crate) struct Polled {
    /// A wait or a shield that was polled with the task's own waker is pending.
    has_pending: bool,
    /// The number of sub-waits inside the owner, after the poll.
    sub_waits: Count,
    /// The task was woken.
    is_woken: bool,
}

impl Polled {
    /// The observations during a poll in this step that began after the moment `since`.
    pub(crate) fn new(step: &Step, since: u64, sub_waits: Count, is_woken: bool) -> Self {
        Self { has_pending: step.has_pending_since(since), sub_waits, is_woken }
    }
}

/// Applies the rules after a pending poll of an owner with a cause. Returns whether to drop the
/// body.
pub(crate) fn apply_rules(local: &Local, cause: &Cause, polled: Polled, owner: &Waiter) -> bool {
    let kernel = local.kernel();
    let now = kernel.now();
    let graces = local.graces();
    if cause.grace_ends.get().is_some_and(|end| end <= now) {
        cause.end_alarm(local);
        return true;
    }
    let report_at = cause.since.saturating_add(graces.report);
    if !cause.is_reported.get() && report_at <= now {
        cause.is_reported.set(true);
        report(local, owner.task(), cause);
    }
    let patience_ends = cause.patience_ends(local);
    if patience_ends.is_some_and(|end| end <= now) {
        cause.end_patience(local, owner.task(), owner.sub_wait());
    }
    if polled.sub_waits.waiting() > 0 || polled.has_pending {
        cause.foreign_since.set(None);
    } else if polled.is_woken {
        local.notify(owner);
    } else if !cause.was_returned() && polled.sub_waits.called() == 0 {
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
    let patience_ends = patience_ends.filter(|end| *end > now);
    let next = [report_at, cause.grace_ends.get(), foreign_ends, patience_ends];
    let next = next.into_iter().flatten().min();
    set_alarm(local, cause, next, owner);
    false
}

/// Sets the alarm that notifies an owner; `None` ends the alarm.
fn set_alarm(local: &Local, cause: &Cause, at: Option<Ticks>, owner: &Waiter) {
    let kernel = local.kernel();
    if let Some((set_to, key)) = cause.alarm.get() {
        if Some(set_to) == at {
            // The call also binds the alarm to the owner's current task and waker.
            if let Parked::Waits(_) = kernel.collect(WaitPlace::Moment(set_to), key, owner) {
                return;
            }
            // The alarm went off, and its entry is gone.
            cause.alarm.set(None);
        } else {
            cause.end_alarm(local);
        }
    }
    let Some(at) = at.filter(|at| *at != Ticks::MAX) else { return };
    let parked = match at <= kernel.now() {
        true => Parked::Satisfied,
        false => kernel.park(WaitPlace::Moment(at), owner),
    };
    match parked {
        Parked::Waits(key) => cause.alarm.set(Some((at, key))),
        // The moment has come meanwhile.
        Parked::Satisfied | Parked::Deferred => local.notify(owner),
        Parked::Never => {}
    }
}

/// Reports a body that has not ended some time after the cause.
fn report(local: &Local, task: &TaskRef, cause: &Cause) {
    let caught = cause.waits_since();
    // The task's last wait may be outside of the owner, and a sub-wait is not the last wait.
    let now = cause.pending_wait(local).or_else(|| task.last_wait());
    let now = now.or(caught.and_then(|(.., last)| last));
    let (trap, awaited_at) = match now {
        Some((trap, place)) => (trap.name(), place.to_string()),
        None => ("a foreign future", "(not known)".into()),
    };
    let (id, name, spawned_at) = (task.id().0, task.name(), task.spawned_at());
    match caught {
        Some((caught_at, waits @ 1.., _)) if !cause.why.is_held() => tracing::warn!(
            task = id,
            name,
            %spawned_at,
            interruption = %cause.why,
            %caught_at,
            waits,
            trap,
            awaited_at,
            "caught the interruption at {caught_at} and has begun {} since, now `{trap}` at \
             {awaited_at}: return the error, or put cleanup under a shield",
            Waits(waits)
        ),
        _ => tracing::warn!(
            task = id,
            name,
            %spawned_at,
            interruption = %cause.why,
            trap,
            awaited_at,
            "cleaning up after an interruption takes long"
        ),
    }
}

impl TaskRef {
    /// Asks the task to end. See [`Task::cancel`](crate::Task::cancel).
    ///
    /// A second request changes nothing.
    pub fn request_cancel(&self, reason: Interrupted) {
        self.request_end(reason, None);
    }

    /// As [`request_cancel`](Self::request_cancel). The kernel drops the task if it has not ended
    /// after the grace, if there is one. Of several graces the first that ends counts.
    pub(crate) fn request_end(&self, reason: Interrupted, grace: Option<Duration>) {
        door::reach(self.kernel(), |local| {
            if self.is_ended() {
                return;
            }
            if self.cause().is_none() && self.ends_unbegun() {
                return local.kernel().abort(self, TaskError::Cancelled(reason));
            }
            let (now, rate) = (local.kernel().now(), local.kernel().rate());
            let grace_ends = grace.map(|grace| now.saturating_add(rate.ticks_ceil(grace)));
            if let Some(cause) = self.cause() {
                if let Some(end) = grace_ends {
                    cause.grace_ends.set(cause.grace_ends.get().or(grace_ends).min(Some(end)));
                    // The rules after the step set the alarm.
                    local.make_ready(self);
                }
                return;
            }
            let reason = reason.not_held();
            self.set_cause(Cause::new(local.moments.next(), reason, now, grace_ends));
            add_cause(self);
            local.poll_soon(self, None);
            local.call_wakers();
        });
    }

    /// The request to end that a cancel has made, with its reason; also after the task's end.
    pub fn cancel_reason(&self) -> Option<Interrupted> {
        self.cause().map(Cause::why)
    }

    /// Whether a cancel has asked the task to end; also after the task's end.
    pub fn was_asked_to_end(&self) -> bool {
        self.cause().is_some()
    }
}
