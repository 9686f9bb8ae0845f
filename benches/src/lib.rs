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
#[cfg(feature = "compio")]
mod on_compio;
#[cfg(feature = "glommio")]
mod on_glommio;
#[cfg(feature = "monoio")]
mod on_monoio;
pub mod on_pikake;
#[cfg(feature = "smol")]
mod on_smol;
#[cfg(feature = "tokio")]
pub mod on_tokio;
pub mod results;
pub mod runtime;
mod scheduling;
pub mod servers;
mod system;
mod threads;
mod timers;
pub mod workloads;
