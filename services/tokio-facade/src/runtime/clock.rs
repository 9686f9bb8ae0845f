//! The clock of a runtime, which a test may pause.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::{Clock, Deadline, Rate, SystemClock, Ticks};

/// The system's clock, until it is paused. A paused clock jumps to the next deadline whenever the
/// kernel is idle.
#[derive(Clone, Debug)]
pub(crate) struct PausableClock(Rc<State>);

#[derive(Debug)]
struct State {
    system: SystemClock,
    /// How far this clock is behind the system's, by its pauses; ahead counts as a wrapped number.
    behind: Cell<u64>,
    paused_at: Cell<Option<Ticks>>,
    /// Calls on helper threads, which a paused clock waits for.
    calls: Cell<usize>,
}

impl PausableClock {
    pub(crate) fn new(starts_paused: bool) -> Self {
        // A test with virtual time wants whole nanoseconds; others the cheaper reading.
        let system = if starts_paused { SystemClock::monotonic() } else { SystemClock::new() };
        let paused_at = Cell::new(starts_paused.then(|| system.now()));
        Self(Rc::new(State { system, behind: Cell::new(0), paused_at, calls: Cell::new(0) }))
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.0.paused_at.get().is_some()
    }

    pub(crate) fn pause(&self) {
        self.0.paused_at.set(Some(self.now()));
    }

    pub(crate) fn resume(&self) {
        if let Some(at) = self.0.paused_at.take() {
            self.0.behind.set(self.0.system.now().get().wrapping_sub(at.get()));
        }
    }

    /// Advances a paused clock.
    pub(crate) fn advance(&self, length: Duration) {
        if let Some(at) = self.0.paused_at.get() {
            self.0.paused_at.set(Some(at.saturating_add(self.rate().ticks_ceil(length))));
        }
    }

    /// A paused clock does not jump until the guard is dropped.
    pub(crate) fn hold(&self) -> Hold {
        self.0.calls.set(self.0.calls.get() + 1);
        Hold(self.clone())
    }
}

/// Keeps a paused clock from jumping.
pub(crate) struct Hold(PausableClock);

impl Drop for Hold {
    fn drop(&mut self) {
        let calls = &self.0 .0.calls;
        calls.set(calls.get() - 1);
    }
}

impl Clock for PausableClock {
    #[inline]
    fn now(&self) -> Ticks {
        match self.0.paused_at.get() {
            Some(at) => at,
            None => Ticks::new(self.0.system.now().get().wrapping_sub(self.0.behind.get())),
        }
    }

    #[inline]
    fn rate(&self) -> Rate {
        self.0.system.rate()
    }

    fn idle(&self, next: Option<Deadline>) -> Option<Duration> {
        let next = next.filter(|next| !next.is_never());
        if !self.is_paused() {
            // Refines the rate.
            self.0.system.idle(None);
            let now = self.now();
            return next.map(|next| self.rate().duration_ceil(next.ticks().since(now)));
        }
        let next = next?;
        if next.is_due(self.now()) {
            return Some(Duration::ZERO);
        }
        if self.0.calls.get() > 0 {
            return None;
        }
        self.0.paused_at.set(Some(next.ticks()));
        Some(Duration::ZERO)
    }
}
