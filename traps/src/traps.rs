//! The traps, one file each: how a trap begins, what it collects, what it leaves behind, and what a
//! listing says about it. All kernels share these rules.
//!
//! | call | waits |
//! | --- | --- |
//! | [`sleep`](crate::sleep), [`sleep_until`](crate::sleep_until), [`elapse`](crate::elapse), [`elapse_until`](crate::elapse_until) | for a moment |
//! | [`yield_now`](crate::yield_now) | for the task's next step |
//! | [`park`](crate::park), [`take`](crate::take) | in a queue, for a signal or for permits |
//! | [`read_wait`](crate::read_wait), [`write_wait`](crate::write_wait), [`socket_wait`](crate::socket_wait) | for a socket |
//! | [`future_wait`](crate::future_wait), [`lookup`](crate::lookup), [`blocking`](crate::blocking) | for an event that the kernel does not see |
//! | awaiting a [`Task`](crate::Task) | for its end |

pub(crate) mod blocking;
pub(crate) mod elapse;
pub(crate) mod foreign;
pub(crate) mod join;
pub(crate) mod lookup;
pub(crate) mod park;
pub(crate) mod sleep;
pub(crate) mod socket;
pub(crate) mod take;
pub(crate) mod yield_now;
