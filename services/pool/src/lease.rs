//! A borrowed object.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use crate::core::Core;
use crate::idle::Kept;
use crate::manager::Manager;

/// An object of a pool, borrowed. Its drop gives the object back.
///
/// The drop never waits, and does not panic if the manager does: a cleaning that has to wait is
/// left to a task of the pool, also when the holder was interrupted or panics. A lease is neither
/// `Clone` nor can it be given back twice. The object is out of reach once the lease is gone:
///
/// ```compile_fail,E0505
/// # use pikake::pool::{Lease, Manager};
/// fn twice<M: Manager<Object = Vec<u8>>>(lease: Lease<M>) {
///     let object = &*lease;
///     drop(lease); // the object is borrowed
///     println!("{}", object.len());
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use pikake::pool::{Lease, Manager};
/// fn twice<M: Manager>(lease: Lease<M>) {
///     drop(lease);
///     drop(lease); // it was moved
/// }
/// ```
///
/// Calls as [`Lease::detach`] are functions, so that they do not hide methods of the object.
#[must_use = "a lease that is dropped at once gives its object back at once"]
pub struct Lease<M: Manager> {
    core: Rc<Core<M>>,
    /// The object, until the lease has ended.
    kept: Option<Box<Kept<M::Object>>>,
    /// The lease's note in the pool.
    key: usize,
}

impl<M: Manager> Lease<M> {
    #[inline]
    pub(crate) fn new(core: Rc<Core<M>>, kept: Box<Kept<M::Object>>, key: usize) -> Self {
        Self { core, kept: Some(kept), key }
    }

    /// Gives back an object that nobody has seen.
    pub(crate) fn return_unused(mut lease: Self) {
        if let Some(kept) = lease.kept.take() {
            lease.core.take_back(kept, lease.key);
        }
    }

    /// Takes the object out of the pool, which forgets it and may make another one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pikake::pool::Manager;
    /// # struct Connections;
    /// # impl Manager for Connections {
    /// #     type Object = u32;
    /// #     type Error = std::io::Error;
    /// #     async fn create(&self) -> std::io::Result<u32> { Ok(7) }
    /// # }
    /// use pikake::pool::{Lease, Pool};
    ///
    /// # pikake::sim::example(async {
    /// let pool = Pool::new(Connections, 1);
    /// let connection: u32 = Lease::detach(pool.get().await?);
    /// let another = pool.get().await?; // beside the limit of 1, since the first one counts no more
    /// assert_eq!(pool.stats().total, 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Panics
    ///
    /// Never: a lease has its object as long as it lives.
    pub fn detach(mut lease: Self) -> M::Object {
        let kept = lease.kept.take().expect("a lease has its object as long as it lives");
        let Kept { object, unit, .. } = *kept;
        drop(unit);
        lease.core.forget(lease.key);
        object
    }

    /// Has the object destroyed, in a task of the pool, because it is broken or in a state that
    /// nobody knows.
    pub fn discard(mut lease: Self) {
        lease.end(false);
    }

    /// The manager of the pool.
    pub fn manager(lease: &Self) -> &M {
        &lease.core.manager
    }

    /// How often the object was lent before.
    pub fn uses(lease: &Self) -> u64 {
        lease.kept.as_ref().map_or(0, |kept| kept.uses)
    }

    #[inline]
    fn end(&mut self, is_wanted: bool) {
        if let Some(kept) = self.kept.take() {
            self.core.give_back(kept, self.key, is_wanted);
        }
    }
}

impl<M: Manager> Drop for Lease<M> {
    #[inline]
    fn drop(&mut self) {
        self.end(true);
    }
}

impl<M: Manager> Deref for Lease<M> {
    type Target = M::Object;

    #[inline]
    fn deref(&self) -> &M::Object {
        match &self.kept {
            Some(kept) => &kept.object,
            None => unreachable!("a lease has its object as long as it lives"),
        }
    }
}

impl<M: Manager> DerefMut for Lease<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut M::Object {
        match &mut self.kept {
            Some(kept) => &mut kept.object,
            None => unreachable!("a lease has its object as long as it lives"),
        }
    }
}

impl<M: Manager<Object: fmt::Debug>> fmt::Debug for Lease<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&**self).finish()
    }
}
