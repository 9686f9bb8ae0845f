//! Who tells the time: the `Clock` that a kernel asks, and the one that a test moves by hand.
//!
//! A kernel needs three things of its clock: a reading, the rate, and an answer to "I have nothing
//! to do until then, how long may I block?". The third makes time replaceable. A real clock
//! answers with the rest of the wait, so the driver blocks for it. A virtual clock moves itself to
//! the deadline and answers "not at all", so the same kernel loop runs through hours of timers
//! without waiting for any.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::{Deadline, Rate, Ticks};

/// A source of ticks.
///
/// What an implementation must keep:
///
/// * On one thread readings never go back. Between threads they may differ by as little as the
///   processors' counters do; whoever subtracts readings of two threads must saturate
///   ([`Ticks::since`] does).
/// * The rate may be corrected while the clock runs, by no more than its error. Readings do not
///   change with it: a deadline that was given stays the same number of ticks.
///
/// What is not promised: that a wait is exact. A deadline becomes due with the first reading that
/// reaches it, and a reading is itself cut off to a whole tick, so a wait may be short by less
/// than one tick and by the error of the rate; it is as late as whoever looks is.
pub trait Clock {
    /// A fresh reading.
    fn now(&self) -> Ticks;

    /// How many ticks this clock makes in a second, as far as is known now.
    fn rate(&self) -> Rate;

    /// The deadline `length` from now, by a fresh reading; what lies beyond the clock is
    /// [`Deadline::NEVER`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake_time::{Clock, Deadline, ManualClock, Ticks};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// clock.advance(Duration::from_nanos(5));
    /// assert_eq!(clock.after(Duration::from_nanos(10)), Deadline::at(Ticks::new(15)));
    /// assert_eq!(clock.after(Duration::MAX), Deadline::NEVER);
    /// ```
    #[inline]
    fn after(&self, length: Duration) -> Deadline {
        let ticks = self.rate().ticks_ceil(length);
        Deadline::at(self.now().saturating_add(ticks))
    }

    /// How long the driver may block when there is nothing to do until `next`.
    ///
    /// `None` for `next` says that there is no timer; `None` as answer says that the driver may
    /// block without limit. The answer is rounded up, so that a driver that blocks for it finds
    /// the timer due; it is zero when `next` is due already. A virtual clock may move itself to
    /// `next` and answer zero.
    fn idle(&self, next: Option<Deadline>) -> Option<Duration>;
}

/// A clock that moves only when it is told to, or only when nobody has anything to do.
///
/// It starts at [`Ticks::ZERO`] and one tick is one nanosecond. Clones share the time, so a test
/// keeps one and gives the other to the kernel; they also stay on one thread, like the kernel.
///
/// # Examples
///
/// Made by [`new`](ManualClock::new), time stays until it is moved:
///
/// ```
/// use pikake_time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let deadline = clock.after(Duration::from_secs(1));
/// assert_eq!(clock.idle(Some(deadline)), None, "only the test ends this wait");
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.idle(Some(deadline)), Some(Duration::ZERO));
/// ```
///
/// Made by [`auto`](ManualClock::auto), it jumps over every idle time:
///
/// ```
/// use pikake_time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::auto();
/// let deadline = clock.after(Duration::from_secs(3_600));
/// assert_eq!(clock.idle(Some(deadline)), Some(Duration::ZERO));
/// assert!(deadline.is_due(clock.now()));
/// ```
#[derive(Clone)]
pub struct ManualClock {
    /// The time, shared by all clones.
    now: Rc<Cell<Ticks>>,
    /// Whether `idle` moves the time to the next deadline.
    jumps: bool,
}

impl ManualClock {
    /// A clock whose time stays until it is moved.
    #[expect(
        clippy::new_without_default,
        reason = "a default would not say which of the two manual clocks it is"
    )]
    pub fn new() -> ManualClock {
        ManualClock { now: Rc::default(), jumps: false }
    }

    /// A clock that jumps to the next deadline whenever its kernel is idle.
    pub fn auto() -> ManualClock {
        ManualClock { now: Rc::default(), jumps: true }
    }

    /// Moves the time on by `length`; it stops at [`Ticks::MAX`].
    pub fn advance(&self, length: Duration) {
        let ticks = self.rate().ticks_ceil(length);
        self.now.set(self.now.get().saturating_add(ticks));
    }

    /// Moves the time to `ticks`.
    ///
    /// # Panics
    ///
    /// If that is earlier than now: a clock does not go back.
    #[track_caller]
    pub fn set(&self, ticks: Ticks) {
        let now = self.now.get();
        assert!(ticks >= now, "a clock does not go back: it shows {now:?}, asked for {ticks:?}");
        self.now.set(ticks);
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Ticks {
        self.now.get()
    }

    #[inline]
    fn rate(&self) -> Rate {
        Rate::NANOS
    }

    fn idle(&self, next: Option<Deadline>) -> Option<Duration> {
        let next = next.filter(|next| !next.is_never())?;
        if next.is_due(self.now()) {
            return Some(Duration::ZERO);
        }
        if !self.jumps {
            return None;
        }
        self.now.set(next.ticks());
        Some(Duration::ZERO)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock")
            .field("now", &self.now.get())
            .field("jumps", &self.jumps)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_time() {
        let clock = ManualClock::new();
        let other = clock.clone();
        clock.advance(Duration::from_micros(3));
        assert_eq!(other.now(), Ticks::new(3_000));
        other.set(Ticks::new(4_000));
        assert_eq!(clock.now(), Ticks::new(4_000));
    }

    #[test]
    fn an_idle_manual_clock_waits_to_be_moved() {
        let clock = ManualClock::new();
        assert_eq!(clock.idle(None), None);
        assert_eq!(clock.idle(Some(Deadline::NEVER)), None);
        assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(1)))), None);
        assert_eq!(clock.now(), Ticks::ZERO);
        assert_eq!(clock.idle(Some(Deadline::at(Ticks::ZERO))), Some(Duration::ZERO));
    }

    #[test]
    fn an_idle_auto_clock_jumps_forward_only() {
        let clock = ManualClock::auto();
        assert_eq!(clock.idle(None), None);
        assert_eq!(clock.idle(Some(Deadline::NEVER)), None);
        assert_eq!(clock.now(), Ticks::ZERO);
        assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(70)))), Some(Duration::ZERO));
        assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(30)))), Some(Duration::ZERO));
        assert_eq!(clock.now(), Ticks::new(70));
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_never() {
        let clock = ManualClock::new();
        clock.set(Ticks::new(u64::MAX - 5));
        assert!(!clock.after(Duration::from_nanos(4)).is_never());
        assert!(clock.after(Duration::from_nanos(5)).is_never());
        assert!(clock.after(Duration::from_nanos(6)).is_never());
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Ticks::MAX);
    }

    #[test]
    #[should_panic(expected = "a clock does not go back")]
    fn a_manual_clock_does_not_go_back() {
        let clock = ManualClock::new();
        clock.set(Ticks::new(2));
        clock.set(Ticks::new(1));
    }
}
