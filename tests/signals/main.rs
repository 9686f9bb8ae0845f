//! Signals: those that interrupt the main task, and those that a program listens to.
//!
//! A signal is the process's, so no other test is in this binary.

#![cfg(feature = "signals")]

mod interruptions;
mod listeners;
