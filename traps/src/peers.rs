//! The kernels of one process, or of one simulated host, as a value that each of them is built
//! with.

mod current;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::home::Home;

/// The kernels that belong together: those of one process, or of one simulated host.
///
/// Clones share the list of members. A kernel joins when it is built with
/// `Builder::peers`, and stays a member after its end.
///
/// # Examples
///
/// ```
/// use pikake::Kernel;
/// use pikake::traps::Peers;
///
/// let peers = Peers::new();
/// let one = Kernel::builder().peers(&peers).build()?;
/// let other = Kernel::builder().peers(&peers).build()?;
/// let ids: Vec<_> = peers.handles().iter().map(|kernel| kernel.id()).collect();
/// assert_eq!(ids, [one.handle().id(), other.handle().id()]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Peers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// In the order of their joining.
    members: Mutex<Vec<Arc<Home>>>,
}

impl Peers {
    /// Peers without members.
    pub fn new() -> Self {
        Self::default()
    }

    fn members(&self) -> MutexGuard<'_, Vec<Arc<Home>>> {
        // No code that can panic runs under the lock, so the list behind a poisoned lock is whole.
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members().iter().map(|home| home.id())).finish()
    }
}
