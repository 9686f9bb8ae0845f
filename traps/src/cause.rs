//! Causes of interruption, and the rule by which polls find out whom they concern.
//!
//! A *cause* is a deadline that passed or a request to end. It has one owner, a scope or a task; the
//! number of the moment at which it came up; and one bit: whether a poll has returned it. Nobody keeps
//! a list of the waits that it may concern. When a cause comes up, the task is flagged and the futures
//! around and below the owner are polled ([`deadline_passed`](Local::deadline_passed),
//! [`request_end`]); each wait then asks for itself ([`Local::due`]):
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
//! One counter numbers causes and opened scopes ([`Local::next_moment`]), so numbers are moments; a
//! task was opened at moment 0. Each pending poll of a wait takes the counter as its *stamp*. While a
//! task is watched, such a poll is a moment of its own ([`Local::note_pending`]).
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
//! # What is dropped
//!
//! | an owner with a cause that was polled, is pending, and | is |
//! | --- | --- |
//! | whose own grace is over | dropped |
//! | in whose poll a wait or a shield was pending and still is, or that has sub-waits that wait | left alone, and reported after a second |
//! | during whose poll the task was woken | polled again |
//! | whose cause no poll has returned, and no sub-wait's waker was called for nothing | dropped: only foreign futures remain, which cannot be told |
//! | otherwise | dropped after the foreign grace: it cleans up through a foreign future |

use std::cell::Cell;

use pikake_time::{Deadline, Ticks};

use crate::cell::Cold;
use crate::contract::{Begun, Collected, Disarmed, Until, Wait, WaitKey, Waiter};
use crate::flags::Flags;
use crate::interrupt::{Interrupted, ScopeId};
use crate::local::{self, Local};
use crate::scope::Frame;
use crate::sub_waits::{Count, SubWait};
use crate::task_ref::TaskRef;

/// What an older wait has left to the branch that goes on. See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    /// The last pending poll of that wait.
    pub(crate) stamp: u64,
    /// Owners that were opened before this moment have told the branch what they had to tell.
    pub(crate) floor: u64,
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

    pub(crate) fn was_returned(&self) -> bool {
        self.returned.get()
    }

    /// Takes the alarm back.
    pub(crate) fn end_alarm(&self, local: &Local) {
        if let Some((at, key)) = self.alarm.take() {
            local.kernel().withdraw(sleep_until(at), key);
        }
    }

    /// Whether the cause is due to a wait inside an owner that was opened then.
    fn is_due(&self, opened: u64, asked: &Asked) -> bool {
        let is_new = asked.branch.is_some_and(|Branch { stamp, floor }| {
            floor <= opened && opened <= stamp && stamp < self.number
        });
        (is_new || !self.returned.get()) && self.number <= asked.before
    }
}

fn sleep_until(at: Ticks) -> Wait<'static> {
    Wait::Sleep(Until::At(Deadline::at(at)))
}

/// What a wait asks with that is polled and not satisfied.
pub(crate) struct Asked {
    /// What an older wait has left to it, or its own stamp; `None`: it has none.
    pub(crate) branch: Option<Branch>,
    /// It is told of nothing that came up after this moment.
    pub(crate) before: u64,
}

impl Asked {
    pub(crate) fn new(branch: Option<Branch>) -> Self {
        Self { branch, before: u64::MAX }
    }
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
        let cold: &Cold = task.own().cold.get()?;
        match cold.cause.get() {
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
        self.branch.set(told);
        Some(cause.why.clone())
    }

    /// What [`due`](Self::due) would give, left where it is.
    pub(crate) fn peek_due(&self, task: &TaskRef) -> Option<Interrupted> {
        let asked = Asked::new(self.branch.get());
        self.find_due(task, &asked).map(|(_, cause)| cause.why.clone())
    }

    /// A deadline that a scope [armed](crate::TrapHandler::arm) has passed: sees to it that all whom
    /// that concerns are polled. Gives the number of this moment. For the kernel, which then
    /// [calls the wakers](Self::call_wakers).
    pub fn deadline_passed(&self, waiter: &Waiter) -> u64 {
        let number = self.next_moment();
        add_cause(&waiter.task);
        self.notify(waiter);
        if !waiter.sub_wait.is_none() {
            let inside = self.sub_waits.take_wakers(&waiter.task, Some(waiter.sub_wait));
            self.add_wakers(inside);
        }
        number
    }
}

/// Flags a task: one more cause of it, or of its scopes, is live.
pub(crate) fn add_cause(task: &TaskRef) {
    let causes = &task.cold().causes;
    causes.set(causes.get() + 1);
    if !task.is_watched() {
        Local::try_with(|local| {
            if local.is_current(task) {
                local.watch(task);
            }
        });
    }
    task.flags().set(Flags::CAUSE);
}

/// A cause of a task's scope is gone.
pub(crate) fn remove_cause(task: &TaskRef) {
    let causes = &task.cold().causes;
    causes.set(causes.get() - 1);
    if causes.get() == 0 {
        task.flags().clear(Flags::CAUSE);
    }
}

/// Asks a task to end. A second request changes nothing.
pub(crate) fn request_end(task: &TaskRef, why: Interrupted) {
    local::reach(task.kernel(), |local| {
        if task.is_ended() {
            return;
        }
        if !task.was_stepped() {
            return local.kernel().abort(task, why);
        }
        if task.cold().cause.get().is_some() {
            return;
        }
        let cause = Cause::new(local.next_moment(), why, local.kernel().now(), None);
        let is_first = task.cold().cause.set(Box::new(cause)).is_ok();
        debug_assert!(is_first, "a task is asked to end once");
        add_cause(task);
        local.make_ready(task);
        let inside = local.sub_waits.take_wakers(task, None);
        local.add_wakers(inside);
        local.call_wakers();
    });
}

/// Why a task was asked to end, if it was.
pub(crate) fn of_task(task: &TaskRef) -> Option<Interrupted> {
    Some(task.cold().cause.get()?.why.clone())
}

/// After a step of a task that is flagged: whether it is to be dropped.
#[cold]
pub(crate) fn is_lost_after_step(local: &Local, task: &TaskRef) -> bool {
    let cold = task.cold();
    let Some(cause) = cold.cause.get() else { return false };
    let polled = Polled {
        since: local.step_began(),
        sub_waits: cold.sub_waits.get().count(),
        is_woken: local.wakes.get() > 0 || task.flags().has(Flags::AGAIN),
    };
    let waiter = Waiter { task: task.clone(), sub_wait: SubWait::NONE };
    judge(local, cause, polled, &waiter)
}

/// What was seen while an owner was polled.
pub(crate) struct Polled {
    /// The moment before the poll.
    pub(crate) since: u64,
    /// The sub-waits in it, after the poll.
    pub(crate) sub_waits: Count,
    /// The task was woken.
    pub(crate) is_woken: bool,
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
        report(&owner.task, &cause.why);
    }
    let Count { waiting, called } = polled.sub_waits;
    if waiting > 0 || local.has_pending_since(polled.since) {
        cause.foreign_since.set(None);
    } else if polled.is_woken {
        local.notify(owner);
    } else if !cause.returned.get() && called == 0 {
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
        remove_cause(&waiter.task);
    }
    passed
}

/// A scope in which something is polled, as the rule sees it.
impl Local {
    pub(crate) fn innermost(&self) -> Option<&Frame> {
        let scope = self.scope.get();
        // SAFETY: a frame is in the chain for the length of its poll only, during which its future
        // lends it out; what comes back cannot outlive the borrow of `self`, which whoever polls inside
        // of the scope got for less than that.
        unsafe { scope.as_ref() }
    }
}
