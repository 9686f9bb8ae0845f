//! Names asked of DNS servers directly, by hickory-resolver on this kernel's traps.
//!
//! The system's way (`getaddrinfo`) takes a thread for each lookup and tells no TTL. This one takes
//! a datagram, and its answers say for how long they hold. It knows the DNS and the hosts file, and
//! nothing else that a system may be set up to ask.
//!
//! ```no_run
//! use pikake_net::{Resolver, dns::DnsServers};
//!
//! # async fn example() -> std::io::Result<()> {
//! let resolver = Resolver::builder().source(DnsServers::of_the_system()?).build();
//! let stream = resolver.connect("example.org:443").await?;
//! # Ok(()) }
//! ```
//!
//! Answers that do not belong to a question (another id, another question, another sender) are
//! ignored by hickory, which goes on waiting; a truncated one is asked for again over TCP. hickory
//! draws its ids and ports from the system, and weighs its servers by the system's clock, so in a
//! simulation these two are not the seed's.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::{DnsError, NetError};
use pikake_traps::{Builder, Task, TaskError};

use crate::names::{NameAnswer, NameSource};

pub use crate::dns_runtime::{DnsRuntime, DnsSpawner, DnsTcp, DnsTime, DnsUdp};
pub use hickory_resolver;

/// DNS servers, as a source of names for a [`Resolver`](crate::Resolver).
#[derive(Clone)]
pub struct DnsServers {
    hickory: Rc<hickory_resolver::Resolver<DnsRuntime>>,
}

impl DnsServers {
    /// The servers in `/etc/resolv.conf`, with its options, and the hosts file. Reads those files,
    /// which may block for a moment.
    ///
    /// # Errors
    ///
    /// The files cannot be read, or name no server.
    pub fn of_the_system() -> io::Result<Self> {
        let read = hickory_resolver::system_conf::read_system_conf();
        let (config, options) = read.map_err(io::Error::other)?;
        Self::with(config, options)
    }

    /// These servers, over UDP, and TCP for answers that are too long for that. Without the hosts
    /// file.
    ///
    /// # Errors
    ///
    /// hickory takes offence at them.
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

    /// Servers and options as hickory has them. Its own cache is switched off: the resolver's keeps
    /// the kernel's time.
    ///
    /// # Errors
    ///
    /// hickory takes offence at them.
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

/// hickory takes any error for a server's and tries the next, an interruption, too. So its task is
/// never interrupted: when nobody waits for it any more it is dropped.
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
                    let text = "none of the DNS servers has answered";
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
