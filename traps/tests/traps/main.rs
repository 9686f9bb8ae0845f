//! Tests of the traps: the task cell, values that are bound to a thread, waits inside combinators,
//! and kernels in safe code that break their contract.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod bound;
mod cell;
mod combinators;
mod handlers;
