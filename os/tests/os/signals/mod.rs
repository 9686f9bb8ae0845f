//! Tests of signals that interrupt the main task, and of listeners.
//!
//! Handlers belong to the process. Each test that raises a signal here has a signal of its own, and
//! signals that end a process go to a child.

mod interruptions;
mod listeners;
