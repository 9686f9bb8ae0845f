//! A pool, as programs have it.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use pikake_traps::{About, Interrupted, park_at, timed};

use crate::core::{Core, Joined, Phase};
use crate::error::{AddError, GetError};
use crate::holder::{Holder, holders_text};
use crate::lease::Lease;
use crate::manager::Manager;
use crate::options::{Builder, Options};
use crate::stats::Stats;
use crate::ticket::Ticket;

/// Objects that cost something to make, lent to one task at a time.
///
/// Clones are handles to the same pool. A pool belongs to the kernel of its first use, and closes
/// with it. A pool closes as well when its last handle is dropped; leases that are out then stay
/// good, and their objects are destroyed when they come back.
///
/// # Examples
///
/// ```
/// # use pikake::pool::Manager;
/// # struct Connections;
/// # impl Manager for Connections {
/// #     type Object = Vec<u8>;
/// #     type Error = std::io::Error;
/// #     async fn create(&self) -> std::io::Result<Vec<u8>> { Ok(Vec::new()) }
/// # }
/// use pikake::pool::Pool;
///
/// # pikake::sim::example(async {
/// let pool = Pool::new(Connections, 2);
/// let mut one = pool.get().await?;
/// one.push(1); // a lease is used as the object
/// let other = pool.get().await?;
/// assert!(pool.try_get().is_none(), "both are out");
/// drop(one);
/// assert_eq!(pool.stats().leased, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// A pool does not leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// fn check<M: pikake::pool::Manager>(pool: pikake::pool::Pool<M>) {
///     send(pool);
/// }
/// ```
pub struct Pool<M: Manager>(Rc<Handle<M>>);

/// What the handles have in common. The drop of the last one closes the pool.
struct Handle<M: Manager>(Rc<Core<M>>);

impl<M: Manager> Drop for Handle<M> {
    fn drop(&mut self) {
        self.0.begin_close();
    }
}

impl<M: Manager> Pool<M> {
    /// A pool of at most `limit` objects, with the default options.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn new(manager: M, limit: usize) -> Self {
        Self::builder(manager).limit(limit).build()
    }

    /// A pool with other options.
    pub fn builder(manager: M) -> Builder<M> {
        Builder::new(manager)
    }

    pub(crate) fn from_options(
        manager: M,
        options: Options,
        joined: Joined,
        built_at: &'static Location<'static>,
    ) -> Self {
        Self(Rc::new(Handle(Rc::new(Core::new(manager, options, joined, built_at)))))
    }

    fn core(&self) -> &Rc<Core<M>> {
        &self.0.0
    }

    /// The manager.
    pub fn manager(&self) -> &M {
        &self.core().manager
    }

    /// Borrows an object: an idle one, one that comes back, or a new one.
    ///
    /// Callers are served in the order of asking. The call does not suspend if an object is idle
    /// that need not be verified and nobody waits.
    ///
    /// # Cancellation
    ///
    /// An interruption point, if the call has to wait. A call that is interrupted or dropped takes
    /// no object: one that was already given to it goes to the next caller, and one that is being
    /// made for it is kept for the next caller.
    ///
    /// # Errors
    ///
    /// [`GetError`].
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel. In another kernel than that of the pool's first use.
    #[track_caller]
    #[inline]
    pub fn get(&self) -> impl Future<Output = Result<Lease<M>, GetError<M::Error>>> {
        self.get_at(Location::caller(), self.core().options.wait)
    }

    /// [`get`](Self::get), waiting for at most this long instead of as long as
    /// [`wait`](Builder::wait) says.
    ///
    /// # Errors
    ///
    /// [`GetError`].
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    #[track_caller]
    #[inline]
    pub fn get_timeout(
        &self,
        length: Duration,
    ) -> impl Future<Output = Result<Lease<M>, GetError<M::Error>>> {
        self.get_at(Location::caller(), Some(length))
    }

    #[inline]
    pub(crate) async fn get_at(
        &self,
        place: &'static Location<'static>,
        wait: Option<Duration>,
    ) -> Result<Lease<M>, GetError<M::Error>> {
        let core = self.core();
        core.open();
        match core.take_ready(place) {
            Some(lease) => Ok(lease),
            None => self.wait_for(place, wait).await,
        }
    }

    async fn wait_for(
        &self,
        place: &'static Location<'static>,
        wait: Option<Duration>,
    ) -> Result<Lease<M>, GetError<M::Error>> {
        let core = self.core();
        if core.phase() != Phase::Open {
            return Err(GetError::Closed);
        }
        let ticket = Ticket::new(core, core.enter(place));
        core.serve();
        let Some(wait) = wait else { return ticket.wait().await? };
        let waited = timed(wait, ticket.wait()).await;
        match waited.output {
            Some(Ok(answer)) => answer,
            _ if waited.expired => Err(GetError::Exhausted(core.exhausted(wait))),
            Some(Err(interrupted)) => Err(interrupted.into()),
            None => unreachable!("a wait that can be interrupted is not dropped"),
        }
    }

    /// Borrows an object that is idle and need not be verified, if nobody waits. Never suspends,
    /// and makes no object.
    ///
    /// # Panics
    ///
    /// As [`get`](Self::get).
    #[track_caller]
    pub fn try_get(&self) -> Option<Lease<M>> {
        self.core().open();
        self.core().take_ready(Location::caller())
    }

    /// Adds an object that was made elsewhere.
    ///
    /// # Errors
    ///
    /// [`AddError`], with the object: the pool is full or closed.
    ///
    /// # Panics
    ///
    /// Outside a kernel. In another kernel than that of the pool's first use.
    #[track_caller]
    pub fn add(&self, object: M::Object) -> Result<(), AddError<M::Object>> {
        self.core().add(object).map_err(|(object, why)| AddError { object, why })
    }

    /// Destroys the idle objects for which `is_kept` returns `false`, and returns their number.
    ///
    /// For objects that went bad together, such as the connections to a server that was replaced.
    /// Asks about the objects that are idle now, those first that came back first. Objects in use
    /// are not asked about, and neither are those that are being verified or cleaned. The tasks of
    /// the pool [destroy](Manager::destroy) the objects later.
    ///
    /// While `is_kept` runs, none of these objects is lent. It may use the pool otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pikake::pool::Manager;
    /// # struct Connections;
    /// # impl Manager for Connections {
    /// #     type Object = String;
    /// #     type Error = std::io::Error;
    /// #     async fn create(&self) -> std::io::Result<String> { Ok("old server".into()) }
    /// # }
    /// use pikake::pool::Pool;
    ///
    /// # pikake::sim::example(async {
    /// let pool = Pool::new(Connections, 2);
    /// drop(pool.get().await?);
    /// assert_eq!(pool.retain(|server| server != "old server"), 1);
    /// assert_eq!(pool.stats().idle, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Panics
    ///
    /// If `is_kept` panics. The pool then keeps all these objects.
    pub fn retain(&self, is_kept: impl FnMut(&M::Object) -> bool) -> usize {
        self.core().retain(is_kept)
    }

    /// Sets the greatest number of objects. If there are more, the pool destroys idle ones, and
    /// leased ones when they come back.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn resize(&self, limit: usize) {
        assert!(limit > 0, "a pool lends at least one object: its limit is at least 1");
        self.core().resize(limit);
    }

    /// Closes the pool, and waits at most this long until all objects have come back and are
    /// destroyed.
    ///
    /// The pool is closed at once, also if the returned future is not awaited: callers who wait get
    /// [`Closed`](GetError::Closed). Objects that come back later are destroyed as well.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption ends the wait, and is in the report.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel, unless nothing is left.
    #[track_caller]
    pub fn close(&self, within: Duration) -> impl Future<Output = CloseReport> + use<M> {
        self.begin_close();
        self.close_at(Location::caller(), within)
    }

    pub(crate) fn begin_close(&self) {
        self.core().begin_close();
    }

    /// Waits for the end of a pool that is closed.
    pub(crate) fn close_at(
        &self,
        place: &'static Location<'static>,
        within: Duration,
    ) -> impl Future<Output = CloseReport> + use<M> {
        let core = self.core().clone();
        async move {
            let about = || {
                let (left, label) = (core.total(), core.label());
                About::new(format!("end of pool{label}, with {left} objects left"))
                    .owned_by(core.owners())
            };
            let empty = async {
                while core.total() > 0 {
                    park_at((&core.ends, about), place).await?;
                }
                Ok::<(), Interrupted>(())
            };
            let interrupted = match core.total() {
                0 => None,
                _ => {
                    let closed = timed(within, empty).await;
                    closed.output.and_then(Result::err).filter(|_| !closed.expired)
                }
            };
            let holders = core.holders();
            let left = core.total() - holders.len();
            CloseReport { holders, left, interrupted }
        }
    }

    pub(crate) fn default_wait(&self) -> Option<Duration> {
        self.core().options.wait
    }

    /// Whether the pool is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.core().phase(), Phase::Closing | Phase::Ended)
    }

    /// The figures of the pool.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }

    /// The holders of leases, the oldest first.
    pub fn holders(&self) -> Vec<Holder> {
        self.core().holders()
    }
}

impl<M: Manager> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Manager> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stats, core) = (self.stats(), self.core());
        f.debug_struct("Pool")
            .field("name", &core.options.name)
            .field("limit", &stats.limit)
            .field("idle", &stats.idle)
            .field("leased_by", &self.holders())
            .field("waiting", &stats.waiting)
            .finish_non_exhaustive()
    }
}

/// What was left of a pool when [`Pool::close`] returned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CloseReport {
    /// The holders of leases that are still out, the oldest first.
    pub holders: Vec<Holder>,
    /// How many objects are back and not destroyed yet.
    pub left: usize,
    /// The interruption that ended the wait before its time.
    pub interrupted: Option<Interrupted>,
}

impl CloseReport {
    /// Adds what was left of another pool.
    pub(crate) fn add(&mut self, other: Self) {
        self.holders.extend(other.holders);
        self.left += other.left;
        self.interrupted = self.interrupted.take().or(other.interrupted);
    }

    /// Whether all objects came back and are destroyed.
    pub fn is_complete(&self) -> bool {
        self.holders.is_empty() && self.left == 0
    }
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_complete() {
            return f.write_str("all objects came back and are destroyed");
        }
        write!(f, "{} objects are not destroyed yet", self.holders.len() + self.left)?;
        if !self.holders.is_empty() {
            write!(f, ", {}", holders_text(&self.holders, self.holders.len()))?;
        }
        Ok(())
    }
}
