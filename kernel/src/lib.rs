//! The real kernel: executes pikake's traps on the system's sockets and clock.
//!
//! # The turn
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────┐
//!        ▼                                                              │
//!   wake queue ──▶ timers ──▶ steps of ready tasks ──▶ driver ──────────┘
//!                  sleeps, then (driver polled)        blocks only if nothing is ready,
//!                  deadlines of scopes                 until the next timer
//! ```
//!
//! Tasks are stepped round-robin, without priorities. A pass makes a few steps, so neither a yielding
//! loop nor two tasks that keep waking each other can hold up sockets or timers. The driver is polled
//! only every so many steps or so much time ([`POLL_EVERY_STEPS`], [`POLL_EVERY`]), so such a pair
//! does not pay a system call a switch. What one task may do in one step is bounded, too ([`ATTEMPTS_PER_STEP`],
//! [`ANSWERS_PER_STEP`]).
#![forbid(unsafe_code)]

mod addresses;
#[cfg_attr(any(not(target_os = "linux"), mio_unsupported_force_poll_poll), path = "no_alarm.rs")]
mod alarm;
mod builder;
mod driver;
mod execute;
mod helpers;
#[cfg(all(test, pikake_shuttle))]
mod helpers_tests;
mod kernel;
mod machine;
mod mio_driver;
mod observe;
mod pick;
mod queues;
mod settings;
mod sockets;
mod steps;
mod tasks;
mod threads;
mod timers;
mod turns;
mod watchdog;

pub use builder::Builder;
pub use driver::{Driver, Event, Job, Life, Token};
pub use helpers::HelperThreads;
pub use kernel::{Kernel, Waiting};
pub use mio_driver::{MioDriver, MioSocket};
pub use observe::Observer;
pub use pick::{Fifo, Pick};
pub use settings::{
    ANSWERS_PER_STEP, ATTEMPTS_PER_STEP, FOREIGN_GRACE, HELPER_IDLE_EXIT, HELPER_THREADS,
    LONG_STEP, POLL_EVERY, POLL_EVERY_STEPS, SHUTDOWN_GRACE, SLOW_CLEANUP,
};
pub use turns::Turn;
