//! Looking names up, once for many who ask.
//!
//! A lookup is the slowest and least reliable step to a connection, and a busy program does it for
//! the same few names. So answers are kept for as long as they hold, and those who ask for a name
//! that is being looked up already wait for that lookup. It runs in a task of its own, since whoever
//! began it may be interrupted:
//!
//! ```text
//!            (1) known                    (3) answered: kept for its TTL
//!  ask ──────────────▶ answer   ┌──────────────────────────────────▶ all who ask
//!   │ (2) unknown               │
//!   └──────────────▶ flight ────┤ (4) nobody asks any more
//!        or joins one           └──────────────────────────────────▶ cancelled
//! ```
//!
//! (1) [`NameCache::get`]. (2) [`Resolver::lookup`]. (3) [`Landing::land`]. (4) the drop of
//! [`Flight`], which those who ask hold together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_traps::{Builder, CancelOnDrop, TimedOut, WaitQueue, park_at, timeout_after};

use crate::address::{ToAddresses, resolve_by};
use crate::error::interruption;
use crate::name_cache::{NameCache, Outcome};
use crate::names::{NameAnswer, NameError, NameSource, SystemNames};
use crate::tcp::TcpStream;

/// For how long an answer holds that does not say so itself, as the system's do not. Short enough to
/// follow a server that moves, long enough to spare a busy program nearly all lookups.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// For how long it holds that a name has no address, where that is not said; and any failure, so that
/// those who try again at once do not make it worse.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// The longest time for which an answer is believed, whatever it says.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long one attempt may take: that of the system's own resolver.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a lookup that was not answered is tried.
const ATTEMPTS: u32 = 2;

/// How long a lookup may take, with all its attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// How many names are kept.
const CAPACITY: usize = 1024;

#[derive(Clone, Copy)]
struct Settings {
    ttl: Duration,
    negative_ttl: Duration,
    attempt_timeout: Duration,
    attempts: u32,
    timeout: Duration,
}

/// Makes a [`Resolver`]. See [`Resolver::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct ResolverBuilder {
    source: Box<dyn NameSource>,
    settings: Settings,
    capacity: usize,
}

impl ResolverBuilder {
    /// Whom to ask, instead of the system.
    pub fn source(mut self, source: impl NameSource + 'static) -> Self {
        self.source = Box::new(source);
        self
    }

    /// For how long an answer holds that does not say so, instead of [`DEFAULT_TTL`]. With zero it
    /// is not kept.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// For how long a failure is kept, instead of [`NEGATIVE_TTL`].
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.settings.negative_ttl = ttl;
        self
    }

    /// How long one attempt may take (5 s), and how many there are (2).
    ///
    /// # Panics
    ///
    /// When there are to be none.
    #[track_caller]
    pub fn attempts(mut self, count: u32, timeout: Duration) -> Self {
        assert!(count > 0, "a lookup that is never tried has no answer");
        self.settings.attempts = count;
        self.settings.attempt_timeout = timeout;
        self
    }

    /// How long a lookup may take with all its attempts (10 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How many names are kept (1024).
    pub fn capacity(mut self, names: usize) -> Self {
        self.capacity = names;
        self
    }

    /// The resolver.
    pub fn build(self) -> Resolver {
        let Self { source, settings, capacity } = self;
        let cache = RefCell::new(NameCache::new(capacity));
        let flights = RefCell::default();
        Resolver { inner: Rc::new(Inner { source, settings, cache, flights }) }
    }
}

impl fmt::Debug for ResolverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolverBuilder").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

struct Inner {
    source: Box<dyn NameSource>,
    settings: Settings,
    cache: RefCell<NameCache>,
    /// What is being looked up.
    flights: RefCell<BTreeMap<String, Weak<Flight>>>,
}

/// Looks names up, keeps what was answered, and asks only once for many.
///
/// Clones share what they know. A resolver belongs to its kernel's thread.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use pikake_net::Resolver;
///
/// let resolver = Resolver::new();
/// for _ in 0..3 {
///     let stream = resolver.connect("example.org:80").await?; // one lookup
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Resolver {
    inner: Rc<Inner>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl Resolver {
    /// A resolver that asks the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// A resolver with something to set.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake_net::Resolver;
    /// use std::time::Duration;
    ///
    /// let resolver = Resolver::builder()
    ///     .ttl(Duration::from_secs(300))
    ///     .attempts(3, Duration::from_secs(1))
    ///     .timeout(Duration::from_secs(3))
    ///     .build();
    /// ```
    pub fn builder() -> ResolverBuilder {
        let settings = Settings {
            ttl: DEFAULT_TTL,
            negative_ttl: NEGATIVE_TTL,
            attempt_timeout: ATTEMPT_TIMEOUT,
            attempts: ATTEMPTS,
            timeout: LOOKUP_TIMEOUT,
        };
        ResolverBuilder { source: Box::new(SystemNames), settings, capacity: CAPACITY }
    }

    /// The addresses of a name, best first; at least one. An address in numbers is its own.
    ///
    /// # Cancellation
    ///
    /// An interruption point, unless the answer is known. Others who wait for the same name go on
    /// waiting; the lookup is given up when nobody does any more.
    ///
    /// # Errors
    ///
    /// [`NameError`], of the kind [`NotFound`](io::ErrorKind::NotFound) where it is known that there
    /// is no address, [`TimedOut`](io::ErrorKind::TimedOut) where nobody answered; the interruption.
    ///
    /// # Panics
    ///
    /// When polled outside a task.
    #[track_caller]
    pub fn lookup(&self, host: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + use<> {
        let (place, this, host) = (Location::caller(), self.clone(), host.to_owned());
        async move { this.lookup_at(host, place).await }
    }

    async fn lookup_at(
        &self,
        mut host: String,
        place: &'static Location<'static>,
    ) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        host.make_ascii_lowercase();
        let known = self.inner.cache.borrow_mut().get(&host);
        let outcome = match known {
            Some(outcome) => outcome,
            None => Flight::join(&self.inner, &host).landed(place).await?,
        };
        Ok(outcome?.to_vec())
    }

    /// Connects to a host as [`TcpStream::connect`] does, with the addresses from here.
    ///
    /// # Cancellation
    ///
    /// As for [`lookup`](Self::lookup) and [`TcpStream::connect`].
    ///
    /// # Errors
    ///
    /// As for [`TcpStream::connect`].
    ///
    /// # Panics
    ///
    /// When polled outside a task.
    #[track_caller]
    pub fn connect<A: ToAddresses>(
        &self,
        to: A,
    ) -> impl Future<Output = io::Result<TcpStream>> + use<A> {
        let (place, this) = (Location::caller(), self.clone());
        let resolving = resolve_by("connect to", to, move |host, port| async move {
            let addresses = this.lookup_at(host, place).await?;
            Ok(addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
        });
        async move { TcpStream::connect_resolved(resolving.await?, place).await }
    }

    /// How many names are known.
    pub fn known(&self) -> usize {
        self.inner.cache.borrow().len()
    }

    /// Forgets all names.
    pub fn forget(&self) {
        self.inner.cache.borrow_mut().clear();
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("known", &self.known())
            .field("under_way", &self.inner.flights.borrow().len())
            .finish_non_exhaustive()
    }
}

/// A lookup that is under way. Those who ask hold it, its task does not.
struct Flight {
    resolver: Weak<Inner>,
    host: String,
    outcome: RefCell<Option<Outcome>>,
    landed: WaitQueue,
    task: RefCell<Option<CancelOnDrop<()>>>,
}

impl Flight {
    fn join(resolver: &Rc<Inner>, host: &str) -> Rc<Self> {
        let under_way = resolver.flights.borrow().get(host).and_then(Weak::upgrade);
        if let Some(flight) = under_way {
            return flight;
        }
        let flight = Rc::new(Self {
            resolver: Rc::downgrade(resolver),
            host: host.to_owned(),
            outcome: RefCell::default(),
            landed: WaitQueue::new(),
            task: RefCell::default(),
        });
        resolver.flights.borrow_mut().insert(host.to_owned(), Rc::downgrade(&flight));
        let landing = Landing(Rc::downgrade(&flight));
        let (resolver, host) = (resolver.clone(), host.to_owned());
        let task = Builder::new().name(format!("look up {host}")).spawn(async move {
            let (outcome, ttl) = look_up(&resolver, &host).await;
            resolver.cache.borrow_mut().put(&host, outcome.clone(), ttl);
            landing.land(outcome);
        });
        *flight.task.borrow_mut() = Some(task.cancel_on_drop());
        flight
    }

    async fn landed(&self, place: &'static Location<'static>) -> io::Result<Outcome> {
        loop {
            if let Some(outcome) = self.outcome.borrow().clone() {
                return Ok(outcome);
            }
            park_at(&self.landed, place).await?;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(resolver) = self.resolver.upgrade() {
            let mut flights = resolver.flights.borrow_mut();
            // It may be somebody else's by now: one that began when this had been given up.
            if flights.get(&self.host).is_some_and(|flight| flight.strong_count() == 0) {
                flights.remove(&self.host);
            }
        }
    }
}

/// Held by the task of a flight: however that ends, those who wait are told.
struct Landing(Weak<Flight>);

impl Landing {
    fn land(&self, outcome: Outcome) {
        let Some(flight) = self.0.upgrade() else { return };
        flight.outcome.borrow_mut().get_or_insert(outcome);
        flight.landed.wake(usize::MAX);
        if let Some(resolver) = flight.resolver.upgrade() {
            // Those who ask from now on have it from the cache, or begin anew.
            resolver.flights.borrow_mut().remove(&flight.host);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(flight) = self.0.upgrade()
            && flight.outcome.borrow().is_none()
        {
            let error = io::Error::other("the lookup was ended from elsewhere");
            self.land(Err(NameError::new(&flight.host, error)));
        }
    }
}

/// Asks, as often as it takes. Also says for how long the outcome holds.
async fn look_up(resolver: &Inner, host: &str) -> (Outcome, Duration) {
    let Settings { ttl, negative_ttl, attempt_timeout, attempts, timeout } = resolver.settings;
    let asking = async {
        for _ in 0..attempts {
            match timeout_after(attempt_timeout, resolver.source.look_up(host)).await {
                Err(TimedOut) => {}
                Ok(answer) => return answer,
            }
        }
        let text = format!("no answer within {attempt_timeout:?}, asked {attempts} times");
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    };
    let answer = match timeout_after(timeout, asking).await {
        Ok(answer) => answer,
        Err(TimedOut) => {
            let text = format!("no answer within {timeout:?} in all");
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    };
    match answer {
        Ok(NameAnswer { addresses, ttl: said }) if !addresses.is_empty() => {
            (Ok(addresses.into()), said.unwrap_or(ttl).min(MAX_TTL))
        }
        Ok(NameAnswer { ttl: said, .. }) => {
            let error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            (Err(NameError::new(host, error)), said.unwrap_or(negative_ttl).min(MAX_TTL))
        }
        // A lookup that was ended says nothing about the name.
        Err(error) if interruption(&error).is_some() => {
            (Err(NameError::new(host, error)), Duration::ZERO)
        }
        Err(error) => (Err(NameError::new(host, error)), negative_ttl),
    }
}
