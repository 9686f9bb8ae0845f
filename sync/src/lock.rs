//! The lock inside both kinds of mutex: one permit and its holder.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::{About, Interrupted, Queued, WaitQueue};

use crate::holder::{Holder, report_own_lock};
use crate::name::show_name;
use crate::permits::{PermitRequest, Taking};
use pikake_traps::locks::{LockName, WaitedLock};

/// A lock without a value.
pub(crate) struct Lock {
    /// One permit, which the holder has.
    permit: WaitQueue,
    /// The last task that took the lock.
    holder: Holder,
    name: LockName,
}

impl Lock {
    #[track_caller]
    pub(crate) const fn new() -> Self {
        Self { permit: WaitQueue::with_permits(1), holder: Holder::new(), name: LockName::here() }
    }

    pub(crate) const fn set_name(&mut self, name: &'static str) {
        self.name = LockName::Named(name);
    }

    /// Takes the lock if it is free and has no waiters. A lock that was granted in an ended kernel
    /// is free too, but only after `recover`.
    pub(crate) fn try_lock(&self, place: &'static Location<'static>) -> bool {
        self.take(place) || {
            self.permit.recover();
            self.take(place)
        }
    }

    /// Takes the lock if it is free and has no waiters.
    #[inline(always)]
    fn take(&self, place: &'static Location<'static>) -> bool {
        let is_taken = self.permit.try_take(1);
        if is_taken {
            self.holder.set(place);
        }
        is_taken
    }

    /// Hands the lock to the first waiter, or frees it.
    #[inline]
    pub(crate) fn unlock(&self) {
        self.holder.clear();
        self.permit.give(1);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.permit.free() == 0
    }

    pub(crate) fn waiting(&self) -> usize {
        self.permit.len()
    }

    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        show_name(self.name, shown);
        let holder = self.is_held().then_some(&self.holder);
        shown.field("held_by", &holder).field("waiting", &self.waiting());
    }
}

impl PermitRequest for &Lock {
    fn lock(&self) -> Option<WaitedLock> {
        Some(WaitedLock {
            address: std::ptr::from_ref(*self).addr(),
            kind: "mutex",
            name: self.name,
            holder: self.holder.holding(),
            is_exclusive: true,
            is_handed_over: self.holder.holding().is_none(),
            waiters: self.waiting(),
        })
    }
}

impl Queued for Lock {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        &self.permit
    }

    fn about(&self) -> About {
        self.holder.about(&format!("mutex{}", self.name), "held", &self.permit)
    }
}

/// The future that takes a lock.
pub(crate) struct Locking<'a> {
    taking: Taking<&'a Lock>,
    awaited_at: &'static Location<'static>,
}

impl<'a> Locking<'a> {
    #[inline]
    pub(crate) fn new(lock: &'a Lock, awaited_at: &'static Location<'static>) -> Self {
        Self { taking: Taking::new(lock), awaited_at }
    }

    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        if let Some(lock) = self.taking.if_new().filter(|lock| lock.holder.is_current_task()) {
            report_own_lock(lock.about().into(), self.awaited_at);
        }
        let taken = ready!(self.taking.poll(cx, self.awaited_at));
        Poll::Ready(taken.map(|lock| lock.holder.set(self.awaited_at)))
    }
}

impl Future for Locking<'_> {
    type Output = Result<(), Interrupted>;

    #[track_caller]
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(lock) = self.taking.if_new() {
            if lock.take(self.awaited_at) {
                self.taking.end();
                return Poll::Ready(Ok(()));
            }
        }
        self.wait(cx)
    }
}
