//! Pools of several kernels that lend the same objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::Kept;
use crate::limit::Limit;
use crate::manager::Manager;
use crate::options::Builder;
use crate::pool::Pool;

/// Objects for several kernels of a process, under one limit: a kernel that needs an object gets
/// one that another kernel has idle, or the next one that comes back.
///
/// Each kernel has its own [`pool`](Self::pool), in which its tasks wait and its objects are
/// cleaned. An object moves only if a caller of another kernel has waited longer than all callers
/// of this one.
///
/// An object that is [`Send`] and works on any kernel is rare. A socket belongs to its kernel, so a
/// pool of connections is usually one `Pool` for each kernel, with a common [`Limit`].
///
/// # Examples
///
/// ```
/// # use pikake::pool::Manager;
/// # #[derive(Clone)]
/// # struct Buffers;
/// # impl Manager for Buffers {
/// #     type Object = Vec<u8>;
/// #     type Error = std::io::Error;
/// #     async fn create(&self) -> std::io::Result<Vec<u8>> { Ok(Vec::new()) }
/// # }
/// use pikake::pool::Shared;
///
/// let shared = Shared::new(Buffers, 8, |pool| pool.name("buffers"));
/// let threads: Vec<_> = (0..2)
///     .map(|_| {
///         let shared = shared.clone();
///         std::thread::spawn(move || {
///             pikake::run(async move {
///                 let pool = shared.pool();
///                 let mut buffer = pool.get().await.unwrap();
///                 buffer.clear();
///             })
///         })
///     })
///     .collect();
/// threads.into_iter().for_each(|thread| thread.join().unwrap());
/// ```
pub struct Shared<M: Manager>(Arc<Common<M>>);

struct Common<M: Manager> {
    manager: M,
    limit: Limit,
    mail: Mail<M::Object>,
    each: Box<dyn Fn(Builder<M>) -> Builder<M> + Send + Sync>,
}

impl<M> Shared<M>
where
    M: Manager<Object: Send> + Clone + Send + Sync,
{
    /// Pools of at most `limit` objects together. `each` sets the options of a kernel's pool; its
    /// limit is at most `limit`.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn new(
        manager: M,
        limit: usize,
        each: impl Fn(Builder<M>) -> Builder<M> + Send + Sync + 'static,
    ) -> Self {
        let limit = Limit::new(limit);
        Self(Arc::new(Common { manager, limit, mail: Mail::default(), each: Box::new(each) }))
    }

    /// A new pool, for the kernel that uses it first.
    #[track_caller]
    pub fn pool(&self) -> Pool<M> {
        let Common { manager, limit, mail, each } = &*self.0;
        let builder = each(Pool::builder(manager.clone()).limit(limit.limit()));
        builder.common_limit(limit).exchange(mail.clone()).build()
    }

    /// The limit that the pools have in common.
    pub fn limit(&self) -> &Limit {
        &self.0.limit
    }
}

impl<M: Manager> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Manager> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.0.limit).finish()
    }
}

/// An object on its way to another kernel.
pub(crate) struct Parcel<T> {
    pub(crate) kept: Kept<T>,
    /// How long the object may still live.
    pub(crate) left: Option<Duration>,
    pub(crate) idle_for: Duration,
}

/// Where objects for other kernels are left.
pub(crate) trait Exchange<T> {
    /// A number that the pools of this exchange have in common, and no other pool has.
    fn mark(&self) -> usize;

    /// Leaves an object for the pool with this number.
    fn send(&self, to: u64, parcel: Parcel<T>);

    /// Takes the objects for the pool with this number.
    fn receive(&self, to: u64) -> Vec<Parcel<T>>;
}

/// Objects by the number of the pool that they are for.
struct Mail<T>(Arc<Mutex<BTreeMap<u64, Vec<Parcel<T>>>>>);

impl<T> Mail<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Parcel<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Mail<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Mail<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send> Exchange<T> for Mail<T> {
    fn mark(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn send(&self, to: u64, parcel: Parcel<T>) {
        self.lock().entry(to).or_default().push(parcel);
    }

    fn receive(&self, to: u64) -> Vec<Parcel<T>> {
        self.lock().remove(&to).unwrap_or_default()
    }
}
