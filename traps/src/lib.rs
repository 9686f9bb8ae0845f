//! What a task may ask of its kernel.
#![doc = include_str!("../TRAPS.md")]

mod blocking;
#[cfg(all(test, pikake_shuttle))]
mod blocking_tests;
mod borrow;
mod bound;
mod calls;
mod cell;
pub mod door;
mod foreign;
mod handler;
mod home;
mod interrupt;
mod job;
mod ledger;
mod locals;
mod mark;
mod memory;
mod outside;
mod queue;
mod quiet;
mod reply;
mod scope;
mod socket;
mod task;
mod task_ref;
mod threads;
mod trap;
mod waker;
mod yielding;

pub use blocking::{Blocking, CancelFlag, blocking, blocking_on, blocking_with};
pub use borrow::borrowing;
pub use bound::{Bound, Package};
pub use calls::{
    ElapseTrap, SleepTrap, clock_rate, deadline_after, elapse, elapse_until, elapsed_since, linger,
    now, sleep, sleep_until,
};
pub use cell::{Exit, TaskId};
pub use foreign::{
    Addresses, ForeignTrap, FutureWait, future_wait, future_wait_at, lookup, lookup_at,
};
pub use handler::{
    Executed, Polled, RecordKey, Refusal, ScopeEnd, ScopeKind, TrapHandler, TrapKind, Until, Wait,
    outside_a_task,
};
pub use home::{Home, KernelEnded, KernelHandle, KernelId, LocalHome, Message, RemoteSpawn};
pub use interrupt::{Interrupted, Panic, ScopeId, TaskError, TimedOut};
pub use job::{Job, JobLine};
pub use ledger::{Flag, Ledger, Light};
pub use locals::LocalKey;
pub use mark::TaskMark;
pub use outside::{random, start_thread, system, system_random, system_thread, wall_time};
pub use queue::{Park, WaitQueue, park, park_at};
pub use quiet::quietly;
pub use reply::{Replied, Reply};
pub use scope::{
    IgnoreAfter, Shield, Timed, TimedFuture, Timeout, check_interrupt, ignore_after,
    pending_interrupt, shield, timed, timeout_after, timeout_at,
};
pub use socket::{
    Address, Closed, Direction, OpenSocket, ReadyTrap, ResourceBusy, SocketId, SocketOption,
    Sockets, WhenReady, read_wait, sockets, sockets_of, when_ready, when_ready_at, write_wait,
};
pub use task::{Builder, CancelOnDrop, Current, Task, current, spawn, try_current};
pub use task_ref::TaskRef;
pub use trap::{KernelTrap, Trap, kernel_trap, kernel_trap_at};
pub use waker::RemoteWake;
pub use yielding::{LightYield, YieldNow, YieldTrap, yield_now};
