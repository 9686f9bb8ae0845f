//! Simulated worlds: the same program, deterministic, with faults.
//!
//! A pikake program asks its kernel for everything it waits for. So a kernel that answers from a
//! simulated world runs the unchanged program: time is virtual and jumps over every wait, the
//! network is a model that can fail, and whatever is left to chance is drawn from one *seed*. A run
//! that fails is run again by its seed, to the last event.
//!
//! # The shortest simulation
//!
//! A test in which everything happens on one machine becomes a simulation by its attribute:
//!
//! ```text
//! #[pikake::test]                     #[pikake::sim(seeds = 200)]
//! async fn echo() { … }      ──▶      async fn echo() { … }
//! ```
//!
//! It runs once for each seed, and each time its tasks take turns in another order. Sockets on
//! `127.0.0.1` work as before.
//!
//! # Hosts, and faults between them
//!
//! ```
//! use pikake_sim::{FaultMix, Runs};
//! use pikake_traps::{Interrupted, random, sleep};
//! use std::time::Duration;
//!
//! Runs::new("two_sleepers").seeds(20).run(|sim| {
//!     sim.host("server", || async { while sleep(Duration::from_secs(1)).await.is_ok() {} });
//!     sim.client("client", || async {
//!         sleep(Duration::from_secs(random::range(1..60))).await?;
//!         Ok::<(), Interrupted>(())
//!     });
//!     sim.fault_mix(FaultMix::network(Duration::from_secs(30)));
//! });
//! ```
//!
//! A [`Sim`] is one world: hosts with names, addresses, clocks and programs, a [`Network`], a
//! [`FaultPlan`], and checks. [`Runs`] makes one for each seed. Hosts know each other by name. A future
//! that borrows, or whose output is wanted, is run by [`Sim::run_here`].
//!
//! # When a run fails
//!
//! It fails when a task panics (before its program has ended), a main task returns an error, an [invariant](Sim::invariant) does not
//! hold, all tasks wait for ever, or a limit is reached. Then it is told which seed it was and what
//! to type to see it again, what had been planned to go wrong, the last events, and what each task of
//! each host waits for, and where. Of the planned faults, [`Runs`] finds out which are needed, and tells
//! of the failure with these alone.
//!
//! | variable | means |
//! | --- | --- |
//! | `PIKAKE_SEED=17` | run this seed only |
//! | `PIKAKE_RUNS=10000` | run so many seeds |
//! | `PIKAKE_FAULTS='2s partition a \| b'` | these faults, and none of those that the test plans |
//! | `PIKAKE_TRACE=file` | write every event of the last run into a file |
//!
//! # What is deterministic, and what is not
//!
//! The world is one thread, and everything that pikake answers is the seed's: the order of tasks,
//! time, sockets, names, how long closures in threads take, [`random`](pikake_traps::random), and
//! [`wall_time`](pikake_traps::wall_time). What a program gets elsewhere is not:
//!
//! | leak | what to do |
//! | --- | --- |
//! | the order of a `HashMap` or `HashSet`, which differs in each process | a `BTreeMap`, or a hasher without a random state, where the order matters |
//! | `Instant::now`, `SystemTime::now` | [`now`](pikake_traps::now) and [`wall_time`](pikake_traps::wall_time) |
//! | `rand::rng()`, `getrandom`, and crates that call them | [`random`](pikake_traps::random), or a generator seeded from it |
//! | threads of one's own, other runtimes | closures on helper threads (they are run inline); nothing else takes part |
//! | files, processes, signals, descriptors from outside | nothing: they are the real ones, and descriptors are refused |
//! | statics and thread-locals, which live on from run to run | keep state in the program's future |
//! | addresses of memory, as in `{:p}` | do not decide by them |
//!
//! [`Runs::check_determinism`] runs each seed twice and names the first event that differs. A seed
//! means the same for the same build of the program; a change of the program makes it mean another
//! run.
//!
//! A closure on a helper thread is run outside of every kernel when its virtual time is over. One
//! that loops until it is told to stop, or that blocks on something a task of the world is to do,
//! never comes back, and neither does the simulation: after a minute by the real clock
//! ([`Sim::hang_after`]) it says which closure that is, or which task's step, and the process is
//! aborted. Threads of the program's own are refused, as their
//! steps would be in the system's order: those that await (`spawn_thread`, `in_thread`), and those of
//! objects (`ThreadProxy`).
//!
//! # The model
//!
//! Sockets behave as Linux's do, as far as programs see: the tests run each case on both. Not there:
//! congestion, `TIME_WAIT`, keep-alive probes, broadcast and multicast, an IPv6 listener that also
//! takes IPv4. Unix sockets bind names in the world, and make no files. A host's timers follow
//! virtual time exactly; its wall clock may be wrong.
#![forbid(unsafe_code)]

mod bytes;
mod checks;
mod clock;
mod coverage;
mod datagram;
mod driver;
mod fault;
mod faults;
mod hang;
mod helpers;
mod here;
mod host;
mod latency;
mod listener;
mod log;
mod make;
mod minimise;
mod net;
mod outside;
mod pick;
mod plan;
mod ports;
mod recorder;
mod report;
mod resend;
mod rng;
mod runs;
mod sim;
mod socket;
mod stream;
pub mod testing;
mod trace;
mod transfer;
mod unix;
mod unix_datagram;
mod wire;
mod world;

pub use clock::{SimClock, busy_for};
#[doc(hidden)]
pub use coverage::note as note_coverage;
pub use coverage::{Coverage, Seen};
pub use driver::SimDriver;
pub use fault::{Between, Fault, LinkChange, TimedFault};
pub use here::Ran;
#[doc(hidden)]
pub use here::example;
pub use host::Outcome;
pub use latency::{Latency, ParseError};
pub use net::Network;
pub use outside::SimSocket;
pub use pick::{Schedule, SimPick};
pub use plan::{FaultMix, FaultPlan};
pub use report::{Cause, Failure, Report};
pub use rng::Rng;
#[doc(hidden)]
pub use runs::simulate;
pub use runs::{Runs, Summary, runs};
pub use sim::Sim;
pub use wire::Link;
