//! Tests of locks, semaphores, events, queues and channels.

mod channels;
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
mod shown;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod threads;
