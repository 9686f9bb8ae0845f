//! The set-up of a simulation.

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

/// The wall-clock time at the start of a run: the start of the year 2030, since 1970.
const START: Duration = Duration::from_secs(1_893_456_000);

/// The default virtual time of a step.
const STEP_COST: Duration = Duration::from_micros(1);

pub(crate) struct HostPlan {
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// `None`: see [`Sim::run_here`].
    pub(crate) program: Option<Program>,
    pub(crate) place: &'static Location<'static>,
    pub(crate) is_client: bool,
    pub(crate) clock_offset: i64,
    /// The number of kernels, at least one.
    pub(crate) kernels: usize,
}

/// A world of hosts, which runs once, with a seed.
///
/// # Examples
///
/// ```
/// use pikake::sim::Sim;
/// use pikake::{Interrupted, sleep};
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
    /// Replaces `plan` and `mix`.
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
    /// Creates a world without hosts.
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

    /// A stream of random numbers for the test itself.
    pub fn rng(&self, purpose: &str) -> Rng {
        Rng::split(self.seed, "test", purpose)
    }

    /// Adds a host that runs for as long as there are clients.
    ///
    /// The host has an address of each family, and all hosts can look its name up. `program`
    /// creates the future of its main task, again after each restart. When the main task has ended,
    /// the host's other tasks are cancelled, and its sockets are closed.
    ///
    /// # Panics
    ///
    /// If there is already a host of that name.
    #[track_caller]
    pub fn host<F>(&mut self, name: &str, program: impl Fn() -> F + 'static) -> &mut Self
    where
        F: Future<Output: Outcome> + 'static,
    {
        self.add(name, program, false, Location::caller())
    }

    /// Adds a host whose end the run waits for.
    ///
    /// A simulation without clients waits for all its hosts.
    ///
    /// # Panics
    ///
    /// If there is already a host of that name.
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
        let (clock_offset, kernels) = (0, 1);
        self.hosts.push(HostPlan {
            name,
            addresses,
            program,
            place,
            is_client,
            clock_offset,
            kernels,
        });
        self
    }

    fn host_mut(&mut self, name: &str) -> &mut HostPlan {
        let found = self.hosts.iter_mut().find(|host| host.name == name);
        found.unwrap_or_else(|| panic!("there is no host `{name}`: add it first"))
    }

    /// Sets the addresses of a host, instead of the automatic ones.
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

    /// Sets the number of kernels of a host; one by default.
    ///
    /// The host runs its program as `#[pikake::main(threads = N)]` does, on the first kernel. The
    /// others wait for work, and [`other_kernels`](pikake_kernel::other_kernels) has their handles.
    /// The kernels share the host's network, wall clock and helper threads. The seed selects the
    /// kernel that makes the next step. A crash drops all of them, and a restart starts fresh ones.
    /// When the main task has ended, first its kernel is shut down, and then the others.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::net::{Closing, Patience, TcpStream, serve_on_all, serve_until};
    /// use pikake::other_kernels;
    /// use pikake::sim::Sim;
    ///
    /// async fn server() -> std::io::Result<()> {
    ///     let reports = serve_on_all("0.0.0.0:7000", &other_kernels(), |listener| {
    ///         let greet = async |stream: TcpStream, _| drop(stream.write_all(b"hello").await);
    ///         serve_until(listener, 1000, Closing::new(), Patience::default(), greet)
    ///     });
    ///     reports.await?;
    ///     Ok(())
    /// }
    ///
    /// let mut sim = Sim::new(7);
    /// sim.host("server", server).kernels("server", 3);
    /// sim.client("client", || async {
    ///     for _ in 0..10 {
    ///         let stream = loop {
    ///             // Until the server listens.
    ///             match TcpStream::connect("server:7000").await {
    ///                 Ok(stream) => break stream,
    ///                 Err(_) => pikake::sleep(std::time::Duration::from_millis(1)).await.unwrap(),
    ///             }
    ///         };
    ///         stream.read_exact(&mut [0; 5]).await?;
    ///     }
    ///     std::io::Result::Ok(())
    /// });
    /// sim.run().unwrap();
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such host, or `count` is zero.
    pub fn kernels(&mut self, host: &str, count: usize) -> &mut Self {
        assert!(count > 0, "a host runs on one kernel at least");
        self.host_mut(host).kernels = count;
        self
    }

    /// Sets the nanoseconds by which a host's wall clock is ahead; below zero, behind.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn clock_offset(&mut self, host: &str, nanos: i64) -> &mut Self {
        self.host_mut(host).clock_offset = nanos;
        self
    }

    /// Sets the wall-clock time at the start of the run; the start of 2030 by default.
    pub fn start_time(&mut self, start: SystemTime) -> &mut Self {
        self.start = start;
        self
    }

    /// Sets the network.
    pub fn network(&mut self, network: Network) -> &mut Self {
        self.network = network;
        self
    }

    /// Sets the order of ready tasks.
    pub fn schedule(&mut self, schedule: Schedule) -> &mut Self {
        self.schedule = schedule;
        self
    }

    /// Sets the virtual time of a step; 1 µs by default. With zero, a task that spins stops time.
    pub fn step_cost(&mut self, length: Duration) -> &mut Self {
        self.step_cost = length;
        self
    }

    /// Sets the largest number of steps that a host makes in one turn of the world; one by default.
    /// With the real kernel's number ([`POLL_EVERY_STEPS`](pikake_kernel::POLL_EVERY_STEPS)) and
    /// steps that take no time, a host has the same order of steps as the real kernel.
    pub fn steps_per_turn(&mut self, steps: u32) -> &mut Self {
        self.steps_per_turn = steps;
        self
    }

    /// Adds faults at set times.
    pub fn faults(&mut self, plan: FaultPlan) -> &mut Self {
        self.plan.extend(&plan);
        self
    }

    /// Adds faults that are drawn from the seed.
    pub fn fault_mix(&mut self, mix: FaultMix) -> &mut Self {
        self.mix = Some(mix);
        self
    }

    /// Sets the only faults of the run: all other planned or drawn faults are ignored.
    ///
    /// The plan of a failure repeats that failure. A part of the plan shows which faults matter,
    /// which [`Runs`](crate::Runs) finds automatically.
    pub fn only_faults(&mut self, plan: FaultPlan) -> &mut Self {
        self.only = Some(plan);
        self
    }

    /// Adds an invariant, which is checked after every step. It fails by a panic or an error.
    pub fn invariant<O: Outcome>(
        &mut self,
        name: &str,
        holds: impl FnMut() -> O + 'static,
    ) -> &mut Self {
        self.checks.invariants.push((name.to_owned(), check(holds)));
        self
    }

    /// Repairs all faults at the virtual time `heal_at`, with no faults afterwards; the condition
    /// must then hold within `within`. The run does not end before.
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

    /// Sets the limit of steps.
    pub fn step_limit(&mut self, steps: u64) -> &mut Self {
        self.checks.step_limit = steps;
        self
    }

    /// Sets the limit of virtual time.
    pub fn time_limit(&mut self, time: Duration) -> &mut Self {
        self.checks.time_limit = time;
        self
    }

    /// Sets the virtual time at which the run succeeds, whether its hosts have ended or not.
    pub fn stop_after(&mut self, time: Duration) -> &mut Self {
        self.checks.stop_after = Some(time);
        self
    }

    /// Counts only the panic of a host's main task as a failure. For programs that handle panics of
    /// their tasks.
    pub fn tolerate_panics(&mut self) -> &mut Self {
        self.checks.tolerates_panics = true;
        self
    }

    /// Sets the virtual time for which a task, or the body of a timeout, may go on after it caught
    /// an interruption; 30 seconds by default. With `None`, an interruption that a task
    /// [swallows](pikake_traps::Swallowed) is no failure at all.
    pub fn cleanup_limit(&mut self, limit: Option<Duration>) -> &mut Self {
        self.checks.cleanup_limit = limit;
        self
    }

    /// Sets the real time that a step or a closure may take; a minute by default. A longer one
    /// counts as hung: it is reported with the seed, and the process is aborted, since it cannot be
    /// interrupted. `None` disables this, as for a debugger.
    pub fn hang_after(&mut self, length: Option<Duration>) -> &mut Self {
        self.hang_after = length;
        self
    }

    /// Runs the simulation, which is empty afterwards.
    ///
    /// # Errors
    ///
    /// The failure of the run.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread, or if the fault plan names an unknown host.
    pub fn run(&mut self) -> Result<Report, Box<Failure>> {
        self.run_logged(trace::is_wanted()).0
    }
}
