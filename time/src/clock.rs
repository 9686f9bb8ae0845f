//! The `Clock` of a kernel, and the clock that a test moves by hand.
//!
//! A kernel needs three things of its clock: a reading, the rate, and the time for which an idle
//! kernel may block before its next deadline. The third makes time replaceable. A real clock
//! answers with the rest of the wait, and the driver blocks for that time. A virtual clock moves
//! itself to the deadline and answers zero, so the same kernel loop runs through hours of timers
//! without waiting.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::{Deadline, Rate, Ticks};

/// A source of ticks.
///
/// An implementation keeps these rules:
///
/// * On one thread readings never go back. Readings of two threads may differ by as much as the
///   processors' counters, so a subtraction must saturate, as [`Ticks::since`] does.
/// * The rate may be corrected while the clock runs, by no more than its error. Readings do not
///   change with it: a deadline stays the same number of ticks.
///
/// A wait is not exact. A deadline is due at the first reading that reaches it, and a reading is
/// rounded down to a whole tick. So a wait may be short by less than one tick and the error of the
/// rate. A wait is late by the time until the next reading.
pub trait Clock {
    /// A fresh reading.
    fn now(&self) -> Ticks;

    /// The ticks of this clock per second, as measured so far.
    fn rate(&self) -> Rate;

    /// The deadline `length` from now, by a fresh reading; [`Deadline::NEVER`] beyond the end of
    /// the clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::time::{Clock, Deadline, ManualClock, Ticks};
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

    /// The time for which the driver may block when the kernel has nothing to do until `next`.
    ///
    /// `next` is `None` without a timer. The answer is `None` if the driver may block without
    /// limit. The answer is rounded up, so that the timer is due after the wait, and is zero when
    /// `next` is due already. A virtual clock may move itself to `next` and answer zero.
    fn idle(&self, next: Option<Deadline>) -> Option<Duration>;
}

/// A clock that a test moves, or that jumps when its kernel is idle.
///
/// The clock starts at [`Ticks::ZERO`], and one tick is one nanosecond. Clones share the time, so a
/// test keeps one and gives the other to the kernel. Clones stay on one thread, like the kernel.
///
/// # Examples
///
/// The time of [`new`](ManualClock::new) changes only by a call:
///
/// ```
/// use pikake::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let deadline = clock.after(Duration::from_secs(1));
/// assert_eq!(clock.idle(Some(deadline)), None, "only the test ends this wait");
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.idle(Some(deadline)), Some(Duration::ZERO));
/// ```
///
/// The time of [`auto`](ManualClock::auto) jumps over every idle time:
///
/// ```
/// use pikake::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::auto();
/// let deadline = clock.after(Duration::from_secs(3_600));
/// assert_eq!(clock.idle(Some(deadline)), Some(Duration::ZERO));
/// assert!(deadline.is_due(clock.now()));
/// ```
#[doc(alias = "advance")]
#[derive(Clone)]
pub struct ManualClock {
    /// The time, shared by all clones.
    now: Rc<Cell<Ticks>>,
    /// Whether `idle` moves the time to the next deadline.
    jumps: bool,
}

impl ManualClock {
    /// A clock whose time changes only by [`advance`](Self::advance) and [`set`](Self::set).
    #[expect(clippy::new_without_default, reason = "there are two kinds of manual clocks")]
    pub fn new() -> ManualClock {
        ManualClock { now: Rc::default(), jumps: false }
    }

    /// A clock that jumps to the next deadline whenever its kernel is idle.
    pub fn auto() -> ManualClock {
        ManualClock { now: Rc::default(), jumps: true }
    }

    /// Advances the time by `length`, at most to [`Ticks::MAX`].
    pub fn advance(&self, length: Duration) {
        let ticks = self.rate().ticks_ceil(length);
        self.now.set(self.now.get().saturating_add(ticks));
    }

    /// Moves the time to `ticks`.
    ///
    /// # Panics
    ///
    /// If `ticks` is earlier than now: a clock does not go back.
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
