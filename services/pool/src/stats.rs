//! The figures of a pool.

use std::time::Duration;

/// What a pool has, and what it has done: a reading of [`Pool::stats`](crate::Pool::stats).
///
/// The first fields are numbers of this moment (gauges); the others only grow (counters).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The greatest number of objects.
    pub limit: usize,
    /// All objects, also those that are being made and destroyed.
    pub total: usize,
    /// The objects that are ready.
    pub idle: usize,
    /// The objects in use.
    pub leased: usize,
    /// The objects that are being made.
    pub creating: usize,
    /// The objects that are being verified.
    pub verifying: usize,
    /// The objects that came back and are being cleaned.
    pub cleaning: usize,
    /// The objects that are being destroyed.
    pub destroying: usize,
    /// The callers that wait.
    pub waiting: usize,

    /// How many objects were lent.
    pub lent: u64,
    /// How many of these callers had to wait.
    pub waited: u64,
    /// How long they waited, together.
    pub waited_for: Duration,
    /// How many callers gave up before they got an object: they were interrupted or dropped, or
    /// waited too long.
    pub gave_up: u64,
    /// How many objects were made.
    pub created: u64,
    /// How many objects were added from outside.
    pub added: u64,
    /// How many creations failed.
    pub create_failures: u64,
    /// How many verifications failed.
    pub verify_failures: u64,
    /// How many cleanings failed.
    pub clean_failures: u64,
    /// How many objects were found dead without a verification.
    pub dead: u64,
    /// How many objects were destroyed.
    pub destroyed: u64,
    /// How many objects their holders detached.
    pub detached: u64,
}
