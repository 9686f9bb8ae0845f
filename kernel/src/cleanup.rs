//! How long what was interrupted may still run.
//!
//! Code that is told of an interruption may clean up, and await while it does. What the kernel does
//! about it when that takes long:
//!
//! | the interrupted scope or task | is |
//! | --- | --- |
//! | was not told yet, and waits on foreign futures alone, which cannot tell it | dropped at once |
//! | was told, and waits on foreign futures alone | dropped after the *foreign grace* |
//! | goes on waiting on traps | left alone, with a warning that says where it is |
//! | has a grace of its own | dropped when that is over, whatever it does |
//!
//! The task of a kernel that is shut down has the shutdown's grace instead of one of its own.

use std::panic::Location;

use pikake_time::{Ticks, TimerKey};
use pikake_traps::{Interrupted, TaskRef, TrapKind};

use crate::book::{Book, Timer};
use crate::cause::{Holder, Owner};
use crate::pick::Pick;
use crate::scope::Depth;

/// The limits of one kernel, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long cleanup may wait on foreign futures alone.
    pub(crate) foreign_grace: u64,
    /// How long cleanup may take before it is reported.
    pub(crate) slow_cleanup: u64,
}

/// The timers that watch what an interruption leads to.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    slow: Option<TimerKey>,
    grace: Option<TimerKey>,
    foreign: Option<TimerKey>,
    /// The owner's own grace is over.
    is_over: bool,
    /// The foreign grace is over.
    is_foreign_over: bool,
}

/// Where somebody is who takes long to clean up.
#[derive(Debug)]
pub(crate) struct Slow {
    pub(crate) task: TaskRef,
    pub(crate) why: Interrupted,
    pub(crate) sits_in: Option<(TrapKind, &'static Location<'static>)>,
}

impl<P: Pick> Book<P> {
    /// Starts the timers for a cause that has just come up.
    pub(crate) fn watch_cleanup(&mut self, owner: Owner, now: Ticks) {
        let grace = match owner {
            Owner::Scope(scope) => self.scope(scope).and_then(|scope| scope.grace),
            Owner::Task(_) => None,
        };
        let slow_at = now.saturating_add(self.limits.slow_cleanup);
        let slow = self.timers.insert(slow_at, Timer::Slow(owner));
        let over =
            grace.map(|grace| self.timers.insert(now.saturating_add(grace), Timer::Grace(owner)));
        if let Some(cause) = self.cause_mut(owner) {
            cause.cleanup.slow = Some(slow);
            cause.cleanup.grace = over;
        }
    }

    pub(crate) fn stop_watching(&mut self, cleanup: Cleanup) {
        for timer in [cleanup.slow, cleanup.grace, cleanup.foreign].into_iter().flatten() {
            self.timers.remove(timer);
        }
    }

    /// After a poll of the owner that is still pending: whether it is to be dropped. `is_woken`: it
    /// is about to be polled again.
    pub(crate) fn is_to_be_dropped(&mut self, owner: Owner, is_woken: bool, now: Ticks) -> bool {
        let Some(cause) = self.cause_mut(owner) else { return false };
        if cause.cleanup.is_over {
            return true;
        }
        let (is_collected, is_foreign_over) = (cause.is_collected(), cause.cleanup.is_foreign_over);
        if self.is_waiting(owner) {
            // It can be told again: a later foreign grace starts anew.
            if let Some(cause) = self.cause_mut(owner) {
                cause.cleanup.is_foreign_over = false;
                if let Some(timer) = cause.cleanup.foreign.take() {
                    self.timers.remove(timer);
                }
            }
            return false;
        }
        if is_woken {
            // Whoever was woken, it may not have been the owner's own body: see to it that it is
            // asked again.
            self.have_polled(owner);
            return false;
        }
        if !is_collected || is_foreign_over {
            return true;
        }
        let until = now.saturating_add(self.limits.foreign_grace);
        if self.cause_mut(owner).is_some_and(|cause| cause.cleanup.foreign.is_none()) {
            let timer = self.timers.insert(until, Timer::ForeignGrace(owner));
            if let Some(cause) = self.cause_mut(owner) {
                cause.cleanup.foreign = Some(timer);
            }
        }
        false
    }

    /// The owner's own grace is over: it is dropped after one more poll.
    pub(crate) fn end_grace(&mut self, owner: Owner) {
        if let Some(cause) = self.cause_mut(owner) {
            cause.cleanup.grace = None;
            cause.cleanup.is_over = true;
            self.have_polled(owner);
        }
    }

    /// The foreign grace is over: it is dropped, if it still waits on foreign futures alone.
    pub(crate) fn end_foreign_grace(&mut self, owner: Owner) {
        if let Some(cause) = self.cause_mut(owner) {
            cause.cleanup.foreign = None;
            cause.cleanup.is_foreign_over = true;
            self.have_polled(owner);
        }
    }

    /// Cleanup takes long: tells where it is.
    pub(crate) fn slow_cleanup(&mut self, owner: Owner) -> Option<Slow> {
        let cause = self.cause_mut(owner)?;
        cause.cleanup.slow = None;
        let why = cause.what().clone();
        let task = self.task_of(owner)?;
        let inside = self.inside(owner, Depth::BeyondShields);
        let sits_in = inside.into_iter().find_map(|inside| match inside {
            Holder::Record(record) => {
                let record = self.record(record);
                Some((record.kind, record.place))
            }
            Holder::Scope(_) => None,
        });
        Some(Slow { task, why, sits_in })
    }
}
