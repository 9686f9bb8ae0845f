//! Time limits of a job: the soft one interrupts it, the hard one drops it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pikake_sync::shared::Event;
use pikake_traps::timed;

/// The result of a future with limits.
pub(crate) struct Limited<T> {
    /// The output, even if it came after the interruption; `None` if the future was dropped.
    pub(crate) output: Option<T>,
    /// The limit that the future has exceeded.
    pub(crate) exceeded: Option<Limit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Soft,
    Hard,
}

/// Runs a job's future within its limits.
pub(crate) async fn limited<F: Future>(
    soft: Option<Duration>,
    hard: Option<Duration>,
    future: F,
) -> Limited<F::Output> {
    let Some(hard) = hard else { return softly(soft, future).await };
    // Interrupts at the moment of the drop, so that a job that has its value already keeps it.
    let timed = timed(hard, softly(soft, future)).grace(Duration::ZERO).await;
    match timed.output {
        Some(Limited { output: Some(output), exceeded }) if !timed.expired => {
            Limited { output: Some(output), exceeded }
        }
        Some(limited) if !timed.expired => limited,
        output => Limited {
            output: output.and_then(|limited| limited.output),
            exceeded: Some(Limit::Hard),
        },
    }
}

async fn softly<F: Future>(soft: Option<Duration>, future: F) -> Limited<F::Output> {
    let Some(soft) = soft else {
        return Limited { output: Some(future.await), exceeded: None };
    };
    let timed = timed(soft, future).await;
    Limited { output: timed.output, exceeded: timed.expired.then_some(Limit::Soft) }
}

/// The same for work in a thread, which sets an event when it begins: the wait for a free thread
/// does not count.
pub(crate) async fn limited_once_begun<F: Future>(
    soft: Option<Duration>,
    hard: Option<Duration>,
    work: impl FnOnce(Arc<Event>) -> F,
) -> Limited<F::Output> {
    let begun = Arc::new(Event::new());
    let mut work = pin!(work(begun.clone()));
    if soft.is_none() && hard.is_none() {
        return softly(None, work).await;
    }
    let early = {
        let mut begins = pin!(begun.wait());
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => begins.as_mut().poll(cx).map(|_| None),
        })
        .await
    };
    match early {
        Some(output) => Limited { output: Some(output), exceeded: None },
        None => limited(soft, hard, work).await,
    }
}
