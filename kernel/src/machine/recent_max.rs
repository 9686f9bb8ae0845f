//! The largest of the values of the last time.

use std::cell::Cell;

use pikake_time::Ticks;

/// The largest of the values that were noted in the last window of time, or in up to two.
///
/// A value is kept for a window at least, so that a reader who comes once in a window misses none.
#[derive(Default)]
pub(super) struct RecentMax {
    /// The length of a window in ticks.
    window: u64,
    /// The end of the current window.
    ends: Cell<Ticks>,
    current: Cell<u64>,
    /// The largest value of the window before.
    before: Cell<u64>,
}

impl RecentMax {
    pub(super) fn new(window: u64) -> Self {
        Self { window, ..Self::default() }
    }

    pub(super) fn note(&self, now: Ticks, value: u64) {
        self.pass_to(now);
        self.current.set(self.current.get().max(value));
    }

    pub(super) fn get(&self, now: Ticks) -> u64 {
        self.pass_to(now);
        self.current.get().max(self.before.get())
    }

    /// Begins another window if the current one is over.
    #[inline]
    fn pass_to(&self, now: Ticks) {
        if now < self.ends.get() {
            return;
        }
        let is_next = now.since(self.ends.get()) < self.window;
        let last = self.current.take();
        self.before.set(if is_next { last } else { 0 });
        self.ends.set(now.saturating_add(self.window));
    }
}
