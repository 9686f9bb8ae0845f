//! Triggers: moments at which something unusual happens, for a recording of the process.
//!
//! A service calls [`fire`] or [`fire_if_slow`]. While nobody records the process, such a call
//! costs one load of an atomic variable. A recording
//! (`pikake::console::record`) notes the trigger with its reason, and a snapshot of the process.
//!
//! # Examples
//!
//! ```
//! use pikake::traps::trigger::{Kind, fire_if_slow};
//! use std::time::Instant;
//!
//! let began = Instant::now();
//! // A request is handled.
//! fire_if_slow(Kind::SlowRequest, began.elapsed(), || "GET /orders".to_owned());
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::figures::measure_times;

/// The number of triggers that wait for the recorder. Further ones are counted only.
const WAITING: usize = 64;

/// No time is as long: nobody records the process.
const NEVER: u64 = u64::MAX;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A task is in one step for long.
    LongStep,
    /// A timer fired late.
    LateTimer,
    /// A request took long.
    SlowRequest,
    /// A job took long.
    SlowJob,
    /// A check of the process' health failed.
    FailedCheck,
    /// A shutdown takes longer than its grace.
    LateShutdown,
}

impl Kind {
    /// The kind in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::LongStep => "long step",
            Self::LateTimer => "late timer",
            Self::SlowRequest => "slow request",
            Self::SlowJob => "slow job",
            Self::FailedCheck => "failed health check",
            Self::LateShutdown => "late shutdown",
        }
    }
}

/// Whether somebody records the process.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The nanoseconds from which on a request or a job is slow.
static SLOW: AtomicU64 = AtomicU64::new(NEVER);

static FIRED: Mutex<Fired> = Mutex::new(Fired { waiting: VecDeque::new(), more: 0, waker: None });

/// The triggers that nobody has taken.
struct Fired {
    waiting: VecDeque<(Kind, String)>,
    more: u64,
    waker: Option<Waker>,
}

fn fired() -> MutexGuard<'static, Fired> {
    // No statement leaves a value that is half changed.
    FIRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the process is recorded, and triggers are noted. Services time for this what they do not
/// time otherwise.
#[inline]
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Fires a trigger, if the process is recorded. `about` says what happened, and to what. From any
/// thread.
#[inline]
pub fn fire(kind: Kind, about: impl FnOnce() -> String) {
    if is_wanted() {
        add(kind, about());
    }
}

/// Fires a trigger, if the process is recorded, and if something took as long as the recording
/// takes for slow: `PIKAKE_RECORD_SLOW`, one second by default. The words of the trigger have the
/// time after those of `about`.
#[inline]
pub fn fire_if_slow(kind: Kind, took: Duration, about: impl FnOnce() -> String) {
    if took.as_nanos() >= u128::from(SLOW.load(Ordering::Relaxed)) {
        add(kind, format!("{}: {took:.1?}", about()));
    }
}

#[cold]
fn add(kind: Kind, about: String) {
    let waker = {
        let mut fired = fired();
        match fired.waiting.len() {
            WAITING.. => fired.more += 1,
            _ => fired.waiting.push_back((kind, about)),
        }
        fired.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The triggers of the process, for its recorder. A process has one at a time. The drop ends them.
#[derive(Debug)]
pub struct Triggers(());

impl Triggers {
    /// Has triggers collected from now on, and [times measured](crate::figures::measure_times).
    /// Requests and jobs are slow from `slow` on.
    pub fn begin(slow: Duration) -> Self {
        let slow = u64::try_from(slow.as_nanos()).unwrap_or(NEVER);
        SLOW.store(slow, Ordering::Relaxed);
        IS_WANTED.store(true, Ordering::Relaxed);
        measure_times();
        Self(())
    }

    /// Takes the triggers, the oldest first, and the number of those that were too many.
    pub fn take(&self) -> (Vec<(Kind, String)>, u64) {
        let mut fired = fired();
        (fired.waiting.drain(..).collect(), std::mem::take(&mut fired.more))
    }

    /// Whether there are triggers. If not, the next one calls the waker.
    pub fn poll(&self, waker: &Waker) -> bool {
        let mut fired = fired();
        let is_any = !fired.waiting.is_empty();
        if !is_any {
            fired.waker = Some(waker.clone());
        }
        is_any
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        IS_WANTED.store(false, Ordering::Relaxed);
        SLOW.store(NEVER, Ordering::Relaxed);
        let mut fired = fired();
        *fired = Fired { waiting: VecDeque::new(), more: 0, waker: None };
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
