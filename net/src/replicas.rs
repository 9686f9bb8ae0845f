//! The servers of one `serve_on_all`, as they know each other.

use std::any::Any;
use std::fmt;
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
pub struct Replicas(Arc<Mutex<Vec<Entry>>>);

type Entry = Bound<Box<dyn Any>>;

impl Replicas {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A panic under the lock leaves the list whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a value of the current kernel, until the guard is dropped. A kernel has one value.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn enter<T: 'static>(&self, value: T) -> EnteredReplica {
        let value: Box<dyn Any> = Box::new(value);
        let entry = Bound::new(value);
        self.entries().push(entry);
        EnteredReplica(self.clone())
    }

    /// The value of the current kernel; `None` if it has none of this type.
    pub fn here<T: Clone + 'static>(&self) -> Option<T> {
        let entries = self.entries();
        let here = entries.iter().find(|entry| entry.is_home())?;
        here.get().downcast_ref::<T>().cloned()
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("entered", &self.entries().len()).finish()
    }
}

/// The value of a kernel among [`Replicas`], for as long as its server serves.
#[derive(Debug)]
pub struct EnteredReplica(Replicas);

impl Drop for EnteredReplica {
    fn drop(&mut self) {
        let mut entries = self.0.entries();
        let index = entries.iter().position(Bound::is_home);
        let entry = index.map(|index| entries.swap_remove(index));
        drop(entries);
        drop(entry);
    }
}
