//! A model that predicts the events of a program: a second implementation of the rules of
//! interruption.
//!
//! The model is an executor on virtual time that shares no code with pikake. Its futures behave
//! like pikake's futures of the same names, and are meant to be obviously right, and for nothing
//! else.
//!
//! | file | holds |
//! | --- | --- |
//! | `rules.rs` | which poll returns which cause, which wakers are called, which bodies are dropped |
//! | `machine.rs` | turns, steps, and the end of a run |
//! | `waits.rs`, `scopes.rs`, `tasks.rs` | the futures and calls of a program |

mod machine;
mod rules;
mod scopes;
mod tasks;
mod waits;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use machine::{now, run, stall};
pub(crate) use scopes::{shield, timed, timeout_after};
pub(crate) use tasks::{Current, Task, TaskError, current, named, spawn, spawn_eagerly, swallowed};
pub(crate) use waits::{
    WaitQueue, check_interrupt, elapse, future_wait, park, pending_interrupt, sleep, yield_now,
};

use crate::runner::ms;
use machine::next_number;

/// The error of a wait that was interrupted.
#[derive(Clone, PartialEq)]
pub(crate) struct Interrupted {
    why: Why,
    /// Counts the clones.
    held: Rc<()>,
}

#[derive(Clone, PartialEq)]
enum Why {
    /// By the deadline of this scope.
    TimedOut(u64),
    Cancelled(Option<String>),
}

impl Interrupted {
    fn timed_out(scope: u64) -> Self {
        Self { why: Why::TimedOut(scope), held: Rc::default() }
    }

    fn cancelled(reason: Option<&str>) -> Self {
        Self { why: Why::Cancelled(reason.map(str::to_owned)), held: Rc::default() }
    }

    pub(crate) fn is_cancel(&self) -> bool {
        matches!(self.why, Why::Cancelled(_))
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self.why, Why::TimedOut(_))
    }

    /// The scope whose deadline interrupted the wait.
    pub(crate) fn owner(&self) -> Option<u64> {
        match self.why {
            Why::TimedOut(scope) => Some(scope),
            Why::Cancelled(_) => None,
        }
    }
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupted").field(&format_args!("{self}")).finish()
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::TimedOut(_) => f.write_str("a deadline passed"),
            Why::Cancelled(None) => f.write_str("cancelled"),
            Why::Cancelled(Some(reason)) => write!(f, "cancelled: {reason}"),
        }
    }
}

/// The deadline of [`timeout_after`] passed.
#[derive(PartialEq, Debug)]
pub(crate) struct TimedOut;

/// One unit of the model's time is a nanosecond.
fn nanos(length: Duration) -> u64 {
    length.as_nanos().try_into().unwrap_or(u64::MAX)
}
