//! Simulated worlds: unchanged programs, their network, faults, and what is told when they fail.

#![forbid(unsafe_code)]

mod worlds;
