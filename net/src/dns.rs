//! Lookups at DNS servers, by hickory-resolver on this kernel's traps.
//!
//! The system's lookup (`getaddrinfo`) takes a thread and returns no TTL. A DNS lookup takes a
//! datagram, and its answers have a TTL. It uses the DNS and the hosts file, but no other source of
//! names that a system may have.
//!
//! ```no_run
//! use pikake::net::Resolver;
//! use pikake::net::dns::DnsServers;
//!
//! # async fn example() -> std::io::Result<()> {
//! let resolver = Resolver::builder().source(DnsServers::of_the_system()?).build();
//! let stream = resolver.connect("example.org:443").await?;
//! # Ok(()) }
//! ```
//!
//! hickory ignores answers with another id, question or sender, and asks again over TCP after a
//! truncated answer. hickory takes ids and ports from the system's random numbers, and rates its
//! servers by the system's clock, so in a simulation both are independent of the seed.
//!
//! hickory-resolver itself, in the version of these types, is the module `hickory_resolver` in this
//! one.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ::hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use ::hickory_resolver::net::{DnsError, NetError};
use pikake_traps::{Builder, Task, TaskError};

use crate::names::{NameAnswer, NameSource};

mod runtime;

pub use runtime::{DnsRuntime, DnsSpawner, DnsTcp, DnsTime, DnsUdp};

/// hickory-resolver itself. Hidden, or else its own documentation would be shown here once more.
#[doc(hidden)]
pub mod hickory_resolver {
    pub use ::hickory_resolver::*;
}

/// DNS servers, as a source of names for a [`Resolver`](crate::Resolver).
#[derive(Clone)]
pub struct DnsServers {
    hickory: Rc<hickory_resolver::Resolver<DnsRuntime>>,
}

impl DnsServers {
    /// The servers and options in `/etc/resolv.conf`, and the hosts file. Reading the files blocks
    /// the thread.
    ///
    /// # Errors
    ///
    /// The files cannot be read, or name no server.
    pub fn of_the_system() -> io::Result<Self> {
        let read = hickory_resolver::system_conf::read_system_conf();
        let (config, options) = read.map_err(io::Error::other)?;
        Self::with(config, options)
    }

    /// The given servers, over UDP, and over TCP for long answers. Without the hosts file.
    ///
    /// # Errors
    ///
    /// hickory refuses the servers.
    pub fn at(servers: impl IntoIterator<Item = SocketAddr>) -> io::Result<Self> {
        let servers = servers.into_iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut config.connections {
                connection.port = server.port();
            }
            config
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        let mut options = ResolverOpts::default();
        options.use_hosts_file = ResolveHosts::Never;
        Self::with(config, options)
    }

    /// Servers and options of hickory, without hickory's cache: the cache of the resolver uses the
    /// kernel's clock.
    ///
    /// # Errors
    ///
    /// hickory refuses the configuration.
    pub fn with(config: ResolverConfig, mut options: ResolverOpts) -> io::Result<Self> {
        options.cache_size = 0;
        let mut builder = hickory_resolver::Resolver::builder_with_config(config, DnsRuntime);
        *builder.options_mut() = options;
        let hickory = builder.build().map_err(io::Error::other)?;
        Ok(Self { hickory: Rc::new(hickory) })
    }
}

impl fmt::Debug for DnsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DnsServers").finish_non_exhaustive()
    }
}

/// Drops hickory's task with its last waiter. hickory would take an interruption for a server's
/// error and try the next server, so its task is never interrupted.
struct AbortOnDrop<T>(Task<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NameSource for DnsServers {
    fn look_up(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
        let (hickory, host) = (self.hickory.clone(), host.to_owned());
        Box::pin(async move {
            let name = format!("ask the DNS for {host}");
            let asking = async move { hickory.lookup_ip(host).await };
            let mut task = AbortOnDrop(Builder::new().name(name).spawn(asking));
            let answer = match (&mut task.0).await {
                Ok(answer) => answer,
                Err(TaskError::Interrupted(interrupted)) => return Err(interrupted.into()),
                Err(error) => return Err(io::Error::other(error)),
            };
            match answer {
                Ok(found) => {
                    let ttls = found.as_lookup().answers().iter().map(|record| record.ttl);
                    let ttl = ttls.min().map(seconds);
                    Ok(NameAnswer { addresses: found.iter().collect::<Vec<IpAddr>>(), ttl })
                }
                Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                    Ok(NameAnswer { addresses: Vec::new(), ttl: none.negative_ttl.map(seconds) })
                }
                Err(NetError::Timeout) => {
                    let text = "no DNS server answered in time";
                    Err(io::Error::new(io::ErrorKind::TimedOut, text))
                }
                Err(error) => Err(io::Error::other(error)),
            }
        })
    }
}

fn seconds(ttl: u32) -> Duration {
    Duration::from_secs(ttl.into())
}
