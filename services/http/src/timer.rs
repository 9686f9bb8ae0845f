//! Timers for hyper: `Send`, `Sync`, and without an error.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt;
use pikake_time::Ticks;
use pikake_traps::{
    Bound, ElapseTrap, KernelTrap, deadline_after, elapse_until, elapsed_since, now,
    with_timer_slack,
};

/// The time-outs of connections, which nobody measures, may be late by this part of their length,
/// so that those of many connections cost one wake-up.
pub(crate) const SLACK: u32 = 16;

/// The kernel's clock and timers, for hyper.
///
/// hyper measures time in [`Instant`]s. This timer computes them from its creation and the kernel's
/// clock, so hyper follows a virtual clock (in a simulation or a test), too.
///
/// The timers cannot be interrupted, see [`elapse`](pikake_traps::elapse). On a real clock, a timer
/// may be late by a sixteenth of its length ([`with_timer_slack`]).
///
/// # Examples
///
/// ```no_run
/// # async fn example() {
/// let mut builder = hyper::server::conn::http1::Builder::new();
/// builder.timer(pikake::http::Timer::new());
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    made_at: Instant,
    made_at_ticks: Ticks,
}

impl Timer {
    /// A timer on the current kernel's clock.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "a default does not panic outside a kernel")]
    pub fn new() -> Self {
        Self { made_at: Instant::now(), made_at_ticks: now() }
    }

    fn sleep_for(length: Duration) -> KernelSleep {
        let end = with_timer_slack(deadline_after(length), length / SLACK);
        KernelSleep(Some(Bound::new(elapse_until(end))))
    }

    fn until(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(rt::Timer::now(self))
    }
}

/// `None` once the time is over: hyper polls its timers again, and a trap answers once.
struct KernelSleep(Option<Bound<KernelTrap<ElapseTrap>>>);

impl Future for KernelSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(elapse) = &mut self.0 {
            ready!(Pin::new(elapse).poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl rt::Sleep for KernelSleep {}

impl rt::Timer for Timer {
    #[track_caller]
    fn sleep(&self, length: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Self::sleep_for(length))
    }

    #[track_caller]
    fn sleep_until(&self, moment: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Self::sleep_for(self.until(moment)))
    }

    #[track_caller]
    fn now(&self) -> Instant {
        self.made_at + elapsed_since(self.made_at_ticks)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, moment: Instant) {
        match sleep.as_mut().downcast_mut_pin::<KernelSleep>() {
            Some(sleep) => *sleep.get_mut() = Self::sleep_for(self.until(moment)),
            None => *sleep = self.sleep_until(moment),
        }
    }
}
