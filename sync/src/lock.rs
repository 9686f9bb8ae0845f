//! What the two kinds of mutex have in common: one permit, and who holds it.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_traps::{ElapseTrap, Interrupted, KernelTrap, Until, WaitQueue, kernel_trap_at};

use crate::holder::Holder;
use crate::name::Name;
use crate::permits::{Permits, Taking};

/// How long a task may wait for a lock of its own before that is reported. Another branch of the task may give
/// the lock back, but seldom takes so long.
const OWN_LOCK_REPORT: Duration = Duration::from_secs(1);

/// A lock, without anything in it.
pub(crate) struct Lock {
    /// One permit: the holder's.
    permit: WaitQueue,
    /// The last task that took the lock.
    holder: Holder,
    name: Name,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { permit: WaitQueue::with_permits(1), holder: Holder::new(), name: Name::NONE }
    }

    pub(crate) const fn set_name(&mut self, name: &'static str) {
        self.name = Name::new(name);
    }

    /// Takes the lock if nobody holds it or waits for it.
    #[inline]
    pub(crate) fn try_lock(&self, place: &'static Location<'static>) -> bool {
        let is_taken = self.permit.try_take(1);
        if is_taken {
            self.holder.set(place);
        }
        is_taken
    }

    /// Gives the lock to the first waiter.
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
        self.name.show(shown);
        let holder = self.is_held().then_some(&self.holder);
        shown.field("held_by", &holder).field("waiting", &self.waiting());
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Permits for &Lock {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        &self.permit
    }

    fn about(&self) -> String {
        format!("mutex{}, held by {:?}", self.name, self.holder)
    }
}

/// Taking a lock, if need be by waiting for it.
pub(crate) struct Locking<'a> {
    taking: Taking<&'a Lock>,
    awaited_at: &'static Location<'static>,
    /// The task holds the lock itself, and this is when that is reported.
    report: Option<Box<KernelTrap<ElapseTrap>>>,
}

impl<'a> Locking<'a> {
    #[inline]
    pub(crate) fn new(lock: &'a Lock, awaited_at: &'static Location<'static>) -> Self {
        Self { taking: Taking::new(lock), awaited_at, report: None }
    }

    #[inline(never)]
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        let lock = self.taking.if_new().copied();
        match self.taking.poll(cx, self.awaited_at) {
            Poll::Ready(taken) => {
                self.report = None;
                Poll::Ready(taken.map(|lock| lock.holder.set(self.awaited_at)))
            }
            Poll::Pending => {
                if lock.is_some_and(|lock| lock.holder.is_current_task()) {
                    let report = ElapseTrap::new(Until::After(OWN_LOCK_REPORT));
                    self.report = Some(Box::new(kernel_trap_at(report, self.awaited_at)));
                }
                if self.report.is_some() {
                    self.report_own(cx);
                }
                Poll::Pending
            }
        }
    }

    /// Reports a task that has waited long for a lock of its own.
    #[cold]
    fn report_own(&mut self, cx: &mut Context<'_>) {
        let Some(report) = &mut self.report else { return };
        if Pin::new(&mut **report).poll(cx).is_ready() {
            self.report = None;
            if let Some(lock) = self.taking.if_waiting()
                && lock.holder.is_current_task()
            {
                tracing::warn!(
                    waits_at = %self.awaited_at,
                    "a task waits for a {}: unless another branch of the task gives the lock back, the task \
                     waits for ever",
                    lock.about(),
                );
            }
        }
    }
}

impl Future for Locking<'_> {
    type Output = Result<(), Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(lock) = self.taking.if_new()
            && lock.try_lock(self.awaited_at)
        {
            self.taking.end();
            return Poll::Ready(Ok(()));
        }
        self.wait(cx)
    }
}
