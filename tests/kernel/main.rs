//! Kernels as their owners and their tasks see them: runs, turns and ends, order, waits,
//! interruptions, and other people's code that panics or breaks its contract.

#[path = "../child/mod.rs"]
mod child;
#[path = "../support/mod.rs"]
mod support;

mod bound;
mod cell;
mod closing;
mod combinators;
#[cfg(not(mio_unsupported_force_poll_poll))]
mod embedding;
mod handlers;
mod interruption;
mod mended_waits;
mod order;
mod panics;
mod random;
mod random_waits;
mod runs;
mod shutdown;
mod waits;
