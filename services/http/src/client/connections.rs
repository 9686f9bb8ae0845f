//! The connections of a client: a pool of HTTP/1.1 ones, and one of HTTP/2 for each host that
//! speaks it.
//!
//! Which version a server speaks is known once a connection is made. So requests for an unknown
//! host wait for the first connection, and then share it or make more:
//!
//! ```text
//!   request ──▶ HTTP/2 shared? ──yes──▶ a stream of it
//!                    │ no
//!                    ▼
//!               may be HTTP/2, and another request dials? ──yes──▶ wait for its end, look again
//!                    │ no
//!                    ▼
//!               the pool ──▶ HTTP/1.1: a lease, given back when the response has been read
//!                       └──▶ HTTP/2: taken out of the pool and shared until it is idle for long
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::client::conn::http2;
use pikake_pool::{GetError, Keyed, KeyedLease, KeyedManager, Verify};
use pikake_traps::{Builder, Task, WaitQueue, deadline_after, park, sleep_until, with_timer_slack};

use super::body::Body;
use super::connection::Connection;
use super::connector::{Connector, DialError, Versions};
use super::route::{Route, Via};
use crate::timer::SLACK;

/// How many hosts are remembered to speak HTTP/1.1 alone.
const KNOWN_HOSTS: usize = 1000;

/// How long a connection that came back may take to become idle.
const IDLE_WITHIN: Duration = Duration::from_secs(2);

/// After the first failure to connect to a host, for how long further requests fail at once; and at
/// most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Makes the pool's connections.
#[derive(Debug)]
pub(crate) struct Dialer(Connector);

impl KeyedManager<Route> for Dialer {
    type Object = Connection;
    type Error = DialError;

    async fn create(&self, route: &Route) -> Result<Connection, DialError> {
        self.0.dial(route).await
    }

    async fn verify(&self, _: &Route, connection: &mut Connection) -> Result<(), DialError> {
        Ok(connection.probe()?)
    }

    async fn clean(&self, _: &Route, connection: &mut Connection) -> Result<(), DialError> {
        Ok(connection.until_idle().await?)
    }

    fn is_dead(&self, _: &Route, connection: &Connection) -> bool {
        connection.is_dead()
    }

    fn is_clean(&self, _: &Route, connection: &Connection) -> bool {
        connection.is_idle()
    }

    async fn destroy(&self, _: &Route, connection: Connection) {
        connection.end().await;
    }
}

/// A lease of an HTTP/1.1 connection.
pub(crate) type Lease = KeyedLease<Route, Dialer>;

pub(crate) type TakeError = GetError<DialError>;

/// Limits of a client's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) per_host: usize,
    pub(crate) idle: Duration,
    pub(crate) wait: Option<Duration>,
}

/// An HTTP/2 connection that requests share.
struct Shared {
    connection: RefCell<Option<Connection>>,
    in_flight: Cell<usize>,
    /// How many requests have begun.
    begun: Cell<u64>,
    expiry: RefCell<Option<Task<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(expiry) = self.expiry.take() {
            expiry.abort();
        }
    }
}

/// A request on a shared connection.
pub(crate) struct InFlight(Rc<Shared>);

impl InFlight {
    fn new(shared: Rc<Shared>) -> Self {
        shared.in_flight.set(shared.in_flight.get() + 1);
        shared.begun.set(shared.begun.get() + 1);
        Self(shared)
    }

    /// What sends, the peer, and whether the connection was used before; `None` if the connection
    /// has ended.
    pub(crate) fn sender(&self) -> Option<(http2::SendRequest<Body>, std::net::SocketAddr, bool)> {
        let connection = self.0.connection.borrow();
        let connection = connection.as_ref()?;
        Some((connection.http2()?, connection.peer, self.0.begun.get() > 1))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}

/// The first dial to a host.
#[derive(Default)]
struct FirstDial {
    error: RefCell<Option<TakeError>>,
    has_ended: Cell<bool>,
    ended: WaitQueue,
}

/// Ends a first dial on drop.
struct Dialing<'a> {
    connections: &'a Connections,
    route: &'a Route,
    dial: Rc<FirstDial>,
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        self.connections.dialing.borrow_mut().remove(self.route);
        self.dial.has_ended.set(true);
        self.dial.ended.wake(usize::MAX);
    }
}

/// A connection for a request.
pub(crate) enum Taken {
    Http1(Lease),
    Http2(InFlight),
}

pub(crate) struct Connections {
    pool: Keyed<Route, Dialer>,
    versions: Versions,
    idle: Duration,
    shared: RefCell<HashMap<Route, Rc<Shared>>>,
    dialing: RefCell<HashMap<Route, Rc<FirstDial>>>,
    /// Hosts that were asked by TLS and spoke HTTP/1.1 the last time.
    http1_hosts: RefCell<HashSet<Route>>,
}

impl Connections {
    pub(crate) fn new(connector: Connector, limits: Limits) -> Self {
        let (versions, idle) = (connector.versions, limits.idle);
        let pool = Keyed::new(Dialer(connector), limits.connections, move |_, host| {
            host.limit(limits.per_host)
                .creations(limits.per_host)
                .max_idle_time(Some(limits.idle))
                .wait(limits.wait)
                .verify(Verify::Always)
                .clean_within(IDLE_WITHIN)
                .backoff(BACKOFF.0, BACKOFF.1)
        });
        Self {
            pool,
            versions,
            idle,
            shared: RefCell::default(),
            dialing: RefCell::default(),
            http1_hosts: RefCell::default(),
        }
    }

    /// A connection, idle, new or shared.
    pub(crate) async fn take(self: &Rc<Self>, route: &Route) -> Result<Taken, TakeError> {
        if !self.may_be_http2(route) {
            let lease = self.pool.get(route).await?;
            return Ok(self.sorted(route, lease));
        }
        loop {
            if let Some(shared) = self.shared(route) {
                return Ok(Taken::Http2(InFlight::new(shared)));
            }
            let dialing = self.dialing.borrow().get(route).cloned();
            let Some(dial) = dialing else { break };
            while !dial.has_ended.get() {
                park(&dial.ended).await.map_err(GetError::Interrupted)?;
            }
            if let Some(error) = &*dial.error.borrow() {
                return Err(error.clone());
            }
            if !self.may_be_http2(route) {
                let lease = self.pool.get(route).await?;
                return Ok(self.sorted(route, lease));
            }
        }
        let dial = Rc::<FirstDial>::default();
        self.dialing.borrow_mut().insert(route.clone(), dial.clone());
        let dialing = Dialing { connections: self, route, dial };
        match self.pool.get(route).await {
            Ok(lease) => Ok(self.sorted(route, lease)),
            Err(error) => {
                if !error.is_interrupted() {
                    dialing.dial.error.replace(Some(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Closes idle connections, and makes no more.
    pub(crate) async fn close(&self, within: Duration) {
        drop(self.shared.take());
        drop(self.pool.close(within).await);
    }

    fn may_be_http2(&self, route: &Route) -> bool {
        let is_end_to_end = !matches!(route.via, Via::Forward(_));
        is_end_to_end
            && match self.versions {
                Versions::Http1 => false,
                Versions::Http2 => true,
                Versions::Both => route.is_tls && !self.http1_hosts.borrow().contains(route),
            }
    }

    /// The living HTTP/2 connection of a host.
    fn shared(&self, route: &Route) -> Option<Rc<Shared>> {
        let found = self.shared.borrow().get(route).cloned()?;
        let is_dead = found.connection.borrow().as_ref().is_none_or(Connection::is_dead);
        if is_dead {
            self.forget(route, &found);
            return None;
        }
        Some(found)
    }

    fn forget(&self, route: &Route, shared: &Rc<Shared>) {
        let mut all = self.shared.borrow_mut();
        let removed = match all.get(route) {
            Some(found) if Rc::ptr_eq(found, shared) => all.remove(route),
            _ => None,
        };
        drop(all);
        drop(removed);
    }

    /// Shares a connection from the pool if it speaks HTTP/2.
    fn sorted(self: &Rc<Self>, route: &Route, mut lease: Lease) -> Taken {
        if lease.http1().is_none() {
            self.http1_hosts.borrow_mut().remove(route);
            return Taken::Http2(self.share(route, Lease::detach(lease)));
        }
        if self.may_be_http2(route) {
            let mut hosts = self.http1_hosts.borrow_mut();
            if hosts.len() >= KNOWN_HOSTS {
                hosts.clear();
            }
            hosts.insert(route.clone());
        }
        Taken::Http1(lease)
    }

    fn share(self: &Rc<Self>, route: &Route, connection: Connection) -> InFlight {
        let shared = Rc::new(Shared {
            connection: RefCell::new(Some(connection)),
            in_flight: Cell::default(),
            begun: Cell::default(),
            expiry: RefCell::default(),
        });
        let expiring =
            expire(Rc::downgrade(self), route.clone(), Rc::downgrade(&shared), self.idle);
        shared.expiry.replace(Some(Builder::new().name("http idle").spawn(expiring)));
        let in_flight = InFlight::new(shared.clone());
        let before = self.shared.borrow_mut().insert(route.clone(), shared);
        drop(before);
        in_flight
    }
}

/// Ends a shared connection that no request has used for so long.
async fn expire(
    connections: Weak<Connections>,
    route: Route,
    shared: Weak<Shared>,
    idle: Duration,
) {
    let mut before = 0;
    loop {
        let end = with_timer_slack(deadline_after(idle), idle / SLACK);
        if sleep_until(end).await.is_err() {
            return;
        }
        let Some(shared) = shared.upgrade() else { return };
        if shared.in_flight.get() == 0 && shared.begun.get() == before {
            // Its drop would end this task.
            drop(shared.expiry.take());
            if let Some(connections) = connections.upgrade() {
                connections.forget(&route, &shared);
            }
            let connection = shared.connection.take();
            if let Some(connection) = connection {
                connection.end().await;
            }
            return;
        }
        before = shared.begun.get();
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("versions", &self.versions).finish_non_exhaustive()
    }
}
