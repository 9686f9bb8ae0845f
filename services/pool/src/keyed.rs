//! A pool for each key, under one limit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_traps::Instant;

use crate::error::{AddError, GetError, NotAdded};
use crate::lease::Lease;
use crate::limit::Limit;
use crate::manager::Manager;
use crate::options::Builder;
use crate::pool::{CloseReport, Pool};
use crate::stats::Stats;

/// Makes the objects of a [`Keyed`] pool: a [`Manager`] whose methods have the key.
pub trait KeyedManager<K>: 'static {
    /// What the pool lends.
    type Object: 'static;

    /// Why an object could not be made, or is of no use any more.
    type Error: Error + 'static;

    /// As [`Manager::create`].
    fn create(&self, key: &K) -> impl Future<Output = Result<Self::Object, Self::Error>>;

    /// As [`Manager::verify`].
    fn verify(
        &self,
        key: &K,
        object: &mut Self::Object,
    ) -> impl Future<Output = Result<(), Self::Error>> {
        let _ = (key, object);
        async { Ok(()) }
    }

    /// As [`Manager::clean`].
    fn clean(
        &self,
        key: &K,
        object: &mut Self::Object,
    ) -> impl Future<Output = Result<(), Self::Error>> {
        let _ = (key, object);
        async { Ok(()) }
    }

    /// As [`Manager::is_dead`].
    fn is_dead(&self, key: &K, object: &Self::Object) -> bool {
        let _ = (key, object);
        false
    }

    /// As [`Manager::is_clean`].
    fn is_clean(&self, key: &K, object: &Self::Object) -> bool {
        let _ = (key, object);
        false
    }

    /// As [`Manager::destroy`].
    fn destroy(&self, key: &K, object: Self::Object) -> impl Future<Output = ()> {
        let _ = key;
        async { drop(object) }
    }
}

/// The manager of one key's pool.
pub struct ForKey<K, M> {
    key: K,
    manager: Rc<M>,
}

impl<K, M> ForKey<K, M> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The manager of all keys.
    pub fn manager(&self) -> &M {
        &self.manager
    }
}

impl<K: fmt::Debug, M> fmt::Debug for ForKey<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForKey").field(&self.key).finish()
    }
}

impl<K: 'static, M: KeyedManager<K>> Manager for ForKey<K, M> {
    type Object = M::Object;
    type Error = M::Error;

    fn create(&self) -> impl Future<Output = Result<M::Object, M::Error>> {
        self.manager.create(&self.key)
    }

    fn verify(&self, object: &mut M::Object) -> impl Future<Output = Result<(), M::Error>> {
        self.manager.verify(&self.key, object)
    }

    fn clean(&self, object: &mut M::Object) -> impl Future<Output = Result<(), M::Error>> {
        self.manager.clean(&self.key, object)
    }

    fn is_dead(&self, object: &M::Object) -> bool {
        self.manager.is_dead(&self.key, object)
    }

    fn is_clean(&self, object: &M::Object) -> bool {
        self.manager.is_clean(&self.key, object)
    }

    fn destroy(&self, object: M::Object) -> impl Future<Output = ()> {
        self.manager.destroy(&self.key, object)
    }
}

/// A lease of a [`Keyed`] pool.
pub type KeyedLease<K, M> = Lease<ForKey<K, M>>;

/// What [`Keyed::get`] gives.
type Got<K, M> = Result<KeyedLease<K, M>, GetError<<M as KeyedManager<K>>::Error>>;

/// A pool for each key, such as scheme, host and port: under one limit for all keys, and one for
/// each.
///
/// A key's pool begins with its first caller, and goes when its last object is gone. If the limit
/// of all keys is reached, a new object takes the place of another key's object: of that one which
/// has been idle for longest, if that is longer than a creation takes. [`Limit`] says when keys
/// with objects in use give one up.
///
/// # Examples
///
/// ```
/// use pikake::pool::{Keyed, KeyedManager};
/// use std::convert::Infallible;
///
/// struct Connections;
///
/// impl KeyedManager<&'static str> for Connections {
///     type Object = String;
///     type Error = Infallible;
///
///     async fn create(&self, host: &&'static str) -> Result<String, Infallible> {
///         Ok(format!("connection to {host}"))
///     }
/// }
///
/// # pikake::sim::example(async {
/// let pools = Keyed::new(Connections, 100, |_host, pool| pool.limit(6));
/// assert_eq!(*pools.get(&"example.org").await?, "connection to example.org");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct Keyed<K: 'static, M: KeyedManager<K>>(Rc<Pools<K, M>>);

struct Pools<K: 'static, M: KeyedManager<K>> {
    manager: Rc<M>,
    limit: Limit,
    each: Each<K, M>,
    pools: RefCell<BTreeMap<K, Pool<ForKey<K, M>>>>,
    is_closed: Cell<bool>,
}

/// Sets the options of a key's pool.
type Each<K, M> = Box<dyn Fn(&K, Builder<ForKey<K, M>>) -> Builder<ForKey<K, M>>>;

impl<K: Ord + Clone + fmt::Debug + 'static, M: KeyedManager<K>> Keyed<K, M> {
    /// Pools of at most `limit` objects together. `each` sets the options of a key's pool, for
    /// example its own limit.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn new(
        manager: M,
        limit: usize,
        each: impl Fn(&K, Builder<ForKey<K, M>>) -> Builder<ForKey<K, M>> + 'static,
    ) -> Self {
        Self::with_limit(manager, &Limit::new(limit), each)
    }

    /// Pools under a limit that others have in common, for example those of other kernels.
    pub fn with_limit(
        manager: M,
        limit: &Limit,
        each: impl Fn(&K, Builder<ForKey<K, M>>) -> Builder<ForKey<K, M>> + 'static,
    ) -> Self {
        Self(Rc::new(Pools {
            manager: Rc::new(manager),
            limit: limit.clone(),
            each: Box::new(each),
            pools: RefCell::default(),
            is_closed: Cell::new(false),
        }))
    }

    /// The pool of a key, which is made if there is none.
    fn pool(&self, key: &K) -> Option<Pool<ForKey<K, M>>> {
        if let Some(pool) = self.0.pools.borrow().get(key) {
            return Some(pool.clone());
        }
        if self.0.is_closed.get() {
            return None;
        }
        let manager = ForKey { key: key.clone(), manager: self.0.manager.clone() };
        let builder = Pool::builder(manager).name(format!("{key:?}")).limit(self.0.limit.limit());
        let builder = (self.0.each)(key, builder).common_limit(&self.0.limit);
        let (pools, key) = (Rc::downgrade(&self.0), key.clone());
        let pool = {
            let key = key.clone();
            builder.for_key(manager_name::<M>(), move || forget(&pools, &key)).build()
        };
        self.0.pools.borrow_mut().insert(key, pool.clone());
        Some(pool)
    }

    /// Borrows an object of this key. See [`Pool::get`].
    ///
    /// # Errors
    ///
    /// [`GetError`].
    ///
    /// # Panics
    ///
    /// As [`Pool::get`].
    #[track_caller]
    pub fn get(&self, key: &K) -> impl Future<Output = Got<K, M>> {
        self.get_at(key, Location::caller(), None)
    }

    /// [`get`](Self::get), waiting for at most this long.
    ///
    /// # Errors
    ///
    /// [`GetError`].
    ///
    /// # Panics
    ///
    /// As [`Pool::get`].
    #[track_caller]
    pub fn get_timeout(&self, key: &K, length: Duration) -> impl Future<Output = Got<K, M>> {
        self.get_at(key, Location::caller(), Some(length))
    }

    async fn get_at(
        &self,
        key: &K,
        place: &'static Location<'static>,
        wait: Option<Duration>,
    ) -> Got<K, M> {
        let pool = self.pool(key).ok_or(GetError::Closed)?;
        let wait = wait.map_or(pool.default_wait(), Some);
        pool.get_at(place, wait).await
    }

    /// Borrows an idle object of this key that need not be verified, if nobody waits. See
    /// [`Pool::try_get`].
    ///
    /// # Panics
    ///
    /// As [`Pool::get`].
    #[track_caller]
    pub fn try_get(&self, key: &K) -> Option<KeyedLease<K, M>> {
        let pool = self.0.pools.borrow().get(key)?.clone();
        pool.try_get()
    }

    /// Adds an object that was made elsewhere. See [`Pool::add`].
    ///
    /// # Errors
    ///
    /// [`AddError`], with the object: the key's pool is full, the limit is reached, or the pools
    /// are closed.
    ///
    /// # Panics
    ///
    /// As [`Pool::add`].
    #[track_caller]
    pub fn add(&self, key: &K, object: M::Object) -> Result<(), AddError<M::Object>> {
        match self.pool(key) {
            Some(pool) => pool.add(object),
            None => Err(AddError { object, why: NotAdded::Closed }),
        }
    }

    /// Closes all pools, and waits at most this long until all objects have come back and are
    /// destroyed. See [`Pool::close`].
    #[track_caller]
    pub fn close(&self, within: Duration) -> impl Future<Output = CloseReport> + use<K, M> {
        let place = Location::caller();
        self.0.is_closed.set(true);
        let pools: Vec<_> = self.0.pools.take().into_values().collect();
        pools.iter().for_each(Pool::begin_close);
        async move {
            let mut report = CloseReport::default();
            let begin = (!pools.is_empty()).then(Instant::now);
            for pool in &pools {
                let spent = begin.map_or(Duration::ZERO, Instant::elapsed);
                report.add(pool.close_at(place, within.saturating_sub(spent)).await);
            }
            report
        }
    }

    /// Whether the pools are closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.get()
    }

    /// Destroys the idle objects of all keys for which `is_kept` returns `false`, and returns their
    /// number. See [`Pool::retain`].
    pub fn retain(&self, mut is_kept: impl FnMut(&K, &M::Object) -> bool) -> usize {
        let pools: Vec<_> = self.0.pools.borrow().values().cloned().collect();
        pools.iter().map(|pool| pool.retain(|object| is_kept(pool.manager().key(), object))).sum()
    }

    /// The keys that have a pool, with its figures.
    pub fn stats(&self) -> Vec<(K, Stats)> {
        let pools = self.0.pools.borrow();
        pools.iter().map(|(key, pool)| (key.clone(), pool.stats())).collect()
    }

    /// The limit of all keys.
    pub fn limit(&self) -> &Limit {
        &self.0.limit
    }
}

/// The name of a manager's type, without its path and its parameters.
fn manager_name<M>() -> &'static str {
    let path = std::any::type_name::<M>();
    let path = path.split_once('<').map_or(path, |(path, _)| path);
    path.rsplit_once("::").map_or(path, |(_, name)| name)
}

/// Forgets the pool of a key that has nothing.
fn forget<K: Ord, M: KeyedManager<K>>(pools: &Weak<Pools<K, M>>, key: &K) {
    let Some(pools) = pools.upgrade() else { return };
    let pool = pools.pools.borrow_mut().remove(key);
    drop(pool);
}

impl<K: 'static, M: KeyedManager<K>> Clone for Keyed<K, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: fmt::Debug + 'static, M: KeyedManager<K>> fmt::Debug for Keyed<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.pools.borrow().iter()).finish()
    }
}
