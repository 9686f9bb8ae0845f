//! Tests of task groups with and without a limit, task locals, threads that await, and proxies of
//! objects in threads.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod bounded;
mod group;
mod locals;
mod proxy;
mod threads;
