//! The tables of a kernel: its tasks, and the waiters of their waits, each in the table of the
//! thing that ends the wait.
//!
//! A table runs no user code. The drop of a waiter or a socket may run some, so a method that
//! removes a waiter or socket returns it. The machine drops the waiter or socket when no table is
//! borrowed.

mod queues;
mod sockets;
mod tasks;
mod timers;

pub(crate) use queues::{Queues, Wanted};
pub(crate) use sockets::{Attempted, Sockets};
pub(crate) use tasks::Tasks;
pub(crate) use timers::Timers;
