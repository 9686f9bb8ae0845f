//! The places where tasks wait, one file each: park, collect and leave. `machine/contract.rs` calls
//! them.
//!
//! A place keeps its waiters in a table, and runs no user code. The drop of a waiter or a socket
//! may run some, so a method that removes a waiter or socket returns it. The machine drops the
//! waiter or socket when no table is borrowed.

#![deny(clippy::wildcard_enum_match_arm)]

mod deadlines;
pub(crate) mod ends;
mod moments;
mod queues;
mod sockets;

use pikake_time::{Deadline, Ticks};

pub(crate) use deadlines::Deadlines;
pub(crate) use moments::Moments;
pub(crate) use queues::Queues;
pub(crate) use sockets::{Attempted, Sockets};

/// The places that the clock ends, in one cell.
///
/// A turn ends all waits that are due before it passes a deadline, so no timeout interrupts a wait
/// that is satisfied.
#[derive(Default)]
pub(crate) struct Timers {
    pub(crate) moments: Moments,
    pub(crate) deadlines: Deadlines,
}

impl Timers {
    /// Whether a wait or a deadline may be due.
    #[inline]
    pub(crate) fn may_be_due(&self, now: Ticks) -> bool {
        self.moments.may_be_due(now) || self.deadlines.may_be_due(now)
    }

    /// The moment of the next timer.
    pub(crate) fn next(&mut self) -> Option<Deadline> {
        let next = [self.moments.next(), self.deadlines.next()];
        next.into_iter().flatten().min().map(Deadline::at)
    }

    /// The number of waits and deadlines that are not due yet.
    pub(crate) fn len(&self) -> usize {
        self.moments.len() + self.deadlines.len()
    }
}
