//! Futures in scopes: when a scope is opened, armed, passed and closed. `scope.rs` has the states.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake_time::Deadline;

use super::{Frame, Passed};
use crate::cause::rules::{self, Polled};
use crate::cause::{Branch, Cause};
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::interrupt::TimedOut;
use crate::local::Local;
use crate::sub_waits::{Under, What};
use crate::wait::{Until, Waiter};

/// What came of a future with a deadline. Given by [`timed`](crate::timed).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<T> {
    /// What the future returned; `None` if it had to be dropped.
    pub output: Option<T>,
    /// A wait in the future returned the interruption, or the future had to be dropped.
    pub expired: bool,
    /// How long after its deadline it ended; zero if it was in time. A future that overran in
    /// straight-line code was late without having been told.
    pub late: Duration,
}

/// What a scope is for.
#[derive(Clone, Copy)]
enum Kind {
    /// To interrupt what is inside when the time has come.
    Deadline {
        until: Until,
        /// How long what was interrupted may still run before it is dropped; `None`: without limit.
        grace: Option<Duration>,
    },
    /// To keep causes that come from around it away from what is inside.
    Shield,
}

impl Frame {
    /// The scope's node, under those of the scopes around it; it is made if there is none.
    pub(crate) fn node(&self, local: &Local, task: &TaskRef) -> SubWait {
        if self.node.get().is_none() {
            self.bind(local, task, None);
        }
        self.node.get()
    }

    /// Binds the scope's node to that task, that waker, and the scope around it.
    fn bind(&self, local: &Local, task: &TaskRef, waker: Option<&Waker>) {
        let under = match self.parent() {
            Some(parent) => Under::Scope(parent.node(local, task)),
            None => Under::Task,
        };
        let what = if self.is_shield { What::Shield } else { What::Deadline };
        self.node.set(local.sub_waits().bind(self.node.get(), under, task, waker, what));
    }

    fn waiter(&self, task: &TaskRef) -> Waiter {
        Waiter::new(task, self.node.get())
    }

    /// The first poll: counts the deadline from now on.
    #[inline]
    fn open(&self, local: &Local, until: Option<Until>) {
        self.kernel.set(local.id());
        self.opened.set(local.next_moment());
        self.deadline.set(match until {
            Some(Until::After(length)) => {
                let kernel = local.kernel();
                Deadline::at(kernel.now().saturating_add(kernel.rate().ticks_ceil(length)))
            }
            Some(Until::At(deadline)) => deadline,
            None => Deadline::NEVER,
        });
    }

    #[inline]
    fn arm(&self, local: &Local, task: &TaskRef) {
        if self.deadline.get().is_never() {
            return;
        }
        self.task.set(Some(task.address()));
        self.armed_node.set(self.node.get());
        let timer = local.kernel().arm(self.deadline.get(), self.waiter(task));
        self.timer.set(Some(timer));
    }

    /// Before a poll by a task that has a cause, or that is not as the one before: finds out whether
    /// the deadline has passed, and whom it is to notify from now on.
    #[inline(never)]
    fn look(&self, local: &Local, task: &TaskRef, waker: &Waker, grace: Option<Duration>) {
        if !task.owns(waker) {
            self.bind(local, task, Some(waker));
        } else if !self.node.get().is_none() {
            self.bind(local, task, None);
        }
        self.rebind(local, task);
        if let Some(timer) = self.timer.get()
            && local.kernel().has_passed(timer)
            && let Some(disarmed) = local.kernel().disarm(timer)
        {
            self.timer.set(None);
            if let Some(passed) = disarmed.passed {
                let grace = grace.map(|grace| local.kernel().rate().ticks_ceil(grace));
                let cause = Cause::of_scope(self.opened.get(), passed, grace);
                let flagged = Cell::new(Some(disarmed.waiter.into_task()));
                let is_first = self.passed.set(Box::new(Passed { cause, flagged })).is_ok();
                debug_assert!(is_first, "a deadline passes once");
            }
        }
        // The task is flagged for it as long as it polls it.
        if let Some(passed) = self.passed.get() {
            let flagged = passed.flagged.take();
            if !flagged.as_ref().is_some_and(|flagged| flagged.is(task)) {
                rules::add_cause(task);
                if let Some(before) = flagged {
                    before.discount_cause();
                }
            }
            passed.flagged.set(Some(task.clone()));
            self.task.set(Some(task.address()));
        }
    }

    /// Arms the timer anew if it is armed for another task or another node, unless it has passed.
    fn rebind(&self, local: &Local, task: &TaskRef) {
        let Some(timer) = self.timer.get() else { return };
        let is_same =
            self.task.get() == Some(task.address()) && self.armed_node.get() == self.node.get();
        if is_same || local.kernel().has_passed(timer) {
            return;
        }
        drop(local.kernel().disarm(timer));
        self.arm(local, task);
    }

    /// After a pending poll in which a sub-wait was, or while the task has a cause: whether the body
    /// is to be dropped.
    #[inline(never)]
    fn judge(&self, local: &Local, task: &TaskRef, polled: Polled) -> bool {
        self.rebind(local, task);
        match self.cause() {
            Some(cause) => rules::judge(local, cause, polled, &self.waiter(task)),
            None => false,
        }
    }

    /// Ends the scope. Tells whether its cause was returned.
    #[inline]
    fn close(&self) -> bool {
        if self.is_plain() && self.timer.get().is_none() {
            return false;
        }
        door::reach(self.kernel.get(), |local| self.close_in(local)).unwrap_or(false)
    }

    /// Whether there is nothing to end but the timer.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.passed.get().is_none() && self.node.get().is_none() && self.stamp.get() == 0
    }

    /// Takes the timer back.
    #[inline(always)]
    fn disarm(&self, local: &Local) {
        if let Some(disarmed) = self.timer.take().and_then(|timer| local.kernel().disarm(timer)) {
            rules::end_of(disarmed);
        }
    }

    #[inline(never)]
    fn close_in(&self, local: &Local) -> bool {
        self.disarm(local);
        local.forget_pending(self.stamp.get());
        let node = self.node.replace(SubWait::NONE);
        if !node.is_none() {
            local.sub_waits().free(node);
        }
        let Some(passed) = self.passed.get() else { return false };
        passed.cause.end_alarm(local);
        if let Some(flagged) = passed.flagged.take() {
            flagged.discount_cause();
        }
        passed.cause.was_returned()
    }

    /// How long after its deadline it is now.
    fn lateness(&self) -> Duration {
        if self.deadline.get().is_never() {
            return Duration::ZERO;
        }
        let late = door::reach(self.kernel.get(), |local| {
            let kernel = local.kernel();
            kernel.rate().duration_floor(kernel.now().since(self.deadline.get().ticks()))
        });
        late.unwrap_or_default()
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        self.close();
    }
}

/// A scope during a poll: in the chain until this is dropped, also by a panic.
struct Entered<'a> {
    local: &'a Local,
    around: *const Frame,
}

impl<'a> Entered<'a> {
    #[inline(always)]
    fn new(local: &'a Local, frame: &'a Frame) -> Self {
        let around = local.replace_scope(frame);
        frame.parent.set(around);
        Self { local, around }
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.replace_scope(self.around);
    }
}

/// What a future in a scope came to.
enum End<T> {
    /// It is done, and its scope closed.
    Done(T),
    /// It waits on what cannot be told, and is to be dropped.
    Lost,
}

pin_project_lite::pin_project! {
    /// A future in a scope of its own.
    struct Scoped<F> {
        kind: Kind,
        // Dropped before the frame is: what the body waits on is taken back from an open scope.
        #[pin]
        body: Option<F>,
        frame: Frame,
        // It belongs to its kernel's thread, where it must be dropped to be closed.
        _home: PhantomData<*const ()>,
    }
}

impl<F: Future> Scoped<F> {
    #[inline]
    fn new(kind: Kind, body: F) -> Self {
        let frame = Frame::new(matches!(kind, Kind::Shield));
        Self { kind, body: Some(body), frame, _home: PhantomData }
    }

    #[inline]
    fn deadline(until: Until, body: F) -> Self {
        Self::new(Kind::Deadline { until, grace: None }, body)
    }

    /// Polls the body inside the scope; when it is ready the scope is closed, and the second of the pair tells
    /// whether its cause was returned.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Option<F::Output>, bool)> {
        let mut this = self.project();
        let body = this.body.as_mut().as_pin_mut();
        let body = body.expect("a scope was polled after it had given its output");
        let (kind, frame) = (*this.kind, &*this.frame);
        let polled = door::try_with_task(|local, task| poll_in(kind, frame, body, local, task, cx));
        let Some(polled) = polled else { outside(frame) };
        polled.map(|end| match end {
            End::Done(output) => {
                this.body.set(None);
                (Some(output), !frame.is_plain() && frame.close())
            }
            End::Lost => {
                this.body.set(None);
                frame.close();
                (None, true)
            }
        })
    }
}

#[inline(always)]
fn poll_in<F: Future>(
    kind: Kind,
    frame: &Frame,
    body: Pin<&mut F>,
    local: &Local,
    task: &TaskRef,
    cx: &mut Context<'_>,
) -> Poll<End<F::Output>> {
    let (until, grace) = match kind {
        Kind::Deadline { until, grace } => (Some(until), grace),
        Kind::Shield => (None, None),
    };
    if frame.opened.get() == 0 {
        frame.open(local, until);
    } else if frame.kernel.get() != local.id() {
        outside(frame);
    }
    let entered = Entered::new(local, frame);
    let is_own = task.owns(cx.waker());
    let is_same = frame.task.get().is_none_or(|before| before == task.address());
    if !is_own || !is_same || task.is_watched() || !frame.node.get().is_none() {
        frame.look(local, task, cx.waker(), grace);
    }
    let (since, wakes) = (local.moment(), local.wakes());
    match body.poll(cx) {
        Poll::Ready(output) => {
            drop(entered);
            frame.disarm(local);
            if frame.is_shield && task.is_watched() {
                local.set_branch(Some(Branch::of(frame.opened.get())));
            }
            Poll::Ready(End::Done(output))
        }
        Poll::Pending => {
            let is_lost = if task.is_watched() || !frame.node.get().is_none() {
                let sub_waits = local.sub_waits().count_inside(frame.node.get());
                let polled = Polled::new(since, sub_waits, local.wakes() != wakes);
                frame.judge(local, task, polled)
            } else {
                false
            };
            drop(entered);
            if is_lost {
                return Poll::Ready(End::Lost);
            }
            if frame.is_shield {
                // A shield that waits is a wait of the scopes around it.
                local.forget_pending(frame.stamp.get());
                if is_own {
                    frame.stamp.set(local.note_pending(task));
                }
            } else if frame.timer.get().is_none() && frame.passed.get().is_none() {
                frame.arm(local, task);
            }
            Poll::Pending
        }
    }
}

/// Panics because a scope was polled outside of its kernel, or of any task.
#[cold]
#[inline(never)]
fn outside(frame: &Frame) -> ! {
    let place = Location::caller();
    match door::current_kernel() {
        None => door::outside("a scope", place),
        Some(current) if frame.opened() != 0 && frame.kernel.get() != current => panic!(
            "a scope that was opened in kernel {} was polled outside of it: a future that \
             has started stays with its kernel",
            frame.kernel.get()
        ),
        Some(_) => panic!(
            "a scope was polled inside a kernel but outside a task: spawn a task and await it there"
        ),
    }
}

/// The setting that the futures with a deadline share.
macro_rules! with_grace {
    ($($name:ident)*) => {$(
        impl<F: Future> $name<F> {
            /// Drops the future when it has not ended so long after its deadline, whatever it does.
            ///
            /// Without this it may take its time to clean up, as long as it waits on traps. To be
            /// set before the first poll.
            pub fn grace(mut self, length: Duration) -> Self {
                if let Kind::Deadline { grace, .. } = &mut self.scoped.kind {
                    *grace = Some(length);
                }
                self
            }
        }
    )*};
}

with_grace!(Timeout TimedFuture IgnoreAfter);

/// Names the futures of this file: each is a [`Scoped`] that makes something of its end.
macro_rules! scoped_futures {
    ($($(#[$doc:meta])* $name:ident => $output:ty, $make:expr;)*) => {$(
        pin_project_lite::pin_project! {
            $(#[$doc])*
            #[must_use = "a future does nothing until it is awaited"]
            pub struct $name<F> {
                #[pin]
                scoped: Scoped<F>,
            }
        }

        impl<F: Future> Future for $name<F> {
            type Output = $output;

            #[inline]
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let mut scoped = self.project().scoped;
                let ended = scoped.as_mut().poll(cx);
                ended.map(|(output, expired)| $make(scoped, output, expired))
            }
        }

        impl<F> fmt::Debug for $name<F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

scoped_futures! {
    /// The future of [`timeout_after`] and [`timeout_at`].
    ///
    /// It cannot leave its thread, whatever its body is:
    ///
    /// ```compile_fail,E0277
    /// fn send<T: Send>(_: T) {}
    /// send(pikake_traps::timeout_after(std::time::Duration::ZERO, std::future::ready(())));
    /// ```
    Timeout => Result<F::Output, TimedOut>, |_, output: Option<F::Output>, expired: bool| {
        output.filter(|_| !expired).ok_or(TimedOut)
    };
    /// The future of [`timed`](crate::timed).
    TimedFuture => Timed<F::Output>, |scoped: Pin<&mut Scoped<F>>, output, expired| {
        Timed { output, expired, late: scoped.frame.lateness() }
    };
    /// The future of [`ignore_after`].
    IgnoreAfter => Option<F::Output>, |_, output: Option<F::Output>, expired: bool| {
        output.filter(|_| !expired)
    };
    /// The future of [`shield`].
    Shield => F::Output, |_, output: Option<F::Output>, _| {
        output.expect("the body of a shield is never dropped by the rules of interruption")
    };
}

/// Makes the futures of this file, for `calls.rs`.
impl<F: Future> Timeout<F> {
    #[inline]
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> TimedFuture<F> {
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> IgnoreAfter<F> {
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> Shield<F> {
    pub(crate) fn new(body: F) -> Self {
        Self { scoped: Scoped::new(Kind::Shield, body) }
    }
}
