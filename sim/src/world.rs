//! The world: all hosts, one virtual time, and a loop.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────┐
//!        ▼                                                              │
//!   due events of the network, faults ─▶ one turn of one ready kernel ──┤
//!                                                                       │ checks
//!                                        no kernel is ready: time jumps ┘
//! ```
//!
//! A host has one kernel or several. A turn is at most one step of one task, by default. The seed
//! selects one of the kernels that are ready at the same virtual time. A step takes virtual time,
//! during which only other kernels run. When no kernel is ready, time jumps to the next timer,
//! packet or fault; if there is none, the run is a deadlock.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;

use crate::checks::Checks;
use crate::clock::nanos;
use crate::fault::Fault;
use crate::hang::Pulse;
use crate::host::{Ended, Host, HostKernel};
use crate::log::{KernelKey, Log};
use crate::net::Net;
use crate::outside::Woken;
use crate::pick::Schedule;
use crate::plan::FaultPlan;
use crate::report::Cause;
use crate::rng::Rng;

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) schedule: Schedule,
    pub(crate) net: Rc<RefCell<Net>>,
    pub(crate) log: Log,
    pub(crate) hosts: Vec<Host>,
    pub(crate) woken: Arc<Woken>,
    pub(crate) now: u64,
    pub(crate) plan: FaultPlan,
    /// The plan overrides the test's own.
    pub(crate) plan_is_given: bool,
    pub(crate) checks: Checks,
    /// Kernels that are ready now.
    ready: Vec<KernelKey>,
    /// Kernels with a later turn. An entry that differs from [`HostKernel::due`] is obsolete.
    due: BinaryHeap<Reverse<(u64, KernelKey)>>,
    order: Rng,
    next_fault: usize,
    /// The progress, for the watchdog.
    pub(crate) pulse: Arc<Pulse>,
    /// Steps of all hosts.
    pub(crate) steps: Rc<Cell<u64>>,
    /// The number of hosts whose end the run waits for.
    waited_for: usize,
}

impl World {
    pub(crate) fn new(seed: u64, net: Rc<RefCell<Net>>, log: Log, woken: Arc<Woken>) -> Self {
        Self {
            seed,
            schedule: Schedule::default(),
            net,
            log,
            hosts: Vec::new(),
            woken,
            now: 0,
            plan: FaultPlan::new(),
            plan_is_given: false,
            checks: Checks::default(),
            ready: Vec::new(),
            due: BinaryHeap::new(),
            order: Rng::split(seed, "", "hosts"),
            next_fault: 0,
            pulse: Arc::default(),
            steps: Rc::default(),
            waited_for: 0,
        }
    }

    /// Starts a host.
    pub(crate) fn start(&mut self, host: usize) {
        for one in &self.hosts[host].kernels {
            one.outside.clock.set(self.now);
        }
        self.hosts[host].start(self.seed, self.schedule, &self.log);
        self.count_waited_for();
        for kernel in 0..self.hosts[host].kernels.len() {
            self.make_ready(KernelKey { host, kernel });
        }
    }

    fn kernel(&mut self, key: KernelKey) -> &mut HostKernel {
        &mut self.hosts[key.host].kernels[key.kernel]
    }

    /// Schedules a turn of a kernel, as early as its clock allows.
    pub(crate) fn make_ready(&mut self, key: KernelKey) {
        self.make_ready_at(key, self.now);
    }

    /// Schedules a turn of a kernel, at this time or as soon afterwards as its clock allows.
    fn make_ready_at(&mut self, key: KernelKey, at: u64) {
        let (now, is_paused) = (self.now, self.hosts[key.host].is_paused);
        let found = self.kernel(key);
        let at = found.outside.clock.get().max(at);
        if is_paused {
            found.has_missed = true;
        } else if at > now {
            self.make_due(key, at);
        } else if !found.is_queued {
            found.is_queued = true;
            self.ready.push(key);
        }
    }

    fn make_due(&mut self, key: KernelKey, at: u64) {
        let due = &mut self.kernel(key).due;
        if due.is_none_or(|due| due > at) {
            *due = Some(at);
            self.due.push(Reverse((at, key)));
        }
    }

    /// Makes the kernels ready that have an event of a socket or were woken.
    pub(crate) fn make_woken_kernels_ready(&mut self) {
        let mut notified = std::mem::take(&mut self.net.borrow_mut().notified);
        for key in notified.drain(..) {
            self.make_ready(key);
        }
        for (key, at) in self.woken.take() {
            self.make_ready_at(key, at.unwrap_or(self.now));
        }
        let notified_meanwhile = &mut self.net.borrow_mut().notified;
        if notified_meanwhile.is_empty() {
            *notified_meanwhile = notified;
        }
    }

    /// Runs the world to its end. The error is the cause of a failure.
    pub(crate) fn run(&mut self) -> Result<(), Cause> {
        self.register_cancels();
        for host in 0..self.hosts.len() {
            self.start(host);
        }
        // Spawning the main tasks has woken the kernels. They are ready already, so no second turn
        // follows.
        self.make_woken_kernels_ready();
        loop {
            self.perform_due();
            if self.is_over() {
                return Ok(());
            }
            match self.next_ready() {
                Some(key) => {
                    self.turn(key)?;
                    self.check()?;
                }
                None => self.jump()?,
            }
        }
    }

    /// Discards the remaining faults of the plan.
    pub(crate) fn forget_faults(&mut self) {
        self.next_fault = self.plan.entries().len();
    }

    /// Passes the cancels of the plan to the observers of their hosts.
    fn register_cancels(&mut self) {
        for entry in self.plan.entries() {
            if let Fault::Cancel { host, task, trap } = &entry.fault {
                let is_meant = |one: &&HostKernel| {
                    let KernelKey { host: number, kernel } = one.outside.key;
                    let name = &self.hosts[number].name;
                    *host == name.of_kernel(kernel) || *host == name.host && kernel == 0
                };
                let found = self.hosts.iter().flat_map(|host| &host.kernels).find(is_meant);
                let found = found
                    .unwrap_or_else(|| panic!("the fault plan names an unknown host: `{host}`"));
                found.watch.cancels.borrow_mut().push((*task, *trap));
            }
        }
    }

    /// Applies due faults, performs due events, and makes due kernels ready.
    fn perform_due(&mut self) {
        while let Some(entry) = self.plan.entries().get(self.next_fault) {
            if nanos(entry.at) > self.now {
                break;
            }
            let fault = entry.fault.clone();
            self.next_fault += 1;
            self.apply(&fault);
        }
        loop {
            let next = {
                let mut net = self.net.borrow_mut();
                net.now = self.now;
                net.queue.pop_due(self.now)
            };
            let Some((_, what)) = next else { break };
            self.perform(what);
            self.make_woken_kernels_ready();
        }
        while let Some(Reverse((at, key))) = self.due.peek().copied() {
            if at > self.now {
                break;
            }
            self.due.pop();
            if self.kernel(key).due == Some(at) {
                self.kernel(key).due = None;
                self.make_ready(key);
            }
        }
    }

    fn next_ready(&mut self) -> Option<KernelKey> {
        while !self.ready.is_empty() {
            let index = self.order.index(self.ready.len());
            let key = self.ready.swap_remove(index);
            let is_paused = self.hosts[key.host].is_paused;
            let found = self.kernel(key);
            found.is_queued = false;
            if is_paused {
                found.has_missed = true;
            } else if found.kernel.is_some() {
                return Some(key);
            }
        }
        None
    }

    fn turn(&mut self, key: KernelKey) -> Result<(), Cause> {
        let host = &mut self.hosts[key.host];
        let turned = &host.kernels[key.kernel];
        turned.outside.clock.set(self.now);
        self.pulse.turn(key, self.now);
        let Some(turn) = turned.turn() else { return Ok(()) };
        let at = turned.outside.clock.get();
        let panicked = turned.watch.panicked.borrow_mut().take();
        // The panic of a borrowed main task is its outcome, which its owner gets.
        let panicked = panicked.filter(|_| !(host.is_borrowed() && host.has_ended()));
        let name = || host.name.of_kernel(key.kernel);
        let swallowed = turned.kernel.as_ref().and_then(|kernel| kernel.swallowed());
        if let Some(swallowed) = swallowed.filter(|_| self.checks.cleanup_limit.is_some()) {
            return Err(Cause::Swallowed { host: name(), swallowed: Box::new(swallowed.clone()) });
        }
        match (host.take_ended(), panicked) {
            (Some(Ended::Panicked(text)), _) => {
                return Err(Cause::Panicked { host: name(), task: "its main task".into(), text });
            }
            (Some(Ended::Failed(text)), _) => {
                return Err(Cause::Failed { host: host.name.host.clone(), text });
            }
            (_, Some(task)) if !self.checks.tolerates_panics && !host.is_closing() => {
                let text = "see its message".into();
                return Err(Cause::Panicked { host: name(), task, text });
            }
            _ => {}
        }
        let has_exited = host.close_if_ended();
        self.make_woken_kernels_ready();
        if has_exited {
            self.count_waited_for();
        }
        if self.kernel(key).kernel.is_none() {
            return Ok(());
        }
        if turn.is_ready {
            self.make_ready(key);
        } else if let Some(next) = turn.next_deadline.filter(|next| !next.is_never()) {
            self.make_due(key, next.ticks().get().max(at));
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        if self.checks.is_liveness_due() {
            return false;
        }
        if self.checks.stop_after.is_some_and(|at| nanos(at) <= self.now) {
            return true;
        }
        self.waited_for == 0
    }

    /// The run waits for clients, or for all hosts if there are none.
    fn count_waited_for(&mut self) {
        let has_clients = self.hosts.iter().any(|host| host.is_client);
        let is_waited_for = |host: &&Host| !host.has_exited && (host.is_client || !has_clients);
        self.waited_for = self.hosts.iter().filter(is_waited_for).count();
    }

    /// The time of the next event, turn or fault.
    fn next_moment(&mut self) -> Option<u64> {
        let packet = self.net.borrow_mut().next_moment();
        let kernel = loop {
            let Some(Reverse((at, key))) = self.due.peek().copied() else { break None };
            if self.kernel(key).due == Some(at) {
                break Some(at);
            }
            self.due.pop();
        };
        let fault = self.plan.entries().get(self.next_fault).map(|entry| nanos(entry.at));
        [packet, kernel, fault].into_iter().flatten().min()
    }

    /// Moves time to the next event, turn, fault or check.
    fn jump(&mut self) -> Result<(), Cause> {
        let next = self.next_moment();
        let planned = self.checks.next_moment();
        let moment = match (next, planned) {
            (Some(next), Some(planned)) => next.min(planned),
            (Some(moment), None) | (None, Some(moment)) => moment,
            (None, None) => return Err(Cause::Deadlock),
        };
        let limit = nanos(self.checks.time_limit);
        if moment > limit {
            self.now = limit;
            return Err(Cause::TimeLimit(self.checks.time_limit));
        }
        self.now = moment.max(self.now);
        self.check()
    }
}
