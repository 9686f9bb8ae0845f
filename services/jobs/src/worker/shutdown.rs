//! The handle that ends a worker.

use std::fmt;
use std::rc::Rc;

use crate::worker::state::{Phase, WorkerState};

/// Ends a worker. May be cloned, for tasks of the worker's kernel.
#[derive(Clone)]
pub struct ShutdownHandle(pub(crate) Rc<WorkerState>);

impl ShutdownHandle {
    /// The worker takes no more jobs, and interrupts those that still run after the grace.
    pub fn warm(&self) {
        self.0.advance(Phase::Warm);
    }

    /// Whether a shutdown has begun, by this handle, by a command or because the broker refuses.
    pub fn has_begun(&self) -> bool {
        self.0.phase() > Phase::Open
    }

    /// The worker takes no more jobs, and interrupts the running ones, also after
    /// [`warm`](Self::warm).
    pub fn cold(&self) {
        self.0.advance(Phase::Cold);
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShutdownHandle").field(&self.0.phase()).finish()
    }
}
