//! Name lookup with a cache and shared lookups.
//!
//! A lookup is the slowest and least reliable step to a connection, and a busy program does it for
//! the same few names. So answers are cached for their TTL, and callers that ask for the same name
//! share one lookup. It runs in a task of its own, since its first caller may be interrupted:
//!
//! ```text
//!             (1) known                    (3) answered: cached for its TTL
//!  call ──────────────▶ answer   ┌──────────────────────────────────▶ all callers
//!   │ (2) unknown                │
//!   └──────────────▶ lookup ─────┤ (4) no caller waits any more
//!       new, or shared           └──────────────────────────────────▶ cancelled
//! ```
//!
//! (1) [`NameCache::get`]. (2) [`SharedLookup::join`]. (3) [`LookupEnd::finish`]. (4) The drop of
//! [`SharedLookup`], which all callers share.

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

use crate::address::{ToSocketAddrs, resolve_by};
use crate::error::interruption;
use crate::name_cache::{NameCache, Outcome};
use crate::names::{NameAnswer, NameError, NameSource, SystemNames};
use crate::tcp::TcpStream;

/// The TTL of an answer without one, as the system's answers are. Short enough to follow a server
/// that moves, long enough to spare a busy program nearly all lookups.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The TTL of a failure, or of an answer without addresses and TTL. It limits the load by callers
/// that retry at once.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// The longest TTL of an answer; longer ones are cut to it.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The timeout of one attempt, as in the system's resolver.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of attempts of a lookup.
const ATTEMPTS: u32 = 2;

/// The timeout of a lookup with all its attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The default capacity of the cache, in names.
const CAPACITY: usize = 1024;

#[derive(Clone, Copy)]
struct Settings {
    ttl: Duration,
    negative_ttl: Duration,
    attempt_timeout: Duration,
    attempts: u32,
    timeout: Duration,
}

/// Builds a [`Resolver`]. See [`Resolver::builder`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct ResolverBuilder {
    source: Box<dyn NameSource>,
    settings: Settings,
    capacity: usize,
}

impl ResolverBuilder {
    /// Sets the source of names, instead of the system.
    pub fn source(mut self, source: impl NameSource + 'static) -> Self {
        self.source = Box::new(source);
        self
    }

    /// Sets the TTL of answers without one, instead of [`DEFAULT_TTL`]. With zero they are not
    /// cached.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets the TTL of failures, instead of [`NEGATIVE_TTL`].
    pub fn negative_ttl(mut self, ttl: Duration) -> Self {
        self.settings.negative_ttl = ttl;
        self
    }

    /// Sets the number of attempts (2) and the timeout of each (5 s).
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn attempts(mut self, count: u32, timeout: Duration) -> Self {
        assert!(count > 0, "a lookup needs at least one attempt");
        self.settings.attempts = count;
        self.settings.attempt_timeout = timeout;
        self
    }

    /// Sets the timeout of a lookup with all its attempts (10 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets the capacity of the cache (1024 names).
    pub fn capacity(mut self, names: usize) -> Self {
        self.capacity = names;
        self
    }

    /// Builds the resolver.
    pub fn build(self) -> Resolver {
        let Self { source, settings, capacity } = self;
        let cache = RefCell::new(NameCache::new(capacity));
        let lookups = RefCell::default();
        Resolver { inner: Rc::new(Inner { source, settings, cache, lookups }) }
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
    /// The running lookups.
    lookups: RefCell<BTreeMap<String, Weak<SharedLookup>>>,
}

/// Looks names up, caches the answers, and shares lookups between callers.
///
/// Clones share one cache. A resolver belongs to its kernel's thread.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::Resolver;
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
    /// Creates a resolver that asks the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a builder with the default settings.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::net::Resolver;
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

    /// The addresses of a name, best first; at least one. A numeric address needs no lookup.
    ///
    /// # Cancellation
    ///
    /// An interruption point, unless the answer is cached. Other callers of the same name keep
    /// waiting; the last one to leave cancels the lookup.
    ///
    /// # Errors
    ///
    /// [`NameError`], of the kind [`NotFound`](io::ErrorKind::NotFound) if the source says that
    /// there is no address, [`TimedOut`](io::ErrorKind::TimedOut) if there was no answer in time;
    /// the interruption.
    ///
    /// # Panics
    ///
    /// If polled outside a task.
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
            None => SharedLookup::join(&self.inner, &host).outcome(place).await?,
        };
        Ok(outcome?.to_vec())
    }

    /// Connects to a host as [`TcpStream::connect`], with addresses from this resolver.
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
    /// If polled outside a task.
    #[track_caller]
    pub fn connect<A: ToSocketAddrs>(
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

    /// The number of cached names.
    pub fn known(&self) -> usize {
        self.inner.cache.borrow().len()
    }

    /// Clears the cache.
    pub fn forget(&self) {
        self.inner.cache.borrow_mut().clear();
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("known", &self.known())
            .field("under_way", &self.inner.lookups.borrow().len())
            .finish_non_exhaustive()
    }
}

/// A running lookup. Its callers hold it, its task does not.
struct SharedLookup {
    resolver: Weak<Inner>,
    host: String,
    outcome: RefCell<Option<Outcome>>,
    waiters: WaitQueue,
    task: RefCell<Option<CancelOnDrop<()>>>,
}

impl SharedLookup {
    fn join(resolver: &Rc<Inner>, host: &str) -> Rc<Self> {
        let under_way = resolver.lookups.borrow().get(host).and_then(Weak::upgrade);
        if let Some(lookup) = under_way {
            return lookup;
        }
        let lookup = Rc::new(Self {
            resolver: Rc::downgrade(resolver),
            host: host.to_owned(),
            outcome: RefCell::default(),
            waiters: WaitQueue::new(),
            task: RefCell::default(),
        });
        resolver.lookups.borrow_mut().insert(host.to_owned(), Rc::downgrade(&lookup));
        let end = LookupEnd(Rc::downgrade(&lookup));
        let (resolver, host) = (resolver.clone(), host.to_owned());
        let task = Builder::new().name(format!("look up {host}")).spawn(async move {
            let (outcome, ttl) = look_up(&resolver, &host).await;
            resolver.cache.borrow_mut().put(&host, outcome.clone(), ttl);
            end.finish(outcome);
        });
        *lookup.task.borrow_mut() = Some(task.cancel_on_drop());
        lookup
    }

    async fn outcome(&self, place: &'static Location<'static>) -> io::Result<Outcome> {
        loop {
            if let Some(outcome) = self.outcome.borrow().clone() {
                return Ok(outcome);
            }
            park_at(&self.waiters, place).await?;
        }
    }
}

impl Drop for SharedLookup {
    fn drop(&mut self) {
        if let Some(resolver) = self.resolver.upgrade() {
            let mut lookups = resolver.lookups.borrow_mut();
            // A new lookup of the same name may have replaced this one.
            if lookups.get(&self.host).is_some_and(|lookup| lookup.strong_count() == 0) {
                lookups.remove(&self.host);
            }
        }
    }
}

/// Held by the task of a lookup: wakes the callers at any end of the task.
struct LookupEnd(Weak<SharedLookup>);

impl LookupEnd {
    fn finish(&self, outcome: Outcome) {
        let Some(lookup) = self.0.upgrade() else { return };
        lookup.outcome.borrow_mut().get_or_insert(outcome);
        lookup.waiters.wake(usize::MAX);
        if let Some(resolver) = lookup.resolver.upgrade() {
            // Later callers use the cache, or begin a new lookup.
            resolver.lookups.borrow_mut().remove(&lookup.host);
        }
    }
}

impl Drop for LookupEnd {
    fn drop(&mut self) {
        let Some(lookup) = self.0.upgrade() else { return };
        if lookup.outcome.borrow().is_none() {
            let error = io::Error::other("the task of the lookup ended without an answer");
            self.finish(Err(NameError::new(&lookup.host, error)));
        }
    }
}

/// Asks the source, with retries. Returns the outcome with its TTL.
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
        Ok(NameAnswer { addresses, ttl: given }) if !addresses.is_empty() => {
            (Ok(addresses.into()), given.unwrap_or(ttl).min(MAX_TTL))
        }
        Ok(NameAnswer { ttl: given, .. }) => {
            let error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            (Err(NameError::new(host, error)), given.unwrap_or(negative_ttl).min(MAX_TTL))
        }
        // An interruption says nothing about the name.
        Err(error) if interruption(&error).is_some() => {
            (Err(NameError::new(host, error)), Duration::ZERO)
        }
        Err(error) => (Err(NameError::new(host, error)), negative_ttl),
    }
}
