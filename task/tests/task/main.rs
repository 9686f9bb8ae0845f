//! Tests of task groups with and without a limit, `select!`, intervals, task locals, threads that
//! await, and proxies of objects in threads.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod bounded;
mod errors;
mod group;
mod intervals;
mod locals;
mod proxy;
mod select;
mod streams;
mod threads;
