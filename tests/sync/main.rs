//! Locks, semaphores, events, queues and channels.

#[path = "../child/mod.rs"]
mod child;

mod channels;
mod handed_over;
#[path = "../injection/insist.rs"]
#[expect(dead_code, reason = "the helpers for sockets and threads are not needed here")]
mod insist;
mod interrupted;
mod kernels;
mod leaving;
mod models;
mod order;
mod panics;
mod queue_model;
mod recovered;
mod shown;
#[path = "../support/mod.rs"]
mod support;
mod threads;
