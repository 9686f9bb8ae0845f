//! A timer for a deadline that moves on, such as the end of a peer's silence.
//!
//! The timer is set once, and stays when its deadline moves to a later moment. When it fires too
//! early, it is set for the deadline of that time. So a connection that is busy sets no timer, and
//! its timer fires once in the length of the limit. The timer is never set
//! for a later deadline, and is late by its slack at most.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::{ElapseTrap, KernelTrap, elapse_until, now, with_timer_slack};

/// How late the timer may be, so that those of many connections cost one wake-up.
const SLACK: Duration = Duration::from_millis(20);

/// The moment that the timer is set for, and the wait for it. While nobody waits, the timer stays,
/// and fires at most once.
///
/// An interruption is for the future beside the timer. The timer collects none, as it may have been
/// set in a wait that has ended.
#[derive(Default)]
pub(crate) struct LazyTimer(Option<(Deadline, KernelTrap<ElapseTrap>)>);

impl LazyTimer {
    /// Waits for a future. `None`: the deadline has passed before.
    pub(crate) async fn wait<F: Future>(
        &mut self,
        deadline: Deadline,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            // Before the future, whose wait is then the one that listings show.
            let timer = self.poll(deadline, cx);
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => timer.map(|()| None),
            }
        })
        .await
    }

    fn poll(&mut self, deadline: Deadline, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let (moment, timer) = match &mut self.0 {
                Some(set) if set.0 <= deadline => set,
                unset => unset.insert((deadline, elapse_until(with_timer_slack(deadline, SLACK)))),
            };
            ready!(Pin::new(timer).poll(cx));
            let is_over = *moment == deadline || deadline.is_due(now());
            self.0 = None;
            if is_over {
                return Poll::Ready(());
            }
        }
    }
}
