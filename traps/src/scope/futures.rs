//! Futures in scopes: when a scope is opened, armed, passed and closed. `scope.rs` has the states.

use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake_time::Deadline;

use super::{Frame, ScopeCause};
use crate::cause::rules::{self, Polled};
use crate::cause::{Branch, Cause};
use crate::cell::flags::Flags;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::{Count, SubWait};
use crate::door;
use crate::interrupt::TimedOut;
use crate::kind::TrapKind;
use crate::local::Local;
use crate::seen::About;
use crate::step::Step;
use crate::sub_waits::{NodeKind, Under};
use crate::traps::foreign;
use crate::wait::{Parked, Passed, Until, WaitPlace, Waiter};

/// The result of a future with a deadline, from [`timed`](crate::timed).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<T> {
    /// The future's output; `None` if the future had to be dropped.
    pub output: Option<T>,
    /// A wait in the future returned the interruption, or the future had to be dropped.
    pub expired: bool,
    /// The time from the deadline to the future's end; zero if the future was in time. A future
    /// that overran in code without awaits was late without an interruption.
    pub late: Duration,
}

/// The purpose of a scope.
#[derive(Clone, Copy)]
enum Kind {
    /// Interrupts the body when the deadline has passed.
    Deadline(Until),
    /// Hides the causes of outer owners from the body.
    Shield,
}

impl Frame {
    /// The scope's node, which is made if there is none.
    pub(crate) fn node(&self, local: &Local, task: &TaskRef) -> SubWait {
        if self.node.get().is_none() {
            self.bind(local, task, None);
        }
        self.node.get()
    }

    /// Binds the scope's node to a task, a waker, and the scope around this one.
    fn bind(&self, local: &Local, task: &TaskRef, waker: Option<&Waker>) {
        let under = match self.parent() {
            Some(parent) => Under::Scope(parent.node(local, task)),
            None => Under::Task,
        };
        let kind = if self.is_shield() { NodeKind::Shield } else { NodeKind::Deadline };
        self.node.set(local.sub_waits().bind(self.node.get(), under, task, waker, kind));
    }

    /// Opens the scope at its first poll, from which a relative deadline counts.
    #[inline]
    fn open(&self, local: &Local, kind: Kind) {
        self.kernel.set(local.id());
        self.opened.set(local.moments.next());
        self.deadline.set(match kind {
            Kind::Deadline(Until::After(length)) => {
                let kernel = local.kernel();
                Deadline::at(kernel.now().saturating_add(kernel.rate().ticks_ceil(length)))
            }
            Kind::Deadline(Until::At(deadline)) => deadline,
            Kind::Shield => Deadline::NEVER,
        });
    }

    /// Arms the timer, or binds it to the task and node of this poll.
    #[inline]
    fn arm(&self, local: &Local, task: &TaskRef) {
        if self.deadline.get().is_never() {
            return;
        }
        let mut passed = None;
        let place = WaitPlace::Deadline(self.deadline.get().ticks(), &mut passed);
        let waiter = Waiter::uncounted(task, self.node.get());
        let parked = match self.timer.get() {
            None => local.kernel().park(place, &waiter),
            Some(key) => local.kernel().collect(place, key, &waiter),
        };
        self.task.set(Some(task.address()));
        self.timer.set(match parked {
            Parked::Waits(key) => Some(key),
            Parked::Satisfied | Parked::Deferred | Parked::Never => None,
        });
        if let Some(passed) = passed {
            self.pass(local, passed);
        }
    }

    /// Takes the deadline over, which has passed.
    #[inline(never)]
    fn pass(&self, local: &Local, passed: Passed) {
        let Some(set_at) = self.set_at else { return };
        let grace = self.grace.get().map(|grace| local.kernel().rate().ticks_ceil(grace));
        let cause = Cause::of_scope(self.opened.get(), set_at, (passed.number, passed.at), grace);
        let flagged = Cell::new(Some(passed.waiter.into_task()));
        let is_first = self.passed.set(Box::new(ScopeCause { cause, flagged })).is_ok();
        debug_assert!(is_first, "a deadline passes once");
    }

    /// Binds the scope to the task and waker of a poll that begins, and finds out whether the
    /// deadline has passed. Not needed if the same task polls with its own waker, is not watched,
    /// and there is no node.
    #[inline(never)]
    fn update(&self, local: &Local, task: &TaskRef, waker: &Waker) {
        if !task.owns(waker) {
            self.bind(local, task, Some(waker));
        } else if !self.node.get().is_none() {
            self.bind(local, task, None);
        }
        self.rebind(local, task);
        // The task that polls the scope is flagged for its cause.
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

    /// Binds the timer, if there is one, to the task and node of this poll.
    fn rebind(&self, local: &Local, task: &TaskRef) {
        if self.timer.get().is_some() {
            self.arm(local, task);
        }
    }

    /// Applies the rules after a pending poll of a scope with sub-waits, or in a watched task.
    /// Returns whether to drop the body.
    #[inline(never)]
    fn apply_rules(&self, local: &Local, task: &TaskRef, polled: Polled) -> bool {
        self.rebind(local, task);
        match self.cause() {
            Some(cause) => {
                let owner = Waiter::uncounted(task, self.node.get());
                rules::apply_rules(local, cause, polled, &owner)
            }
            None => false,
        }
    }

    /// Notes a pending poll of a scope in an inspected task, for listings, if the body polls no
    /// wait, and so waits for a foreign future. A wait shows the deadlines around it; without one
    /// the deadline of this scope would not be seen.
    #[cold]
    fn note_seen(&self, local: &Local, task: &TaskRef, is_own: bool) {
        let Some(set_at) = self.set_at.filter(|_| !self.deadline.get().is_never()) else { return };
        // `shown_at` shows a foreign future.
        if is_own && task.is_last_seen_in(&self.seen()) {
            return;
        }
        let sub_wait = (!is_own).then(|| self.node.get());
        let about = About::new("foreign future in a scope with a deadline");
        let kind = TrapKind::of(&foreign::NAME);
        local.note_seen(task, sub_wait, (kind, set_at), Some(about));
    }

    /// Ends the scope. Returns whether a poll has returned its cause.
    #[inline]
    fn close(&self) -> bool {
        if self.is_plain() && self.timer.get().is_none() {
            return false;
        }
        door::reach(self.kernel.get(), |local| self.close_in(local)).unwrap_or(false)
    }

    /// Whether the scope's end has at most a timer to disarm.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.passed.get().is_none() && self.node.get().is_none() && self.stamp.get() == 0
    }

    /// Disarms the timer.
    #[inline(always)]
    fn disarm(&self, local: &Local) {
        let Some(key) = self.timer.take() else { return };
        let mut passed = None;
        let place = WaitPlace::Deadline(self.deadline.get().ticks(), &mut passed);
        local.kernel().leave(place, key);
        if let Some(passed) = passed {
            // The task was flagged for a cause that no poll has seen.
            passed.waiter.task().discount_cause();
        }
    }

    #[inline(never)]
    fn close_in(&self, local: &Local) -> bool {
        self.disarm(local);
        local.step.forget_pending(self.stamp.get());
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

    /// The time since the deadline.
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

/// Keeps a scope in the chain during a poll, until the guard is dropped.
struct Entered<'a> {
    step: &'a Step,
    around: Option<NonNull<Frame>>,
}

impl<'a> Entered<'a> {
    #[inline(always)]
    fn new(step: &'a Step, frame: &'a Frame) -> Self {
        let around = step.replace_scope(Some(NonNull::from(frame)));
        frame.parent.set(around);
        Self { step, around }
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.step.replace_scope(self.around);
    }
}

/// The end of a future in a scope.
enum End<T> {
    /// The future is ready.
    Done(T),
    /// The rules of interruption drop the future.
    MustDrop,
}

pin_project_lite::pin_project! {
    /// A future in a scope of its own.
    struct Scoped<F> {
        kind: Kind,
        // Dropped before the frame, so that the body's waits are withdrawn while the scope is open.
        #[pin]
        body: Option<F>,
        frame: Frame,
        // The future belongs to its kernel's thread, where the drop closes the scope.
        _home: PhantomData<*const ()>,
    }
}

impl<F: Future> Scoped<F> {
    #[inline]
    fn new(kind: Kind, set_at: Option<&'static Location<'static>>, body: F) -> Self {
        let frame = Frame::new(set_at);
        Self { kind, body: Some(body), frame, _home: PhantomData }
    }

    #[track_caller]
    #[inline]
    fn deadline(until: Until, body: F) -> Self {
        Self::new(Kind::Deadline(until), Some(Location::caller()), body)
    }

    /// Polls the body inside the scope. At the body's end, closes the scope, and also returns
    /// whether a poll has returned its cause.
    #[track_caller]
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Option<F::Output>, bool)> {
        let mut this = self.project();
        let body = this.body.as_mut().as_pin_mut();
        let body = body.expect("a scope was polled after it had given its output");
        let (kind, frame) = (*this.kind, &*this.frame);
        let polled = door::try_with_task(|local, task| {
            let is_here = frame.opened.get() == 0 || frame.kernel.get() == local.id();
            is_here.then(|| poll_in(kind, frame, body, local, task, cx))
        });
        let Some(polled) = polled.flatten() else { panic_misplaced(frame) };
        polled.map(|end| match end {
            End::Done(output) => {
                this.body.set(None);
                (Some(output), !frame.is_plain() && frame.close())
            }
            End::MustDrop => {
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
    let step = &local.step;
    if frame.opened.get() == 0 {
        frame.open(local, kind);
    }
    let entered = Entered::new(step, frame);
    let is_own = task.owns(cx.waker());
    if !is_own && step.is_ahead() {
        // Nothing is bound or armed before the task's own step.
        let polled = body.poll(cx).map(End::Done);
        if polled.is_pending() {
            local.poll_again_after_ahead(cx.waker());
        }
        return polled;
    }
    let is_same = frame.task.get().is_none_or(|before| before == task.address());
    if !is_own || !is_same || task.is_watched() || !frame.node.get().is_none() {
        frame.update(local, task, cx.waker());
    }
    let since = local.moments.last();
    // Nothing is counted yet for a task that becomes watched during the poll.
    let (wakes, seen) = if task.is_watched() { (step.wakes(), task.seen_count()) } else { (0, 0) };
    match body.poll(cx) {
        Poll::Ready(output) => {
            drop(entered);
            frame.disarm(local);
            if frame.is_shield() && task.is_watched() {
                local.step.branch.set(Some(Branch::of(frame.opened.get())));
            }
            Poll::Ready(End::Done(output))
        }
        Poll::Pending => {
            let must_drop = if task.is_watched() || !frame.node.get().is_none() {
                let sub_waits = local.sub_waits().count_inside(frame.node.get());
                let polled = Polled::new(step, since, sub_waits, step.wakes() != wakes);
                let must_drop = frame.apply_rules(local, task, polled);
                let has_wait = step.has_pending_since(since)
                    || task.seen_count() != seen
                    || sub_waits != Count::default();
                if task.flags().has(Flags::INSPECTED) && !has_wait && !must_drop {
                    frame.note_seen(local, task, is_own);
                }
                must_drop
            } else {
                false
            };
            drop(entered);
            if must_drop {
                return Poll::Ready(End::MustDrop);
            }
            if frame.is_shield() {
                // A pending shield counts as a wait of the scopes around the shield.
                local.step.forget_pending(frame.stamp.get());
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
#[track_caller]
fn panic_misplaced(frame: &Frame) -> ! {
    match door::current_kernel() {
        None => door::panic_outside_kernel("a scope"),
        Some(current) if frame.opened() != 0 && frame.kernel.get() != current => panic!(
            "a scope that was opened in kernel {} was polled outside of it: a future that \
             has started stays with its kernel",
            frame.kernel.get()
        ),
        Some(_) => door::panic_outside_task("a scope"),
    }
}

/// The setting that the futures with a deadline share.
macro_rules! with_grace {
    ($($name:ident)*) => {$(
        impl<F: Future> $name<F> {
            /// Drops the future if it has not ended this length after its deadline.
            ///
            /// Without this setting the future may clean up for as long as it waits on traps. Set
            /// the grace before the first poll.
            pub fn grace(self, length: Duration) -> Self {
                self.scoped.frame.grace.set(Some(length));
                self
            }
        }
    )*};
}

with_grace!(Timeout TimedFuture IgnoreAfter);

/// Defines the futures of this file. Each is a [`Scoped`] with an output of its own.
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

            #[track_caller]
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

/// The output of a body, if it has not expired. A late one is dropped.
#[inline]
fn in_time<F: Future>(
    scoped: Pin<&mut Scoped<F>>,
    output: Option<F::Output>,
    expired: bool,
) -> Option<F::Output> {
    if !expired {
        return output;
    }
    if output.is_some() {
        warn_of_lost_item(type_name::<F>(), scoped.frame.set_at);
    }
    drop(output);
    take_back_lost(&scoped.frame);
    None
}

/// Takes the interruptions back that were lost with the output of an ended scope.
#[cold]
fn take_back_lost(frame: &Frame) {
    door::try_with_task(|local, task| local.take_back_lost(task, frame.opened()));
}

/// Warns of a dropped output that was the next item of a stream. An interruption ends a generator
/// by its first `?`, and that item is the only sign of it. Nothing but the name of the body's type
/// tells that it was one: `Next` or `TryNext` of `futures` and `tokio-stream`, `NextFuture` or
/// `TryNextFuture` of `futures-lite`. Receivers of `pikake-sync` go on after an interruption.
#[cold]
fn warn_of_lost_item(body: &str, set_at: Option<&'static Location<'static>>) {
    let path = body.split('<').next().unwrap_or_default();
    let name = path.rsplit("::").next().unwrap_or_default();
    let is_next = matches!(name.trim_end_matches("Future"), "Next" | "TryNext");
    if is_next && !body.contains("pikake_sync") {
        tracing::warn!(
            set_at = set_at.map(tracing::field::display),
            "a timeout has interrupted the next item of a stream, and dropped it: the stream may \
             have ended by that, and `next_timeout` would not have interrupted it"
        );
    }
}

scoped_futures! {
    /// The future of [`timeout_after`](crate::timeout_after) and [`timeout_at`](crate::timeout_at).
    ///
    /// The future cannot leave its thread, whatever its body is:
    ///
    /// ```compile_fail,E0277
    /// fn send<T: Send>(_: T) {}
    /// send(pikake::timeout_after(std::time::Duration::ZERO, std::future::ready(())));
    /// ```
    Timeout => Result<F::Output, TimedOut>, |scoped, output, expired| {
        in_time(scoped, output, expired).ok_or(TimedOut)
    };
    /// The future of [`timed`](crate::timed).
    TimedFuture => Timed<F::Output>, |scoped: Pin<&mut Scoped<F>>, output: Option<_>, expired| {
        if output.is_none() {
            take_back_lost(&scoped.frame);
        }
        Timed { output, expired, late: scoped.frame.lateness() }
    };
    /// The future of [`ignore_after`](crate::ignore_after).
    IgnoreAfter => Option<F::Output>, in_time;
    /// The future of [`shield`](crate::shield).
    Shield => F::Output, |_, output: Option<F::Output>, _| {
        output.expect("the body of a shield is never dropped by the rules of interruption")
    };
}

/// Makes the futures of this file, for `calls.rs`.
impl<F: Future> Timeout<F> {
    #[track_caller]
    #[inline]
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> TimedFuture<F> {
    #[track_caller]
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> IgnoreAfter<F> {
    #[track_caller]
    pub(crate) fn new(until: Until, body: F) -> Self {
        Self { scoped: Scoped::deadline(until, body) }
    }
}

impl<F: Future> Shield<F> {
    pub(crate) fn new(body: F) -> Self {
        Self { scoped: Scoped::new(Kind::Shield, None, body) }
    }
}
