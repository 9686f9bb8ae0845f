//! The members of [`Peers`] as handles, and the peers of the current kernel.

use super::Peers;
use crate::door;
use crate::handle::KernelHandle;

impl Peers {
    /// The members that have not ended, in the order of their joining.
    pub fn handles(&self) -> Vec<KernelHandle> {
        let members = self.members();
        let live = members.iter().filter(|home| !home.is_closed());
        live.cloned().map(KernelHandle::new).collect()
    }

    /// The members but the current kernel, in the order of their joining.
    pub fn others(&self) -> Vec<KernelHandle> {
        let mut handles = self.handles();
        handles.retain(|kernel| Some(kernel.id()) != door::current_kernel());
        handles
    }

    /// The peers of the current kernel. A kernel that was built without joins new ones. `None`
    /// outside a kernel.
    pub fn current_or_new() -> Option<Self> {
        door::try_with(|local| {
            if let Some(peers) = local.peers() {
                return peers.clone();
            }
            let peers = Self::new();
            local.join(&peers);
            peers
        })
    }

    /// The peers that the current kernel was built with; `None` outside a kernel, and in a kernel
    /// that was built without.
    pub fn current() -> Option<Self> {
        door::try_with(|local| local.peers().cloned())?
    }
}
