//! An interruption that a task has swallowed: it caught the error, dropped it, and goes on.
//!
//! `cause/caught.rs` decides that. These are the values that tell of it.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::kind::TrapKind;

/// What a task did since it caught the cancel that asked it to end. See
/// [`TaskRef::goes_on`](crate::TaskRef::goes_on).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GoesOn {
    /// The time since the task was asked to end.
    pub asked: Duration,
    /// The place of the last await that returned the interruption.
    pub caught_at: &'static Location<'static>,
    /// The number of waits that the task has begun since, outside of shields.
    pub waits: u64,
}

/// An interruption that a wait has returned to a program which then goes on, as a loop does that
/// logs errors and continues.
///
/// Its text names the task and both places, and the way out. The simulator,
/// [`interrupt_everywhere`](https://docs.rs/pikake/latest/pikake/testing/index.html) and
/// `#[pikake::test]` fail with it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Swallowed {
    /// The task, and the place where it was spawned.
    pub task: String,
    /// The text of the interruption.
    pub interruption: String,
    /// The place of the last await that returned the interruption.
    pub caught_at: &'static Location<'static>,
    /// The number of waits that the task has begun since, outside of shields.
    pub waits: u64,
    /// The wait by which the task goes on.
    pub trap: TrapKind,
    /// The place of its await.
    pub awaited_at: &'static Location<'static>,
    /// Why this wait is not cleanup.
    pub how: HowSwallowed,
    /// The time since a wait has returned the interruption.
    pub after: Duration,
}

/// Why a wait after an interruption is not cleanup. Each is about waits outside of shields, before
/// the owner of the interruption has ended: the task, or the timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HowSwallowed {
    /// The program has dropped the error, and begins a wait again at a place that returned the
    /// interruption.
    WaitsAgain,
    /// The program has dropped the error, and accepts a connection.
    Accepts,
    /// The owner has not ended within the time that a test allows for cleanup.
    GoesOn,
}

impl fmt::Display for Swallowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, interruption, caught_at, waits, trap, awaited_at, how, after } = self;
        write!(
            f,
            "{task} swallowed an interruption ({interruption}). It caught the interruption at \
             {caught_at} and has begun {} since, now `{trap}` at {awaited_at}",
            Waits(*waits)
        )?;
        match how {
            HowSwallowed::WaitsAgain => f.write_str(", where it had caught it")?,
            HowSwallowed::Accepts => f.write_str(", which accepts a connection")?,
            HowSwallowed::GoesOn => write!(f, ", {after:?} later")?,
        }
        f.write_str(": return the error, or put cleanup under a shield")
    }
}

/// A number of waits, in words.
pub(crate) struct Waits(pub(crate) u64);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "wait" } else { "waits" })
    }
}
