//! Simulated worlds: unchanged programs, their network, faults, and what is told when they fail.

#![forbid(unsafe_code)]

#[path = "../child/mod.rs"]
mod child;
#[path = "../scratch/mod.rs"]
mod scratch;

mod chance;
mod eyeballs;
mod failures;
mod faults;
mod here;
mod minimised;
mod sockets;
mod worlds;
