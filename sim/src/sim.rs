//! A simulation, as its owner sets it up.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::checks::{Checks, Liveness, check};
use crate::clock::{SimClock, WallClock};
use crate::hang::{HANG_AFTER, Pulse};
use crate::host::{Host, Outcome, Program};
use crate::log::{Happened, Log};
use crate::net::{Net, Network};
use crate::outside::{Outside, Woken};
use crate::pick::Schedule;
use crate::plan::{FaultMix, FaultPlan};
use crate::recorder::Watch;
use crate::report::{Failure, Report};
use crate::rng::Rng;
use crate::trace;
use crate::world::World;

/// What the wall clocks show when a run begins: the start of the year 2030, in seconds since 1970.
const START: Duration = Duration::from_secs(1_893_456_000);

/// What a step takes.
const STEP_COST: Duration = Duration::from_micros(1);

pub(crate) struct HostPlan {
    name: String,
    addresses: Vec<IpAddr>,
    /// `None`: see [`Sim::run_here`].
    program: Option<Program>,
    place: &'static Location<'static>,
    is_client: bool,
    clock_offset: i64,
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
    seed: u64,
    network: Network,
    schedule: Schedule,
    start: SystemTime,
    step_cost: Duration,
    steps_per_turn: u32,
    hang_after: Option<Duration>,
    hosts: Vec<HostPlan>,
    plan: FaultPlan,
    mix: Option<FaultMix>,
    checks: Checks,
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

    /// Runs it, and gives back all events if they are to be kept.
    pub(crate) fn run_logged(
        &mut self,
        keeps_all: bool,
    ) -> (Result<Report, Box<Failure>>, Vec<Happened>, Vec<String>) {
        let log = Log::new(keeps_all);
        let mut world = std::mem::replace(self, Self::new(self.seed)).into_world(log);
        let result = world.run_and_tell();
        let (events, names) = world.end();
        (result, events, names)
    }

    pub(crate) fn into_world(mut self, log: Log) -> World {
        let net = Net::new(self.seed, self.network, log.clone());
        let net = Rc::new(RefCell::new(net));
        let woken = Arc::<Woken>::default();
        let mut world = World::new(self.seed, net.clone(), log, woken.clone());
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        if let Some(mix) = self.mix {
            self.plan.extend(&mix.draw(self.seed, &names));
        }
        world.pulse = Pulse::start(self.seed, names, self.hang_after);
        for plan in self.hosts {
            let host = net.borrow_mut().add_node(&plan.name, plan.addresses.clone());
            let wall = WallClock { start: self.start, offset: plan.clock_offset, drift_ppm: 0 };
            let outside = Outside {
                net: net.clone(),
                clock: SimClock::default(),
                wall: Rc::new(RefCell::new(wall)),
                woken: woken.clone(),
                host,
            };
            let watch = Watch::new(
                world.steps.clone(),
                world.pulse.clone(),
                self.step_cost,
                self.steps_per_turn,
            );
            let HostPlan { name, program, place, is_client, .. } = plan;
            world.hosts.push(Host::new(name, program, place, is_client, outside, watch));
        }
        world.schedule = self.schedule;
        world.plan = self.plan;
        world.checks = self.checks;
        world
    }
}

impl World {
    /// Runs it, and says what came of that.
    pub(crate) fn run_and_tell(&mut self) -> Result<Report, Box<Failure>> {
        match self.run() {
            Ok(()) => Ok(self.report()),
            Err(cause) => Err(Box::new(self.failure(cause))),
        }
    }

    /// Drops what is left as if the power went; gives the events and the names of the hosts.
    pub(crate) fn end(mut self) -> (Vec<Happened>, Vec<String>) {
        let (events, names) = (self.log.take_all(), self.names());
        for host in self.hosts.iter_mut().rev() {
            host.crash(false);
        }
        if trace::is_wanted() {
            trace::write(&events, &names);
        }
        (events, names)
    }
}

/// Addresses that a host is given: 10.0.0.1 and fd00::1 for the first.
fn addresses_of(host: usize) -> Vec<IpAddr> {
    let number = host + 1;
    let [high, low] = u16::try_from(number).expect("fewer than 65,535 hosts").to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from_be_bytes([high, low]));
    vec![Ipv4Addr::new(10, 0, high, low).into(), v6.into()]
}
