//! Simulated worlds: the same program, deterministic, with faults.
//!
//! A pikake program asks its kernel for everything it waits for. So a kernel that answers from a
//! simulated world runs the unchanged program: time is virtual and jumps over waits, the network is
//! a model with faults, and all random choices come from one *seed*. The seed replays a failed run,
//! to the last event.
//!
//! | for | use |
//! | --- | --- |
//! | a test on one host | `#[pikake::sim]` |
//! | a test on several hosts, for many seeds | [`Runs`], which makes a [`Sim`] for each seed |
//! | a host with several kernels | `#[pikake::sim(threads = 3)]`, or [`Sim::kernels`] |
//! | faults | [`FaultMix`], a random plan; [`FaultPlan`], a fixed one; [`Network`] and [`Link`] for delays and losses |
//! | checks | [`Sim::invariant`], [`always!`](crate::always), [`sometimes!`](crate::sometimes) |
//! | one future in a world, with its output | [`Sim::run_here`] |
//!
//! # The shortest simulation
//!
//! A test on one machine becomes a simulation by its attribute:
//!
//! ```text
//! #[pikake::test]                     #[pikake::sim(seeds = 200)]
//! async fn echo() { … }      ──▶      async fn echo() { … }
//! ```
//!
//! The test runs once for each seed, each time with another order of its tasks. Sockets on
//! `127.0.0.1` work as before.
//!
//! # Hosts, and faults between them
//!
//! ```
//! use pikake::sim::{FaultMix, Runs};
//! use pikake::{Interrupted, random, sleep};
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
//! [`FaultPlan`], and checks. [`Runs`] makes one for each seed. Hosts address each other by name.
//! [`Sim::run_here`] runs a future that borrows, and returns its output.
//!
//! # Several kernels on a host
//!
//! A host runs its program on one kernel, or on several as `#[pikake::main(threads = N)]` does
//! ([`Sim::kernels`]). All kernels of a world are turned on one thread. The seed selects the kernel
//! that makes the next step. Kernels of one host reach each other as on threads: by
//! [`other_kernels`](pikake_kernel::other_kernels), handles, wakers and what threads may share.
//!
//! * A step takes the time of its kernel alone, so kernels compute at the same time. A wake of
//!   another kernel of the host takes place at the time of the step that sends it. A kernel that
//!   runs earlier for another reason sees the message then, since a step is one piece.
//! * Connections to shared listeners ([`bind_shared`](pikake_traps::OpenSocket::SharedTcpListener))
//!   are spread by the seed.
//! * Each kernel has a schedule of its own. Helper threads and random numbers belong to the host.
//! * A step that blocks its thread until another kernel acts never returns, as in
//!   `std::sync::Barrier`. On threads such a program works; the simulation reports it as hung.
//! * Reports, traces and planned cancels name a kernel by its host and its number, as `server#1`.
//!   The main kernel has the number zero.
//!
//! # When a run fails
//!
//! A run fails when a task panics (before its program has ended), a main task returns an error, an
//! [invariant](Sim::invariant) is violated, all tasks wait forever, or a limit is reached. The
//! report has the seed, the command of a replay, the planned faults, the last events, and the waits
//! of all tasks with their places. [`Runs`] finds the planned faults that the failure needs, and
//! reports it with these alone.
//!
//! | variable | means |
//! | --- | --- |
//! | `PIKAKE_SEED=17` | run this seed only |
//! | `PIKAKE_RUNS=10000` | run this number of seeds |
//! | `PIKAKE_FAULTS='2s partition a \| b'` | apply these faults instead of the test's |
//! | `PIKAKE_TRACE=file` | write every event of the last run into a file |
//!
//! # Determinism
//!
//! The world is one thread, and the seed determines every answer of pikake: the order of tasks,
//! time, sockets, names, the duration of closures in threads, [`random`](pikake_traps::random), and
//! [`wall_time`](pikake_traps::wall_time). Other inputs of a program are not deterministic:
//!
//! | input | remedy |
//! | --- | --- |
//! | the order of a `HashMap` or `HashSet`, which differs in each process | a `BTreeMap`, or a hasher without a random state, where the order matters |
//! | `Instant::now`, `SystemTime::now` | [`now`](pikake_traps::now) and [`wall_time`](pikake_traps::wall_time) |
//! | `rand::rng()`, `getrandom`, and crates that call them | [`random`](pikake_traps::random), or a generator seeded from it |
//! | own threads, other runtimes | closures on helper threads, which are run inline |
//! | files, processes, signals, descriptors from outside | none: they are the real ones, and descriptors are refused |
//! | statics and thread-locals, which survive a run | keep state in the program's future |
//! | addresses of memory, as in `{:p}` | do not decide by them |
//!
//! [`Runs::check_determinism`] runs each seed twice and names the first event that differs. A seed
//! gives the same run for the same build of the program; a change of the program changes the run.
//!
//! A closure on a helper thread runs outside all kernels when its virtual time is over. A closure
//! that waits for a task of the world never returns, and stops the simulation. After a minute of
//! real time ([`Sim::hang_after`]) the simulation reports the closure, or the task whose step does
//! not return, and aborts the process. A simulation refuses threads whose order the system would
//! determine: those that await (`spawn_thread`, `in_thread`), and those of objects (`ThreadProxy`).
//!
//! # The model
//!
//! Programs see the same behaviour of sockets as on Linux: the tests run each case on both. The
//! model lacks congestion, `TIME_WAIT`, keep-alive probes, broadcast and multicast, and IPv6
//! listeners that also accept IPv4. Unix sockets bind names in the world, and create no files. A
//! host's timers follow virtual time exactly; its wall clock may be wrong.
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
mod waits;
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
