//! Builds the world of a simulation and runs it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{SimClock, WallClock};
use crate::hang::Pulse;
use crate::host::{Host, HostKernel};
use crate::log::{HostName, KernelKey, Log, LogEvent};
use crate::net::Net;
use crate::outside::{Outside, Woken};
use crate::recorder::Watch;
use crate::report::{Failure, Report};
use crate::sim::{HostPlan, Sim};
use crate::trace;
use crate::world::World;

impl Sim {
    /// Runs the simulation. With `keeps_all`, returns all events.
    pub(crate) fn run_logged(
        &mut self,
        keeps_all: bool,
    ) -> (Result<Report, Box<Failure>>, Vec<LogEvent>, Vec<HostName>) {
        let log = Log::new(keeps_all);
        let mut world = std::mem::replace(self, Self::new(self.seed)).into_world(log);
        let result = world.run_and_report();
        let (events, names) = world.end();
        (result, events, names)
    }

    pub(crate) fn into_world(mut self, log: Log) -> World {
        let net = Net::new(self.seed, self.network, log.clone());
        let net = Rc::new(RefCell::new(net));
        let woken = Arc::<Woken>::default();
        let mut world = World::new(self.seed, net.clone(), log, woken.clone());
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        world.plan_is_given = self.only.is_some();
        if let Some(only) = self.only {
            self.plan = only;
        } else if let Some(mix) = self.mix {
            self.plan.extend(&mix.draw(self.seed, &names));
        }
        let kernels = self.hosts.iter().map(|host| host.kernels);
        let name = |(host, kernels)| HostName { host, kernels };
        let names: Vec<HostName> = names.into_iter().zip(kernels).map(name).collect();
        world.pulse = Pulse::start(self.seed, names.clone(), self.hang_after);
        for (plan, name) in self.hosts.into_iter().zip(names) {
            let HostPlan { addresses, program, place, is_client, clock_offset, kernels, .. } = plan;
            let host = net.borrow_mut().add_node(&name.host, addresses, kernels);
            let wall = WallClock { start: self.start, offset: clock_offset, drift_ppm: 0 };
            let wall = Rc::new(RefCell::new(wall));
            let long_step = Rc::<Cell<Duration>>::default();
            let kernel = |kernel| {
                let outside = Outside {
                    net: net.clone(),
                    clock: SimClock::default(),
                    wall: wall.clone(),
                    woken: woken.clone(),
                    key: KernelKey { host, kernel },
                };
                let watch = Watch::new(
                    world.steps.clone(),
                    world.pulse.clone(),
                    (self.step_cost, long_step.clone()),
                    self.steps_per_turn,
                    self.checks.cleanup_limit,
                );
                HostKernel::new(outside, watch)
            };
            let kernels = (0..kernels).map(kernel).collect();
            let program = (name, program);
            world.hosts.push(Host::new(program, place, is_client, wall, long_step, kernels));
        }
        world.schedule = self.schedule;
        world.plan = self.plan;
        world.checks = self.checks;
        world
    }
}

impl World {
    /// Runs the world, and returns its report or failure.
    pub(crate) fn run_and_report(&mut self) -> Result<Report, Box<Failure>> {
        match self.run() {
            Ok(()) => Ok(self.report()),
            Err(cause) => Err(Box::new(self.failure(cause))),
        }
    }

    /// Drops all hosts as after a loss of power. Returns the events and the names of the hosts.
    pub(crate) fn end(mut self) -> (Vec<LogEvent>, Vec<HostName>) {
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

/// The addresses of a host: 10.0.0.1 and fd00::1 for the first.
pub(crate) fn addresses_of(host: usize) -> Vec<IpAddr> {
    let number = host + 1;
    let [high, low] = u16::try_from(number).expect("fewer than 65,535 hosts").to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from_be_bytes([high, low]));
    vec![Ipv4Addr::new(10, 0, high, low).into(), v6.into()]
}
