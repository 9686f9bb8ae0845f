//! pikake and its peers on the same work. See the README.

mod callgrind;
mod channels;
pub mod figures;
mod floor;
pub mod gate;
mod load;
pub mod measure;
mod meeting;
mod memory;
pub mod results;
pub mod runtime;
mod scheduling;
pub mod servers;
mod system;
mod threads;
mod timers;
pub mod workloads;

pub use runtime::pikake as on_pikake;
#[cfg(feature = "tokio")]
pub use runtime::tokio as on_tokio;
