//! Tests of simulated worlds: unchanged programs, their network, faults, planted bugs, and failure
//! reports.

#![forbid(unsafe_code)]

#[path = "../../../tests/support/mod.rs"]
mod support;

// `server` names `crate::guest`, as in the example itself.
#[path = "../../../examples/chat/guest.rs"]
mod guest;
#[path = "../../../examples/chat/server.rs"]
mod server;

mod bugs;
mod chance;
mod environment;
mod eyeballs;
mod failures;
mod faults;
mod here;
mod kernels;
mod minimised;
mod programs;
mod sockets;
mod swallowed;
mod worlds;
