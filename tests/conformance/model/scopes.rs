//! The futures that are regions: scopes with a deadline, and shields.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::machine::{next_number, try_with, with};
use super::rules::{Before, Kind, Number};
use super::waits::waker_of;
use super::{TimedOut, nanos};

/// The result of a body with a deadline.
#[derive(Debug)]
pub(crate) struct Timed<T> {
    pub(crate) output: Option<T>,
    pub(crate) expired: bool,
    pub(crate) late: Duration,
}

/// An open region. Dropping this closes it.
struct Open(Number);

impl Drop for Open {
    fn drop(&mut self) {
        try_with(|state| state.close(self.0));
    }
}

/// A region while its body is polled. A panic leaves the region, too.
struct Entered(Option<Before>);

impl Entered {
    fn finish(mut self) -> Before {
        self.0.take().expect("finished once")
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            try_with(|state| state.go_back(before));
        }
    }
}

/// A body in a region of its own.
struct Scoped<F> {
    // Dropped before the region is closed.
    body: Option<Pin<Box<F>>>,
    open: Option<Open>,
}

impl<F: Future> Scoped<F> {
    fn new(body: F) -> Self {
        Self { body: Some(Box::pin(body)), open: None }
    }

    fn poll(
        &mut self,
        kind: impl FnOnce() -> Kind,
        cx: &mut Context<'_>,
    ) -> Poll<Timed<F::Output>> {
        let waker = waker_of(cx);
        let kind = kind();
        let region = self.open.get_or_insert_with(|| Open(next_number())).0;
        let entered = Entered(Some(with(|state| state.enter(region, kind, waker))));
        let body = self.body.as_mut().expect("not polled again after its end");
        let (output, (expired, late)) = match body.as_mut().poll(cx) {
            Poll::Ready(output) => {
                self.body = None;
                let before = entered.finish();
                (Some(output), with(|state| state.leave_ended(region, before)))
            }
            Poll::Pending => {
                let before = entered.finish();
                if !with(|state| state.leave(region, before)) {
                    return Poll::Pending;
                }
                self.body = None;
                let (_, late) = with(|state| state.close(region));
                (None, (true, late))
            }
        };
        Poll::Ready(Timed { output, expired, late: Duration::from_nanos(late) })
    }

    /// After the end of the region: its body's output was dropped.
    fn take_back_lost(&self) {
        let region = self.open.as_ref().expect("polled").0;
        with(|state| state.take_back(region));
    }
}

/// The future of [`timed`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct TimedFuture<F> {
    length: Duration,
    grace: Option<Duration>,
    scoped: Scoped<F>,
}

/// Runs a body with a deadline.
pub(crate) fn timed<F: Future>(length: Duration, body: F) -> TimedFuture<F> {
    TimedFuture { length, grace: None, scoped: Scoped::new(body) }
}

impl<F> TimedFuture<F> {
    pub(crate) fn grace(self, length: Duration) -> Self {
        Self { grace: Some(length), ..self }
    }
}

impl<F: Future> Future for TimedFuture<F> {
    type Output = Timed<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (length, grace) = (nanos(self.length), self.grace.map(nanos));
        let kind = || {
            let deadline = with(|state| state.now.saturating_add(length));
            Kind::Scope { deadline, grace }
        };
        let polled = self.scoped.poll(kind, cx);
        if matches!(polled, Poll::Ready(Timed { output: None, .. })) {
            self.scoped.take_back_lost();
        }
        polled
    }
}

/// The future of [`timeout_after`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct Timeout<F>(TimedFuture<F>);

/// Runs a body with a deadline; returns its output if it was in time.
pub(crate) fn timeout_after<F: Future>(length: Duration, body: F) -> Timeout<F> {
    Timeout(timed(length, body))
}

impl<F> Timeout<F> {
    pub(crate) fn grace(self, length: Duration) -> Self {
        Self(self.0.grace(length))
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|timed| match timed.output {
            Some(output) if !timed.expired => Ok(output),
            late => {
                if late.is_some() {
                    drop(late);
                    self.0.scoped.take_back_lost();
                }
                Err(TimedOut)
            }
        })
    }
}

/// The future of [`shield`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct Shield<F>(Scoped<F>);

/// Keeps the causes of the regions around it from its body.
pub(crate) fn shield<F: Future>(body: F) -> Shield<F> {
    Shield(Scoped::new(body))
}

impl<F: Future> Future for Shield<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let ended = self.0.poll(|| Kind::Shield, cx);
        ended.map(|timed| timed.output.expect("a shield owns no cause"))
    }
}
