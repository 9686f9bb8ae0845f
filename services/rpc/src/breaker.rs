//! Whether calls may go to a server that has failed repeatedly.
//!
//! ```text
//!            (1)          (2)
//!   closed ────▶ open ────────▶ trial
//!     ▲           ▲              │ │
//!     │           └──────(3)─────┘ │
//!     └──────────────(4)───────────┘
//! ```
//!
//! (1) So many calls in a row have failed. (2) The pause is over: one call is sent, and no other
//! one for another pause. (3) The trial failed, or has lasted for the pause: another one may begin.
//! (4) The server has answered.

use std::cell::Cell;
use std::time::Duration;

use pikake_time::{Deadline, Ticks};
use pikake_traps::{deadline_after, now};

/// When a server gets no calls for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakerOptions {
    /// The failures in a row.
    pub(crate) failures: usize,
    pub(crate) pause: Duration,
}

/// The state of a server, by the end of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Answered,
    Failed,
    /// Nothing: the caller gave up.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    /// Without options, all calls are sent.
    options: Option<BreakerOptions>,
    failures: Cell<usize>,
    /// No call begins before the moment. The next one is a trial, which moves it.
    open_until: Cell<Option<Deadline>>,
}

impl Breaker {
    pub(crate) fn new(options: Option<BreakerOptions>) -> Self {
        Self { options, failures: Cell::new(0), open_until: Cell::new(None) }
    }

    /// Whether a call may begin.
    pub(crate) fn admits(&self) -> bool {
        self.open_until.get().is_none_or(|until| until.is_due(now()))
    }

    /// Begins a call that is admitted.
    pub(crate) fn begin(&self) -> Pending<'_> {
        let pause = self.options.filter(|_| self.open_until.get().is_some());
        let trial_until = pause.map(|options| deadline_after(options.pause));
        if trial_until.is_some() {
            self.open_until.set(trial_until);
        }
        Pending { breaker: self, trial_until, verdict: Verdict::Unknown }
    }
}

/// A call whose end the breaker gets to know.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    breaker: &'a Breaker,
    /// Until when a trial keeps other calls away.
    trial_until: Option<Deadline>,
    verdict: Verdict,
}

impl Pending<'_> {
    pub(crate) fn end(mut self, verdict: Verdict) {
        self.verdict = verdict;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let breaker = self.breaker;
        let Some(options) = breaker.options else { return };
        let (is_trial, open_until) = (self.trial_until.is_some(), breaker.open_until.get());
        match self.verdict {
            // Another trial may begin at once, unless one has.
            Verdict::Unknown if is_trial && open_until == self.trial_until => {
                breaker.open_until.set(Some(Deadline::at(Ticks::ZERO)));
            }
            Verdict::Unknown => {}
            Verdict::Answered => {
                breaker.failures.set(0);
                breaker.open_until.set(None);
            }
            Verdict::Failed => {
                breaker.failures.set(breaker.failures.get() + 1);
                let is_closed = open_until.is_none();
                if is_trial && !is_closed || is_closed && breaker.failures.get() >= options.failures
                {
                    breaker.open_until.set(Some(deadline_after(options.pause)));
                }
            }
        }
    }
}
