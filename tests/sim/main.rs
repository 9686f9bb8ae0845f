//! Simulated worlds: unchanged programs, their network, faults, planted bugs, and what is told when
//! they fail.

#![forbid(unsafe_code)]

#[path = "../child/mod.rs"]
mod child;
#[path = "../scratch/mod.rs"]
mod scratch;

// `server` names `crate::guest`, as in the example itself.
#[path = "../../examples/chat/guest.rs"]
mod guest;
#[path = "../../examples/chat/server.rs"]
mod server;

mod bugs;
mod chance;
mod environment;
mod eyeballs;
mod failures;
mod faults;
mod here;
mod minimised;
mod programs;
mod sockets;
mod worlds;
