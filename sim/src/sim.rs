//! A simulation, as its owner sets it up.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crate::checks::{Checks, Liveness, check};
use crate::hang::HANG_AFTER;
use crate::host::{Outcome, Program};
use crate::make::addresses_of;
use crate::net::Network;
use crate::pick::Schedule;
use crate::plan::{FaultMix, FaultPlan};
use crate::report::{Failure, Report};
use crate::rng::Rng;
use crate::trace;

/// What the wall clocks show when a run begins: the start of the year 2030, in seconds since 1970.
const START: Duration = Duration::from_secs(1_893_456_000);

/// What a step takes.
const STEP_COST: Duration = Duration::from_micros(1);

pub(crate) struct HostPlan {
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// `None`: see [`Sim::run_here`].
    pub(crate) program: Option<Program>,
    pub(crate) place: &'static Location<'static>,
    pub(crate) is_client: bool,
    pub(crate) clock_offset: i64,
}

/// A world of hosts that is to be run once, by a seed.
///
/// # Examples
///
/// ```
/// use pikake_sim::Sim;
/// use pikake_traps::{Interrupted, sleep};
/// use std::time::Duration;
///
/// let mut sim = Sim::new(7);
/// sim.client("sleeper", || async {
///     sleep(Duration::from_secs(3_600)).await?;
///     Ok::<_, Interrupted>(())
/// });
/// let report = sim.run().unwrap();
/// assert!(report.time >= Duration::from_secs(3_600));
/// ```
#[must_use = "a simulation does nothing until `run` is called"]
pub struct Sim {
    pub(crate) seed: u64,
    pub(crate) network: Network,
    pub(crate) schedule: Schedule,
    pub(crate) start: SystemTime,
    pub(crate) step_cost: Duration,
    pub(crate) steps_per_turn: u32,
    pub(crate) hang_after: Option<Duration>,
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) plan: FaultPlan,
    pub(crate) mix: Option<FaultMix>,
    /// In the place of both.
    pub(crate) only: Option<FaultPlan>,
    pub(crate) checks: Checks,
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        f.debug_struct("Sim")
            .field("seed", &self.seed)
            .field("hosts", &names)
            .finish_non_exhaustive()
    }
}

impl Sim {
    /// A world without hosts.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            network: Network::default(),
            schedule: Schedule::default(),
            start: SystemTime::UNIX_EPOCH + START,
            step_cost: STEP_COST,
            steps_per_turn: 1,
            hang_after: Some(HANG_AFTER),
            hosts: Vec::new(),
            plan: FaultPlan::new(),
            mix: None,
            only: None,
            checks: Checks::default(),
        }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A stream of chance for the test's own use, as to choose what to do.
    pub fn rng(&self, purpose: &str) -> Rng {
        Rng::split(self.seed, "test", purpose)
    }

    /// Adds a host that runs for as long as there are clients.
    ///
    /// It has an address of each family, and its name is known to all. `program` makes the future
    /// of its main task, also when it starts anew after a fault. When the program has ended, its
    /// other tasks are asked to, and its sockets are closed.
    ///
    /// # Panics
    ///
    /// If there is a host of that name.
    #[track_caller]
    pub fn host<F>(&mut self, name: &str, program: impl Fn() -> F + 'static) -> &mut Self
    where
        F: Future<Output: Outcome> + 'static,
    {
        self.add(name, program, false, Location::caller())
    }

    /// Adds a host on whose end the run waits.
    ///
    /// A simulation without clients waits for all its hosts.
    ///
    /// # Panics
    ///
    /// If there is a host of that name.
    #[track_caller]
    pub fn client<F>(&mut self, name: &str, program: impl Fn() -> F + 'static) -> &mut Self
    where
        F: Future<Output: Outcome> + 'static,
    {
        self.add(name, program, true, Location::caller())
    }

    fn add<F>(
        &mut self,
        name: &str,
        program: impl Fn() -> F + 'static,
        is_client: bool,
        place: &'static Location<'static>,
    ) -> &mut Self
    where
        F: Future<Output: Outcome> + 'static,
    {
        let program: Program = Rc::new(move || {
            let future = program();
            Box::pin(async move { future.await.outcome() })
        });
        self.add_plan(name, Some(program), is_client, place)
    }

    #[track_caller]
    pub(crate) fn add_plan(
        &mut self,
        name: &str,
        program: Option<Program>,
        is_client: bool,
        place: &'static Location<'static>,
    ) -> &mut Self {
        let is_there = self.hosts.iter().any(|host| host.name == name);
        assert!(!is_there, "there is a host `{name}` already: each needs a name of its own");
        let addresses = addresses_of(self.hosts.len());
        let name = name.to_owned();
        self.hosts.push(HostPlan { name, addresses, program, place, is_client, clock_offset: 0 });
        self
    }

    fn host_mut(&mut self, name: &str) -> &mut HostPlan {
        let found = self.hosts.iter_mut().find(|host| host.name == name);
        found.unwrap_or_else(|| panic!("there is no host `{name}`: add it first"))
    }

    /// The addresses of a host, instead of those it was given.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn addresses(
        &mut self,
        host: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> &mut Self {
        self.host_mut(host).addresses = addresses.into_iter().collect();
        self
    }

    /// By how many nanoseconds a host's wall clock is ahead; below zero, behind.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn clock_offset(&mut self, host: &str, nanos: i64) -> &mut Self {
        self.host_mut(host).clock_offset = nanos;
        self
    }

    /// What the wall clocks show when the run begins; without this, the start of 2030.
    pub fn start_time(&mut self, start: SystemTime) -> &mut Self {
        self.start = start;
        self
    }

    /// The network.
    pub fn network(&mut self, network: Network) -> &mut Self {
        self.network = network;
        self
    }

    /// How ready tasks are chosen.
    pub fn schedule(&mut self, schedule: Schedule) -> &mut Self {
        self.schedule = schedule;
        self
    }

    /// What a step takes; without this, a microsecond. With nothing, a task that spins stops time.
    pub fn step_cost(&mut self, length: Duration) -> &mut Self {
        self.step_cost = length;
        self
    }

    /// How many steps a host makes, if so many of its tasks are ready, before anything else happens in
    /// the world; without this, one. With as many as the real kernel makes
    /// ([`POLL_EVERY_STEPS`](pikake_kernel::POLL_EVERY_STEPS)) and steps that take no time, a host does
    /// all in the very order in which that does.
    pub fn steps_per_turn(&mut self, steps: u32) -> &mut Self {
        self.steps_per_turn = steps;
        self
    }

    /// Faults at set times, in addition to others.
    pub fn faults(&mut self, plan: FaultPlan) -> &mut Self {
        self.plan.extend(&plan);
        self
    }

    /// Faults that are drawn from the seed, in addition to others.
    pub fn fault_mix(&mut self, mix: FaultMix) -> &mut Self {
        self.mix = Some(mix);
        self
    }

    /// These faults and no others, whatever else is planned or drawn, before or after this.
    ///
    /// With the plan of a failure it is that failure again; with a part of it, the question which of
    /// its faults matter, which [`Runs`](crate::Runs) asks by itself.
    pub fn only_faults(&mut self, plan: FaultPlan) -> &mut Self {
        self.only = Some(plan);
        self
    }

    /// Something that must hold after every step. It says by a panic or a result that it does not.
    pub fn invariant<O: Outcome>(
        &mut self,
        name: &str,
        holds: impl FnMut() -> O + 'static,
    ) -> &mut Self {
        self.checks.invariants.push((name.to_owned(), check(holds)));
        self
    }

    /// At a virtual time all is put right, and no fault happens any more; from then on, something
    /// must come to hold within so long. The run does not end before.
    pub fn heal_and_expect(
        &mut self,
        heal_at: Duration,
        within: Duration,
        what: &str,
        condition: impl FnMut() -> bool + 'static,
    ) -> &mut Self {
        let (what, condition) = (what.to_owned(), Box::new(condition));
        let (has_healed, has_held) = (false, false);
        self.checks.liveness =
            Some(Liveness { what, heal_at, within, condition, has_healed, has_held });
        self
    }

    /// How many steps there may be.
    pub fn step_limit(&mut self, steps: u64) -> &mut Self {
        self.checks.step_limit = steps;
        self
    }

    /// How much virtual time may pass.
    pub fn time_limit(&mut self, time: Duration) -> &mut Self {
        self.checks.time_limit = time;
        self
    }

    /// When the run ends well, whatever its hosts do then.
    pub fn stop_after(&mut self, time: Duration) -> &mut Self {
        self.checks.stop_after = Some(time);
        self
    }

    /// A task that panics is no failure, unless it is a host's main task. For programs that deal
    /// with the panics of their tasks.
    pub fn tolerate_panics(&mut self) -> &mut Self {
        self.checks.tolerates_panics = true;
        self
    }

    /// How long a step or a closure may take by the real clock; without this, a minute. One that takes
    /// longer counts as hung: it is named, with the seed, and the process is aborted, as there is no
    /// other way out of it. `None`: it is waited for, as by somebody with a debugger.
    pub fn hang_after(&mut self, length: Option<Duration>) -> &mut Self {
        self.hang_after = length;
        self
    }

    /// Runs it. The simulation is empty afterwards.
    ///
    /// # Errors
    ///
    /// What went wrong, and all that is known about it.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread; when the fault plan names a host that there is
    /// not.
    pub fn run(&mut self) -> Result<Report, Box<Failure>> {
        self.run_logged(trace::is_wanted()).0
    }
}
