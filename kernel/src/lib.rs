//! The real kernel: executes pikake's traps on the system's sockets and clock.
//!
//! | to | use |
//! | --- | --- |
//! | run a main task, in a fresh kernel | [`run()`], [`try_run`] |
//! | keep a kernel between runs, or set its limits | [`Kernel::new`], [`Builder`] |
//! | step a kernel from another event loop | [`Kernel::turn`], and [`Turn`] |
//! | use more than one processor | [`Kernels`], [`other_kernels`] |
//! | see what tasks do | [`Observer`]; [`Kernel::waits`], [`wait_graph`]; [`inspect`], also from other threads |
//! | replace the system's sockets, time or order of tasks | [`Driver`], [`Clock`](pikake_time::Clock), [`Pick`] |
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
//! The kernel steps tasks round-robin, without priorities. A turn makes a bounded number of steps.
//! So neither a task that yields in a loop, nor two tasks that wake each other in turn, delay
//! sockets and timers.
//!
//! While tasks are ready, the kernel polls the driver after [`POLL_EVERY_STEPS`] steps or
//! [`POLL_EVERY`], whichever comes first. So two tasks that wake each other do not pay a system
//! call for each switch. The kernel also bounds one step of a task ([`ATTEMPTS_PER_STEP`],
//! [`ANSWERS_PER_STEP`]).
#![forbid(unsafe_code)]

mod builder;
mod driver;
mod helpers;
pub mod inspect;
mod kernel;
mod kernels;
mod machine;
mod mio_driver;
mod observe;
mod pick;
mod places;
mod profile;
mod recorder;
mod run;
mod tasks;
mod threads;
pub mod wait_graph;
mod watchdog;

pub use builder::{
    ANSWERS_PER_STEP, ATTEMPTS_PER_STEP, Builder, FOREIGN_GRACE, LONG_STEP, POLL_EVERY,
    POLL_EVERY_STEPS, SHUTDOWN_GRACE, SLOW_CLEANUP, TIMER_SLACK,
};
pub use driver::{BlockingCall, Driver, Event, HelperThreads, Life, Token};
pub use helpers::{HELPER_IDLE_EXIT, HELPER_THREADS};
pub use kernel::Kernel;
pub use kernel::embedding::Turn;
pub use kernels::{Kernels, other_kernels};
#[doc(hidden)]
pub use kernels::{WAITS_FOR_WORK, end_other_kernels, wait_for_work, with_threads};
pub use machine::Waiting;
pub use mio_driver::{MioDriver, MioSocket};
#[doc(hidden)]
pub use observe::Tracer;
pub use observe::{Observer, observe_new_kernels};
pub use pick::{Fifo, Pick};
#[doc(hidden)]
pub use run::{fresh_kernel, run_on};
pub use run::{run, try_run};
