//! Addresses and ports: routes and bindings.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use crate::net::Net;
use crate::socket::Key;

/// The range of automatically chosen ports; that of Linux.
pub(crate) const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// The namespaces of ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ports {
    Tcp,
    Udp,
}

/// Whether a listener may share its address with others (`SO_REUSEPORT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    Alone,
    /// With others that share as well.
    Shared,
}

impl Net {
    /// The host of an address, seen from another host; the source address and the destination
    /// address of its packets.
    pub(crate) fn route(&self, from: usize, to: IpAddr) -> io::Result<(usize, IpAddr, IpAddr)> {
        if to.is_unspecified() {
            let own = loopback_like(to);
            return Ok((from, own, own));
        }
        if to.is_loopback() {
            return Ok((from, to, to));
        }
        let host = *self.addresses.get(&to).ok_or(Errno::NETUNREACH)?;
        if host == from {
            return Ok((from, to, to));
        }
        let own = self.nodes[from].addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
        Ok((host, *own.ok_or(Errno::NETUNREACH)?, to))
    }

    fn bound(&self, host: usize, ports: Ports) -> &BTreeMap<SocketAddr, Key> {
        match ports {
            Ports::Tcp => &self.nodes[host].listeners,
            Ports::Udp => &self.nodes[host].datagrams,
        }
    }

    fn is_taken(&self, host: usize, ports: Ports, address: SocketAddr, sharing: Sharing) -> bool {
        let ip = address.ip();
        let is_in_the_way = |other: &SocketAddr| {
            let overlaps = other.ip() == ip
                || other.is_ipv4() == ip.is_ipv4()
                    && (other.ip().is_unspecified() || ip.is_unspecified());
            other.port() == address.port() && overlaps
        };
        let is_shared = || self.nodes[host].shared.keys().any(is_in_the_way);
        self.bound(host, ports).keys().any(is_in_the_way)
            || ports == Ports::Tcp && sharing == Sharing::Alone && is_shared()
    }

    /// A free port.
    pub(crate) fn free_port(
        &mut self,
        host: usize,
        ports: Ports,
        ip: IpAddr,
    ) -> Result<u16, Errno> {
        for _ in EPHEMERAL {
            let port = self.nodes[host].next_port;
            let next = port + 1;
            self.nodes[host].next_port =
                if EPHEMERAL.contains(&next) { next } else { EPHEMERAL.start };
            let is_connected = ports == Ports::Tcp && self.nodes[host].connected.contains(&port);
            let address = SocketAddr::new(ip, port);
            if !is_connected && !self.is_taken(host, ports, address, Sharing::Alone) {
                return Ok(port);
            }
        }
        Err(Errno::ADDRINUSE)
    }

    /// The address that a socket gets, with a free port for port zero.
    pub(crate) fn bind(
        &mut self,
        host: usize,
        ports: Ports,
        mut address: SocketAddr,
        sharing: Sharing,
    ) -> Result<SocketAddr, Errno> {
        let ip = address.ip();
        let is_own = ip.is_loopback() || self.nodes[host].addresses.contains(&ip);
        if !is_own && !ip.is_unspecified() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if address.port() == 0 {
            address.set_port(self.free_port(host, ports, ip)?);
        } else if self.is_taken(host, ports, address, sharing) {
            return Err(Errno::ADDRINUSE);
        }
        Ok(address)
    }

    /// The datagram socket that is bound to an address, or to its port at any address.
    pub(crate) fn datagram_at(&self, host: usize, address: SocketAddr) -> Option<Key> {
        let bound = &self.nodes[host].datagrams;
        let any = SocketAddr::new(unspecified_like(address.ip()), address.port());
        bound.get(&address).or_else(|| bound.get(&any)).copied()
    }

    /// The listener for a connection to an address. The seed selects one of those that share it. As
    /// on Linux, a listener at the address itself goes before those at any address.
    pub(crate) fn listener_at(&mut self, host: usize, address: SocketAddr) -> Option<Key> {
        let node = &mut self.nodes[host];
        let any = SocketAddr::new(unspecified_like(address.ip()), address.port());
        [address, any].iter().find_map(|address| match node.shared.get(address) {
            Some(sharing) => Some(sharing[node.spread.index(sharing.len())]),
            None => node.listeners.get(address).copied(),
        })
    }
}

fn loopback_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

fn unspecified_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
