//! Applies faults to the world.

use pikake_kernel::BlockingCall;

use crate::clock::nanos;
use crate::fault::{Between, Fault, LinkChange};
use crate::log::{EventKind, KernelKey};
use crate::net::Net;
use crate::socket::{Key, Kind};
use crate::stream::State;
use crate::wire::{Link, PendingEvent, Segment};
use crate::world::World;

impl Net {
    fn host_named(&self, name: &str) -> usize {
        let found = self.nodes.iter().position(|node| node.name == name);
        found.unwrap_or_else(|| panic!("the fault plan names an unknown host: `{name}`"))
    }

    /// The links of a fault.
    fn links_between(&self, between: &Between) -> Vec<(usize, usize)> {
        let mut links = Vec::new();
        for one in &between.one {
            for other in &between.other {
                let (one, other) = (self.host_named(one), self.host_named(other));
                links.push((one, other));
                if !between.one_way {
                    links.push((other, one));
                }
            }
        }
        links
    }

    fn links_of(&self, host: usize) -> Vec<(usize, usize)> {
        let others = (0..self.nodes.len()).filter(|other| *other != host);
        others.flat_map(|other| [(host, other), (other, host)]).collect()
    }

    /// Closes all sockets of a host. With `resets`, its peers get resets. Returns the waiting
    /// closures, which are user code and must be dropped outside the network.
    pub(crate) fn close_all(&mut self, host: usize, resets: bool) -> Vec<BlockingCall> {
        for key in self.sockets.of_host(host) {
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            socket.token = None;
            match &socket.kind {
                Kind::Stream(stream) if resets && stream.state != State::Connecting => {
                    self.transmit(key, Segment::Reset);
                }
                _ => {}
            }
            self.sockets.remove(key);
        }
        let node = &mut self.nodes[host];
        node.listeners.clear();
        node.shared.clear();
        node.datagrams.clear();
        node.connected.clear();
        node.paths.clear();
        node.events.iter_mut().for_each(Vec::clear);
        node.life += 1;
        node.calls_running = 0;
        std::mem::take(&mut node.calls).into()
    }

    fn change_link(&mut self, (from, to): (usize, usize), change: LinkChange) {
        let link = &mut self.link_state(from, to).link;
        match change {
            LinkChange::Latency(latency) => link.latency = latency,
            LinkChange::Loss(likely) => link.loss = likely,
            LinkChange::Duplicate(likely) => link.duplicate = likely,
            LinkChange::Reorder(likely) => link.reorder = likely,
            LinkChange::Bandwidth(rate) => link.bandwidth = rate,
            LinkChange::Reset(likely) => link.reset = likely,
            LinkChange::Refuse(likely) => link.refuse = likely,
        }
    }

    /// Resets the connections between two hosts.
    fn reset_between(&mut self, one: usize, other: usize) {
        for key in self.sockets.of_host(one) {
            let peer: Option<Key> = self
                .stream(key)
                .filter(|stream| stream.remote_host == other && stream.state == State::Open)
                .and_then(|stream| stream.peer);
            if let Some(peer) = peer {
                self.reset_both(key, peer);
            }
        }
    }

    fn heal_all(&mut self) {
        self.cut.clear();
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                let link = match from == to {
                    true => Link::new(self.settings.loopback),
                    false => self.settings.link.without_faults(),
                };
                self.link_state(from, to).link = link;
            }
        }
        for node in &mut self.nodes {
            node.refuses = false;
            node.slow_accept = std::time::Duration::ZERO;
        }
    }
}

impl Link {
    fn without_faults(&self) -> Self {
        Self { bandwidth: self.bandwidth, ..Self::new(self.latency) }
    }
}

impl World {
    /// Applies a fault.
    pub(crate) fn apply(&mut self, fault: &Fault) {
        let text = fault.to_string();
        self.log.note(self.now, KernelKey::main_of(0), EventKind::Fault(text.into()));
        let net = self.net.clone();
        net.borrow_mut().now = self.now;
        let find = |name: &String| net.borrow().host_named(name);
        match fault {
            Fault::Partition(between) => {
                let mut net = net.borrow_mut();
                let links = net.links_between(between);
                net.cut.extend(links);
            }
            Fault::Isolate(name) => {
                let mut net = net.borrow_mut();
                let links = net.links_of(net.host_named(name));
                net.cut.extend(links);
            }
            Fault::Heal(between) => {
                let mut net = net.borrow_mut();
                for link in net.links_between(between) {
                    net.cut.remove(&link);
                }
            }
            Fault::HealAll => self.heal_all(),
            Fault::Link(between, change) => {
                let mut net = net.borrow_mut();
                for link in net.links_between(between) {
                    net.change_link(link, *change);
                }
            }
            Fault::Refuse(name) | Fault::Admit(name) => {
                let host = find(name);
                net.borrow_mut().nodes[host].refuses = matches!(fault, Fault::Refuse(_));
            }
            Fault::Reset(between) => {
                let mut net = net.borrow_mut();
                for (one, other) in net.links_between(between) {
                    net.reset_between(one, other);
                }
            }
            Fault::SlowAccept(name, by) => {
                let host = find(name);
                net.borrow_mut().nodes[host].slow_accept = *by;
            }
            Fault::SetClock(name, by) => {
                self.hosts[find(name)].wall.borrow_mut().offset += by;
            }
            Fault::Drift(name, millionths) => {
                let now = self.now;
                self.hosts[find(name)].wall.borrow_mut().set_drift(now, *millionths);
            }
            Fault::Pause(name) => self.hosts[find(name)].is_paused = true,
            Fault::Resume(name) => self.resume(find(name)),
            Fault::PowerOff(name) => {
                let host = find(name);
                net.borrow_mut().nodes[host].is_up = false;
                self.hosts[host].crash(false);
            }
            Fault::Kill(name) => self.hosts[find(name)].crash(true),
            Fault::Restart(name) => self.restart(find(name)),
            Fault::LongStep(name, length) => {
                self.hosts[find(name)].long_step.set(*length);
            }
            Fault::Helpers(name, count) => {
                let host = find(name);
                let mut net = net.borrow_mut();
                net.nodes[host].helpers = *count;
                net.start_calls(host);
            }
            // The recorder of the host applies these.
            Fault::Cancel { .. } => {}
        }
        self.make_woken_kernels_ready();
    }

    fn resume(&mut self, host: usize) {
        self.hosts[host].is_paused = false;
        for kernel in 0..self.hosts[host].kernels.len() {
            if std::mem::take(&mut self.hosts[host].kernels[kernel].has_missed) {
                self.make_ready(KernelKey { host, kernel });
            }
        }
    }

    fn restart(&mut self, host: usize) {
        if !self.hosts[host].is_running() {
            self.start(host);
        }
    }

    fn heal_all(&mut self) {
        self.net.borrow_mut().heal_all();
        for host in 0..self.hosts.len() {
            self.resume(host);
            if !self.hosts[host].has_exited {
                self.restart(host);
            }
            let helpers = pikake_kernel::HELPER_THREADS;
            let mut net = self.net.borrow_mut();
            net.nodes[host].helpers = net.nodes[host].helpers.max(helpers);
            net.start_calls(host);
        }
    }

    /// Performs a due event of the network.
    pub(crate) fn perform(&mut self, what: PendingEvent) {
        let mut net = self.net.borrow_mut();
        match what {
            PendingEvent::Connect { from, to, tries } => net.connect_request(from, to, tries),
            PendingEvent::ConnectTimeout(key) => net.stream_connect_timeout(key),
            PendingEvent::Segment { from, from_host, to, to_host, number, segment } => {
                net.segment_arrives(from, (from_host, to_host), to, number, segment);
            }
            PendingEvent::ToAccept { listener, stream } => net.make_acceptable(listener, stream),
            PendingEvent::Resend(key) => net.resend(key),
            PendingEvent::Datagram { from, from_host, source, to, data } => {
                net.datagram_arrives(from, from_host, source, to, data);
            }
            PendingEvent::Unwanted(key) => net.datagram_unwanted(key),
            PendingEvent::BlockingCall { host, life, mut call } => {
                let is_alive = net.nodes[host].life == life;
                if is_alive {
                    net.note(host, EventKind::BlockingCall);
                    net.nodes[host].calls_running -= 1;
                    net.start_calls(host);
                }
                drop(net);
                if is_alive {
                    // Outside all kernels, as on a thread.
                    let place = call.place();
                    self.pulse.closure(host, self.now, place, || call.run());
                }
            }
            PendingEvent::Lookup { reply, found } => {
                drop(net);
                reply.send(found);
            }
        }
    }
}

impl crate::clock::WallClock {
    /// Changes the rate from `now` on.
    fn set_drift(&mut self, now: u64, millionths: i32) {
        // The time that it shows now stays the same.
        let shown = self.at(now);
        self.drift_ppm = millionths;
        let shows = self.at(now);
        let (ahead, behind) = (shown.duration_since(shows), shows.duration_since(shown));
        let signed = |length| i64::try_from(nanos(length)).unwrap_or(i64::MAX);
        self.offset += ahead.map_or_else(|_| -behind.map_or(0, signed), signed);
    }
}
