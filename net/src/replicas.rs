//! The servers of one `serve_on_all`, as they know each other.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pikake_traps::Bound;

/// The servers of several kernels that serve one address: each enters a value, and a kernel finds
/// its own.
///
/// For services whose servers help each other: what crosses to another kernel there finds the
/// server of that kernel. [`serve_on_all`](crate::serve_on_all) gives the listeners of one call the
/// same replicas; see [`Listener::replicas`](crate::Listener::replicas).
///
/// # Examples
///
/// ```
/// use pikake::net::Replicas;
/// use std::rc::Rc;
///
/// # pikake::sim::example(async {
/// let replicas = Replicas::default();
/// let entered = replicas.enter(Rc::new("a service of this kernel"));
/// assert!(replicas.here::<Rc<&str>>().is_some());
/// drop(entered);
/// assert!(replicas.here::<Rc<&str>>().is_none());
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Replicas(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    /// The key of the next entry.
    next: u64,
    map: BTreeMap<u64, Bound<Rc<dyn Any>>>,
}

impl Replicas {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // No user code runs under the lock, so the map behind a poisoned lock is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a value of the current kernel, until the guard is dropped. A kernel has one value.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn enter<T: 'static>(&self, value: T) -> EnteredReplica {
        let value: Rc<dyn Any> = Rc::new(value);
        let value = Bound::new(value);
        let mut entries = self.entries();
        entries.next += 1;
        let key = entries.next;
        entries.map.insert(key, value);
        EnteredReplica { replicas: self.clone(), key, _here: PhantomData }
    }

    /// The value of the current kernel; `None` if it has none of this type.
    pub fn here<T: Clone + 'static>(&self) -> Option<T> {
        let here = {
            let entries = self.entries();
            entries.map.values().find(|value| value.is_home())?.get().clone()
        };
        here.downcast_ref::<T>().cloned()
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("entered", &self.entries().map.len()).finish()
    }
}

/// The value of a kernel among [`Replicas`], for as long as its server serves.
#[derive(Debug)]
pub struct EnteredReplica {
    replicas: Replicas,
    key: u64,
    /// The value is dropped on its own thread.
    _here: PhantomData<*const ()>,
}

impl Drop for EnteredReplica {
    fn drop(&mut self) {
        let entry = self.replicas.entries().map.remove(&self.key);
        drop(entry);
    }
}
