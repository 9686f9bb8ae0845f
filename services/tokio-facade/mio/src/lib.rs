//! The part of mio that tokio's files use, on the sockets of pikake's kernel.
//!
//! A socket makes its attempts through the kernel, so the simulator has it, too. Before it is
//! registered it is a descriptor, which works on any thread.

mod interest;
mod owned;
mod registry;
mod socket;
mod stand_in;

pub mod net;
pub mod unix;

pub use interest::{Interest, Token};
pub use owned::ElsewhereUsed;
pub use registry::{Registered, Registry};

/// Sources of events, and the events, which the kernel has for itself.
pub mod event {
    pub use crate::interest::Event;
    pub use crate::registry::Source;
}
