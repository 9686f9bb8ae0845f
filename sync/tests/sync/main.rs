//! Tests of locks, semaphores, events, queues and channels.

#![expect(
    clippy::duplicate_mod,
    reason = "the files `*_cases.rs` test the types of one kernel and the shared ones"
)]

mod channels;
mod figures;
mod handed_over;
mod interrupted;
mod kernels;
mod leaving;
mod models;
mod notify;
mod order;
mod panics;
mod queue_model;
mod recovered;
mod shared;
mod shown;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod threads;
