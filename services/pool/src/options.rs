//! The options of a pool.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::core::Joined;
use crate::limit::Limit;
use crate::manager::Manager;
use crate::pool::Pool;

/// How long a caller waits for an object, unless set otherwise.
pub const WAIT: Duration = Duration::from_secs(30);

/// How long an object may be idle, unless set otherwise: less than most firewalls and servers bear.
pub const MAX_IDLE_TIME: Duration = Duration::from_secs(10 * 60);

/// How long the cleaning, the verification or the end of an object may take, unless set otherwise.
pub const CLEAN_WITHIN: Duration = Duration::from_secs(5);

/// How long the creation of an object may take, unless set otherwise.
pub const CREATE_WITHIN: Duration = Duration::from_secs(30);

/// The time after the first failed creation in which no other one begins, unless set otherwise.
pub const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The greatest time between two failing creations, unless set otherwise.
pub const GREATEST_BACKOFF: Duration = Duration::from_secs(5);

/// How many objects are made at a time, unless set otherwise.
pub const CREATIONS: usize = 4;

/// Which of several idle objects goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// The one that came back last, so that the others become idle for long, and go.
    #[default]
    Lifo,
    /// The one that came back first, so that all are used alike.
    Fifo,
}

/// Which objects are verified on their way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verify {
    /// All, also new ones.
    Always,
    /// Those that were idle for at least this long.
    AfterIdle(Duration),
    /// None.
    Never,
}

/// Those that were idle for a second. A server's restart within that second is found by the user.
impl Default for Verify {
    fn default() -> Self {
        Self::AfterIdle(Duration::from_secs(1))
    }
}

/// The options of a pool, with their values.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) limit: usize,
    pub(crate) min_idle: usize,
    pub(crate) max_idle_time: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_uses: Option<u64>,
    pub(crate) creations: usize,
    pub(crate) reuse: Reuse,
    pub(crate) wait: Option<Duration>,
    pub(crate) verify: Verify,
    pub(crate) create_within: Option<Duration>,
    pub(crate) clean_within: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) warn_if_held_for: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: String::new(),
            limit: 10,
            min_idle: 0,
            max_idle_time: Some(MAX_IDLE_TIME),
            max_age: None,
            max_uses: None,
            creations: CREATIONS,
            reuse: Reuse::default(),
            wait: Some(WAIT),
            verify: Verify::default(),
            create_within: Some(CREATE_WITHIN),
            clean_within: CLEAN_WITHIN,
            backoff: (FIRST_BACKOFF, GREATEST_BACKOFF),
            warn_if_held_for: None,
        }
    }
}

/// Sets the options of a pool. Made by [`Pool::builder`].
///
/// # Examples
///
/// ```
/// # use pikake::pool::Manager;
/// # struct Connections;
/// # impl Manager for Connections {
/// #     type Object = ();
/// #     type Error = std::io::Error;
/// #     async fn create(&self) -> std::io::Result<()> { Ok(()) }
/// # }
/// use pikake::pool::{Pool, Verify};
/// use std::time::Duration;
///
/// let pool = Pool::builder(Connections)
///     .name("accounts")
///     .limit(20)
///     .max_age(Some(Duration::from_secs(1800)))
///     .verify(Verify::AfterIdle(Duration::from_secs(30)))
///     .build();
/// assert_eq!(pool.stats().limit, 20);
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder<M: Manager> {
    manager: M,
    options: Options,
    joined: Joined,
}

impl<M: Manager> Builder<M> {
    pub(crate) fn new(manager: M) -> Self {
        Self { manager, options: Options::default(), joined: Joined::default() }
    }

    /// Makes a pool of a [`Keyed`](crate::Keyed): `on_empty` is called when the pool has nothing,
    /// and the figures of all keys are shown together.
    pub(crate) fn for_key(mut self, figures_name: &str, on_empty: impl Fn() + 'static) -> Self {
        self.joined.on_empty = Some(Box::new(on_empty));
        self.joined.figures_name = Some(figures_name.to_owned());
        self
    }

    /// Sets a name, which errors, warnings, tasks and listings of waits show.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Sets how many objects there are at most, in use, idle, being made and being destroyed. The
    /// default is 10.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn limit(mut self, limit: usize) -> Self {
        assert!(limit > 0, "a pool lends at least one object: its limit is at least 1");
        self.options.limit = limit;
        self
    }

    /// Joins a limit that several pools have in common, beside the limit of this pool.
    pub fn common_limit(mut self, limit: &Limit) -> Self {
        self.joined.common = Some(limit.clone());
        self
    }

    /// Sets how many objects are kept idle, as far as the limit allows. The pool begins to make
    /// them at its first use. The default is 0.
    pub fn min_idle(mut self, min_idle: usize) -> Self {
        self.options.min_idle = min_idle;
        self
    }

    /// Sets how long an object may be idle before it is destroyed, unless
    /// [`min_idle`](Self::min_idle) keeps it. The default is [`MAX_IDLE_TIME`].
    pub fn max_idle_time(mut self, max_idle_time: Option<Duration>) -> Self {
        self.options.max_idle_time = max_idle_time;
        self
    }

    /// Sets the age at which an object is destroyed, as soon as it is not in use. Each object's age
    /// is up to a tenth less, at random, so that objects of one moment do not all go at one moment.
    /// By default no object is too old.
    pub fn max_age(mut self, max_age: Option<Duration>) -> Self {
        self.options.max_age = max_age;
        self
    }

    /// Sets how often an object is lent before it is destroyed. By default there is no limit.
    pub fn max_uses(mut self, max_uses: Option<u64>) -> Self {
        self.options.max_uses = max_uses;
        self
    }

    /// Sets how many objects are made at a time. The default is [`CREATIONS`].
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub fn creations(mut self, creations: usize) -> Self {
        assert!(creations > 0, "a pool makes at least one object at a time");
        self.options.creations = creations;
        self
    }

    /// Sets which of several idle objects goes out. The default is [`Reuse::Lifo`].
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.options.reuse = reuse;
        self
    }

    /// Sets how long [`get`](Pool::get) waits before it is
    /// [`Exhausted`](crate::GetError::Exhausted); `None`: until it is interrupted. The default is
    /// [`WAIT`].
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.options.wait = wait;
        self
    }

    /// Sets which objects are verified on their way out. The default is one second of
    /// [`Verify::AfterIdle`].
    pub fn verify(mut self, verify: Verify) -> Self {
        self.options.verify = verify;
        self
    }

    /// Sets how long [`create`](Manager::create) may take; `None`: for ever. A creation that takes
    /// longer has failed. The default is [`CREATE_WITHIN`].
    pub fn create_within(mut self, create_within: Option<Duration>) -> Self {
        self.options.create_within = create_within;
        self
    }

    /// Sets how long [`clean`](Manager::clean), [`verify`](Manager::verify) and
    /// [`destroy`](Manager::destroy) may take, each. The pool destroys an object that takes longer.
    /// The default is [`CLEAN_WITHIN`].
    pub fn clean_within(mut self, clean_within: Duration) -> Self {
        self.options.clean_within = clean_within;
        self
    }

    /// Sets the time after a failed creation in which no other one begins: `first` after the first
    /// one, then twice as long after each, up to `greatest`. The defaults are [`FIRST_BACKOFF`] and
    /// [`GREATEST_BACKOFF`].
    pub fn backoff(mut self, first: Duration, greatest: Duration) -> Self {
        self.options.backoff = (first, greatest);
        self
    }

    /// Sets how long a lease may be held before the pool warns, once of each lease: the log then
    /// has the task that got the lease, the call that asked for it, and how long ago that was. The
    /// lease stays good.
    ///
    /// By default the pool does not warn, since leases that are held for long are right for some
    /// objects, such as a connection that listens for notifications.
    /// [`Exhausted`](crate::Exhausted) names the holders in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pikake::pool::Manager;
    /// # struct Connections;
    /// # impl Manager for Connections {
    /// #     type Object = ();
    /// #     type Error = std::io::Error;
    /// #     async fn create(&self) -> std::io::Result<()> { Ok(()) }
    /// # }
    /// use pikake::pool::Pool;
    /// use std::time::Duration;
    ///
    /// // A request takes seconds. A lease that is out for a minute is forgotten, or its task hangs.
    /// let pool = Pool::builder(Connections).warn_if_held_for(Some(Duration::from_secs(60))).build();
    /// ```
    pub fn warn_if_held_for(mut self, length: Option<Duration>) -> Self {
        self.options.warn_if_held_for = length;
        self
    }

    /// Makes the pool. Its tasks begin at its first use.
    #[track_caller]
    pub fn build(self) -> Pool<M> {
        Pool::from_options(self.manager, self.options, self.joined, Location::caller())
    }
}

impl<M: Manager> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Builder").field(&self.options).finish()
    }
}
