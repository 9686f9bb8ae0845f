//! Helper threads and name lookup of a host, in virtual time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use pikake_kernel::BlockingCall;
use pikake_traps::{Addresses, Reply};

use crate::net::Net;
use crate::wire::PendingEvent;

impl Net {
    /// Queues a closure for a helper thread.
    pub(crate) fn blocking(&mut self, host: usize, call: BlockingCall) {
        self.nodes[host].calls.push_back(call);
        self.start_calls(host);
    }

    /// Starts queued closures while there are helper threads for them.
    pub(crate) fn start_calls(&mut self, host: usize) {
        let now = self.now;
        let node = &mut self.nodes[host];
        while node.calls_running < node.helpers {
            let Some(call) = node.calls.pop_front() else { break };
            node.calls_running += 1;
            let at = now.saturating_add(self.settings.blocking.draw(&mut node.blocking));
            self.queue.push(at, PendingEvent::BlockingCall { host, life: node.life, call });
        }
    }

    /// Looks a name up in the table of hosts.
    pub(crate) fn lookup(&mut self, name: &str, port: u16, reply: Reply<Addresses>) {
        let with_port = |ip: IpAddr| SocketAddr::new(ip, port);
        let found = match name {
            "localhost" => Ok(vec![with_port(Ipv4Addr::LOCALHOST.into())]),
            _ => match self.nodes.iter().find(|node| node.name == name) {
                Some(node) => Ok(node.addresses.iter().copied().map(with_port).collect()),
                None => Err(io::Error::other(
                    "failed to lookup address information: no host of this world has that name",
                )),
            },
        };
        let at = self.now.saturating_add(self.settings.lookup.draw(&mut self.lookups));
        self.queue.push(at, PendingEvent::Lookup { reply, found });
    }
}
