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
//! (1) So many calls in a row have failed. (2) The pause is over: one call is sent, the others are not. (3) The trial failed.
//! (4) The server has answered.

use std::cell::Cell;
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::{deadline_after, now};

/// When a server gets no calls for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakerOptions {
    /// The failures in a row.
    pub(crate) failures: usize,
    pub(crate) pause: Duration,
}

/// What a call says of its server.
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
    open_until: Cell<Option<Deadline>>,
    has_trial: Cell<bool>,
}

impl Breaker {
    pub(crate) fn new(options: Option<BreakerOptions>) -> Self {
        Self {
            options,
            failures: Cell::new(0),
            open_until: Cell::new(None),
            has_trial: Cell::new(false),
        }
    }

    /// Whether a call may begin.
    pub(crate) fn admits(&self) -> bool {
        self.open_until.get().is_none_or(|until| until.is_due(now()) && !self.has_trial.get())
    }

    /// Begins a call that is admitted.
    pub(crate) fn begin(&self) -> Pending<'_> {
        let is_trial = self.open_until.get().is_some();
        self.has_trial.set(self.has_trial.get() || is_trial);
        Pending { breaker: self, is_trial, verdict: Verdict::Unknown }
    }
}

/// A call whose end the breaker gets to know.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    breaker: &'a Breaker,
    is_trial: bool,
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
        if self.is_trial {
            breaker.has_trial.set(false);
        }
        match self.verdict {
            Verdict::Unknown => {}
            Verdict::Answered => {
                breaker.failures.set(0);
                breaker.open_until.set(None);
            }
            Verdict::Failed => {
                breaker.failures.set(breaker.failures.get() + 1);
                let is_closed = breaker.open_until.get().is_none();
                if self.is_trial || is_closed && breaker.failures.get() >= options.failures {
                    breaker.open_until.set(Some(deadline_after(options.pause)));
                }
            }
        }
    }
}
