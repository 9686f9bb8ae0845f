//! The clocks of a host and of its kernels.
//!
//! The world has one virtual time, which jumps. A step takes time and moves its kernel's clock
//! ahead of it; the world steps the kernel again when virtual time has caught up. The other kernels
//! of the host run meanwhile, as on other processors.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_time::{Clock, Deadline, Rate, Ticks};

/// The clock of a simulated kernel: one tick is one nanosecond, and only the world moves it.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Rc<Cell<u64>>);

impl SimClock {
    pub(crate) fn set(&self, now: u64) {
        self.0.set(self.0.get().max(now));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn advance(&self, length: Duration) {
        self.0.set(self.0.get().saturating_add(nanos(length)));
    }
}

impl Clock for SimClock {
    fn now(&self) -> Ticks {
        Ticks::new(self.0.get())
    }

    fn rate(&self) -> Rate {
        Rate::NANOS
    }

    fn idle(&self, _: Option<Deadline>) -> Option<Duration> {
        // The world waits, not the driver of one kernel.
        Some(Duration::ZERO)
    }
}

thread_local! {
    /// The host whose turn runs, and the clock of its kernel.
    static HERE: RefCell<Option<(usize, SimClock)>> = const { RefCell::new(None) };
}

/// The virtual time of the step that runs on this thread, if it is one of this host.
pub(crate) fn time_of_step_on(host: usize) -> Option<u64> {
    let time = |here: &RefCell<Option<(usize, SimClock)>>| match &*here.borrow() {
        Some((found, clock)) if *found == host => Some(clock.get()),
        _ => None,
    };
    HERE.try_with(time).ok()?
}

impl SimClock {
    /// Makes this the clock of [`busy_for`] while `inside` runs, a turn on this host.
    pub(crate) fn while_here<R>(&self, host: usize, inside: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                HERE.set(None);
            }
        }
        HERE.set(Some((host, self.clone())));
        let _leave = Leave;
        inside()
    }
}

/// Lets virtual time pass in the current step, as a long computation does. No other task of the
/// kernel runs meanwhile; other kernels of the host do.
///
/// # Examples
///
/// ```
/// use pikake::now;
/// use pikake::sim::{Sim, busy_for};
/// use pikake::time::elapsed_since;
/// use std::time::Duration;
///
/// let mut sim = Sim::new(1);
/// sim.client("a", || async {
///     let began = now();
///     busy_for(Duration::from_secs(2));
///     assert_eq!(elapsed_since(began), Duration::from_secs(2));
/// });
/// sim.run().unwrap();
/// ```
///
/// # Panics
///
/// Outside a simulation.
#[track_caller]
pub fn busy_for(length: Duration) {
    match HERE.with_borrow(Clone::clone) {
        Some((_, clock)) => clock.advance(length),
        None => panic!("only a step of a simulated host can take virtual time"),
    }
}

/// A length of time in ticks of virtual time, capped at five hundred years.
pub(crate) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Virtual time as a `Duration`, for messages.
pub(crate) fn shown(ticks: u64) -> Duration {
    Duration::from_nanos(ticks)
}

/// The wall clock of a host, which may be wrong and can be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// The time that it shows at virtual time zero.
    pub(crate) start: SystemTime,
    /// The nanoseconds by which it is ahead; below zero, behind.
    pub(crate) offset: i64,
    /// The millionths by which it is too fast; below zero, too slow.
    pub(crate) drift_ppm: i32,
}

const MILLION: i128 = 1_000_000;

impl WallClock {
    pub(crate) fn at(&self, now: u64) -> SystemTime {
        let drifted = i128::from(now) * i128::from(self.drift_ppm) / MILLION;
        let since = i128::from(now) + drifted + i128::from(self.offset);
        let length = |nanos: u128| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        match since >= 0 {
            true => self.start + length(since.unsigned_abs()),
            false => self.start - length(since.unsigned_abs()),
        }
    }
}
