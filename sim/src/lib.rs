//! A second kernel for unchanged programs: one seed, virtual time, a network that fails.
#![forbid(unsafe_code)]

mod bytes;
mod checks;
mod clock;
mod coverage;
mod datagram;
mod driver;
mod fault;
mod faults;
mod host;
mod latency;
mod listener;
mod log;
mod net;
mod pick;
mod plan;
mod recorder;
mod report;
mod resend;
mod rng;
mod runs;
mod sim;
mod socket;
mod stream;
mod trace;
mod unix;
mod wire;
mod world;

pub use clock::SimClock;
#[doc(hidden)]
pub use coverage::note as note_coverage;
pub use coverage::{Coverage, Seen};
pub use driver::{SimDriver, SimSocket};
pub use fault::{Between, Fault, LinkChange, TimedFault};
pub use host::Outcome;
pub use latency::{Latency, ParseError};
pub use net::Network;
pub use pick::{Schedule, SimPick};
pub use plan::{FaultMix, FaultPlan};
pub use report::{Cause, Failure, Report};
pub use rng::Rng;
pub use runs::{Runs, Summary, runs};
pub use sim::Sim;
pub use wire::Link;
