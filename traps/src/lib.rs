//! Traps: the requests of a task to its kernel. For authors of primitives, libraries and kernels.
//!
//! | you write | use |
//! | --- | --- |
//! | a lock, a channel or another primitive | [`WaitQueue`], [`park`], [`take`] |
//! | a new kind of socket | [`open_socket`], [`attempt`], [`socket_wait`] |
//! | a wait for another thread | [`future_wait`], or [`read_wait`] on an adopted descriptor |
//! | an adapter for a trait that requires `Send` | [`Bound`] |
//! | an adapter for a trait whose waits cannot fail | [`elapse`] |
//! | counts of what a service does | [`figures`] |
//! | figures of a lock of your own | [`locks`] |
//! | peers of connections in listings | [`details`] |
//! | marks of unusual moments in a recording | [`trigger`] |
//! | a kernel | [`TrapHandler`], [`Local`] |
//!
#![doc = include_str!("../TRAPS.md")]

mod attempts;
mod blocking_call;
#[cfg(all(test, pikake_shuttle))]
mod blocking_tests;
mod borrow;
mod bound;
mod catch;
mod cause;
mod cell;
mod clock;
pub mod details;
pub mod door;
pub mod figures;
mod handle;
mod home;
#[cfg(all(test, pikake_shuttle))]
mod home_tests;
mod in_kernel;
pub mod inspect;
mod inspect_trait;
mod instant;
mod interrupt;
mod kind;
mod listing;
mod local;
pub mod locks;
mod long_steps;
mod mark;
mod memory;
mod names;
mod offer;
mod on_kernels;
mod outside;
mod panic_place;
mod peers;
mod place_cell;
mod queue;
mod remote;
mod reply;
mod scope;
mod seen;
mod socket;
mod spare;
mod step;
mod sub_waits;
mod swallowed;
mod task;
mod threads;
mod trap;
mod traps;
pub mod trigger;
mod wait;
mod waker;
mod wakers;

pub use attempts::{attempt, open_socket};
pub use blocking_call::{BlockingCall, CallQueue};
pub use borrow::borrowing;
pub use bound::Bound;
pub use catch::catch_and_log;
pub use cause::caught::swallowed;
pub use cell::flags::Exit;
pub use cell::locals::LocalKey;
pub use cell::ready::ReadyList;
pub use cell::reference::TaskRef;
pub use clock::{
    clock_rate, deadline_after, elapsed_since, now, with_timer_slack, yield_thread_before_sleep,
};
pub use handle::{KernelEnded, KernelHandle};
pub use home::{Call, Home, LocalHome, Message, RemoteWake};
pub use in_kernel::{InKernel, in_kernel};
pub use instant::Instant;
pub use interrupt::{Interrupted, Panic, ScopeId, TaskError, TimedOut};
pub use kind::{TrapKind, TrapName};
pub use local::{Graces, Local, Outside, Start, TrapHandler};
pub use long_steps::{LongStep, LongStepStage, LongStepWatcher, show_long_step, watch_long_steps};
pub use mark::TaskMark;
pub use names::{KernelId, TaskId, WaitKey};
pub use offer::{Claim, Taken, should_offer, spawn_anywhere};
pub use on_kernels::on_kernels;
pub use outside::{
    is_closing, random, start_thread, system, system_random, system_thread, wall_time,
};
pub use panic_place::note_panic_places;
pub use peers::{LATE, Peers};
pub use place_cell::PlaceCell;
pub use queue::{WaitQueue, WaiterList};
pub use reply::{Replied, Reply};
pub use scope::calls::{
    check_interrupt, ignore_after, nearest_deadline, pending_interrupt, shield, timed,
    timeout_after, timeout_at,
};
pub use scope::futures::{IgnoreAfter, Shield, Timed, TimedFuture, Timeout};
pub use seen::{About, SeenScope, SeenThing, SeenWait};
pub use socket::{
    Address, Addresses, Attempt, Buffers, Closed, Direction, OpenSocket, Opened, PeerCredentials,
    ResourceBusy, SocketId, SocketOption, first_buffers,
};
pub use spare::Spare;
pub use step::Quotas;
pub use swallowed::{GoesOn, HowSwallowed, Swallowed};
pub use task::{Builder, CancelOnDrop, Current, Task, current, spawn, try_current};
pub use trap::{
    CarriesInterruption, Entries, Entry, KernelTrap, OneEntry, Progress, Trap, TrapContext,
    kernel_trap, kernel_trap_at,
};
pub use traps::blocking::{Blocking, CancelFlag, blocking, blocking_on, blocking_with};
pub use traps::elapse::{ElapseTrap, elapse, elapse_until};
pub use traps::foreign::{ForeignTrap, FutureWait, future_wait, future_wait_at, shown_at};
pub use traps::lookup::{lookup, lookup_at};
pub use traps::park::{Park, Queued, park, park_at};
pub use traps::sleep::{SleepTrap, sleep, sleep_until};
pub use traps::socket::{AsAttempt, IsReady, SocketTrap, read_wait, socket_wait, write_wait};
pub use traps::take::{TakeTrap, take, take_at};
pub use traps::yield_now::{YieldTrap, yield_now};
pub use wait::{Outcome, Parked, Passed, Until, WaitEvent, WaitPlace, Waiter};
