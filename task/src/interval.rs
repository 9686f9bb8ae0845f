//! Ticks at a fixed rate, which do not drift.

use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use pikake_traps::{
    ElapseTrap, Instant, Interrupted, SleepTrap, Until, check_interrupt, in_kernel, kernel_trap_at,
};

/// Makes an interval, whose first tick is due at once, and each later one a `period` after the one
/// before.
///
/// # Examples
///
/// ```
/// use pikake::time::Instant;
/// use pikake::{interval, sleep};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let begin = Instant::now();
/// let mut interval = interval(Duration::from_secs(10));
/// for seconds in [0, 10, 20] {
///     let due = interval.tick().await?;
///     assert_eq!(due - begin, Duration::from_secs(seconds));
///     sleep(Duration::from_secs(3)).await?; // work, which does not delay the next tick
/// }
/// # Ok::<_, pikake::Interrupted>(())
/// # })
/// # .unwrap();
/// ```
///
/// # Panics
///
/// When the period is zero, and outside a kernel.
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(Instant::now(), period)
}

/// Makes an interval, whose first tick is due at `start`, and each later one a `period` after the
/// one before.
///
/// `interval_at(Instant::now() + period, period)` has its first tick after a period.
///
/// # Panics
///
/// When the period is zero.
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval needs a period that is longer than zero");
    Interval { start, due: Duration::ZERO, period, missed: MissedTickBehavior::default() }
}

/// Ticks at a fixed rate. Made by [`interval`] and [`interval_at`].
///
/// Each moment is computed from the first one, so no error adds up over many ticks.
#[derive(Debug)]
pub struct Interval {
    start: Instant,
    /// The moment of the next tick, after `start`.
    due: Duration,
    period: Duration,
    missed: MissedTickBehavior,
}

/// What an [`Interval`] does after its user was late: when the next tick was due before the one
/// before it was collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Missed ticks follow at once, one after the other, until none is left. So there are as many
    /// ticks as periods.
    #[default]
    Burst,
    /// The next tick is due a period after the late one was collected. So the ticks that follow are
    /// a period apart.
    Delay,
    /// The missed ticks are left out. The next tick is due at a multiple of the period, as before.
    Skip,
}

impl Interval {
    /// Sets what happens after missed ticks; by default [`MissedTickBehavior::Burst`].
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }

    /// What happens after missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// Waits for the next tick, and returns the moment at which it was due.
    ///
    /// A tick that is due already is ready at the first poll, so a `select!` in a loop does not
    /// starve it. If a task collects too many in one step, the other ready tasks run first.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is interrupted or dropped collects no tick, and the next
    /// call waits for the same one.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the tick.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn tick(&mut self) -> impl Future<Output = Result<Instant, Interrupted>> {
        let place = Location::caller();
        in_kernel(async move {
            // Beyond the end of the clock there is no tick.
            let due = self.start.checked_add(self.due);
            let until = due.map_or(Until::After(Duration::MAX), |due| Until::At(due.into()));
            if due.is_some_and(|due| due <= Instant::now()) {
                // A sleep would end in the next step, and each round of a loop around `select!`
                // makes a new one.
                check_interrupt()?;
                kernel_trap_at(ElapseTrap::new(until), place).await;
            } else {
                kernel_trap_at(SleepTrap::new(until), place).await?;
            }
            self.collect(self.start.elapsed());
            Ok(due.expect("a wait for a moment that never comes does not end"))
        })
    }

    /// Makes the next tick due a period from now.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn reset(&mut self) {
        self.start = Instant::now();
        self.due = self.period;
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Notes that the tick was collected `now` after the start.
    fn collect(&mut self, now: Duration) {
        let next = self.due.saturating_add(self.period);
        self.due = match self.missed {
            _ if now < next => next,
            MissedTickBehavior::Burst => next,
            MissedTickBehavior::Delay => now.saturating_add(self.period),
            MissedTickBehavior::Skip => {
                let since_tick = (now - self.due).as_nanos() % self.period.as_nanos();
                // Less than `now`, a reading of the clock.
                let since_tick = Duration::from_nanos(since_tick as u64);
                (now - since_tick).saturating_add(self.period)
            }
        };
    }
}
