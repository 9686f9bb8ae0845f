//! Tests of the kernel: runs, turns and shutdown, order, waits, interruptions, its driver, helper
//! threads, wakes from other threads, and user code that panics or breaks its contract.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod closing;
mod driver;
#[cfg(not(mio_unsupported_force_poll_poll))]
mod embedding;
mod free_offers;
mod helpers;
mod inspect;
mod interruption;
mod kernels;
mod late_offers;
mod mended_waits;
mod observed_wakes;
mod offers;
mod order;
mod own_offers;
mod panics;
mod profile;
mod random;
mod random_waits;
mod runs;
mod shutdown;
mod swallowed;
mod wait_graph;
mod waits;
mod wakes;
