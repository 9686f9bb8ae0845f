//! What a task may ask of its kernel.
#![doc = include_str!("../TRAPS.md")]

mod blocking;
#[cfg(all(test, pikake_shuttle))]
mod blocking_tests;
mod borrow;
mod bound;
mod calls;
mod cause;
mod cell;
mod contract;
mod flags;
mod home;
mod interrupt;
mod job;
mod local;
mod locals;
mod mark;
mod memory;
mod outside;
mod place_cell;
mod queue;
mod quiet;
mod ready;
mod reply;
mod scope;
mod socket;
mod sub_waits;
mod task;
mod task_ref;
mod threads;
mod trap;
mod waker;

pub use blocking::{Blocking, CancelFlag, blocking, blocking_on, blocking_with};
pub use borrow::borrowing;
pub use bound::Bound;
pub use calls::{
    ElapseTrap, ForeignTrap, FutureWait, Park, SleepTrap, YieldTrap, check_interrupt, clock_rate,
    deadline_after, elapse, elapse_until, elapsed_since, foreign_wait_at, future_wait,
    future_wait_at, ignore_after, linger, lookup, lookup_at, now, park, park_at, pending_interrupt,
    read_wait, shield, shown_at, sleep, sleep_until, socket_wait, timed, timeout_after, timeout_at,
    write_wait, yield_now,
};
pub use cell::{Exit, TaskId};
pub use contract::{
    Begun, Collected, Disarmed, Outcome, Outside, TrapHandler, TrapKind, Until, Wait, WaitEvent,
    WaitKey, Waiter,
};
pub use home::{Call, Home, KernelEnded, KernelHandle, KernelId, LocalHome, Message};
pub use interrupt::{Interrupted, Panic, ScopeId, TaskError, TimedOut};
pub use job::{Job, JobLine};
pub use local::{Graces, Local, Quotas, door};
pub use locals::LocalKey;
pub use mark::TaskMark;
pub use outside::{random, start_thread, system, system_random, system_thread, wall_time};
pub use place_cell::PlaceCell;
pub use queue::WaitQueue;
pub use quiet::quietly;
pub use ready::ReadyList;
pub use reply::{Replied, Reply};
pub use scope::{IgnoreAfter, Shield, Timed, TimedFuture, Timeout};
pub use socket::{
    Address, Addresses, AsAttempt, Attempt, Buffers, Closed, Direction, Done, IsReady, OpenSocket,
    Opened, ResourceBusy, SocketId, SocketOption, SocketTrap, attempt, first_buffers, open_socket,
};
pub use task::{Builder, CancelOnDrop, Current, Task, current, spawn, try_current};
pub use task_ref::TaskRef;
pub use trap::{KernelTrap, Trap, kernel_trap, kernel_trap_at};
pub use waker::RemoteWake;
