//! Locks, events, notifications, queues and channels between threads and kernels: a task awaits, a
//! thread blocks.
//!
//! The rest of the crate belongs to one kernel and costs no atomic operation. These types are
//! `Send` and `Sync`, are meant for an [`Arc`](std::sync::Arc), and hold a lock of the standard
//! library for a few instructions. Each wait has two forms: `get().await` in a task, which suspends
//! that task, and `blocking_get()` elsewhere, which blocks the thread and panics inside a kernel.
//! Waiters are served in order, tasks and threads alike. An item or lock that was handed to a
//! waiter which is interrupted or dropped before its next poll goes to the next waiter.

mod block;
pub mod broadcast;
mod channel;
mod event;
mod items;
mod mutex;
mod notify;
mod queue;
#[cfg(all(test, pikake_shuttle))]
mod tests;
mod wait;
mod waiters;
pub mod watch;

pub use channel::{Receiver, RecvStream, Sender, UnboundedSender, channel, unbounded_channel};
pub use event::Event;
pub use mutex::{Mutex, MutexGuard};
pub use notify::Notify;
pub use queue::Queue;
