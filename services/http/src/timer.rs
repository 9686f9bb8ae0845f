//! Timers as hyper wants them: `Send`, `Sync`, and without an error.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;
use pikake_time::Ticks;
use pikake_traps::{
    Bound, ElapseTrap, KernelTrap, deadline_after, elapse_until, elapsed_since, now,
};

/// The kernel's clock and timers, for hyper.
///
/// hyper's moments are [`Instant`]s. This one counts them from when it was made, on the kernel's
/// clock, so a kernel with a clock of its own (a simulation, a test) gives its own time to hyper.
///
/// Its timers cannot be interrupted, see [`elapse`](pikake_traps::elapse).
///
/// # Examples
///
/// ```no_run
/// # async fn example() {
/// let mut builder = hyper::server::conn::http1::Builder::new();
/// builder.timer(pikake_http::Timer::new());
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

    fn rings_after(length: Duration) -> Ring {
        Ring(Bound::new(elapse_until(deadline_after(length))))
    }

    fn until(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(rt::Timer::now(self))
    }
}

struct Ring(Bound<KernelTrap<ElapseTrap>>);

impl Future for Ring {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl rt::Sleep for Ring {}

impl rt::Timer for Timer {
    #[track_caller]
    fn sleep(&self, length: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Self::rings_after(length))
    }

    #[track_caller]
    fn sleep_until(&self, moment: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Self::rings_after(self.until(moment)))
    }

    #[track_caller]
    fn now(&self) -> Instant {
        self.made_at + elapsed_since(self.made_at_ticks)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, moment: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Ring>() {
            Some(ring) => *ring.get_mut() = Self::rings_after(self.until(moment)),
            None => *sleep = self.sleep_until(moment),
        }
    }
}
