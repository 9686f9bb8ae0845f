//! How a worker is told to end.

use std::fmt;
use std::rc::Rc;

use crate::worker::state::{Phase, WorkerState};

/// Tells a worker to end. Cloned freely, for tasks of the worker's kernel.
#[derive(Clone)]
pub struct ShutdownHandle(pub(crate) Rc<WorkerState>);

impl ShutdownHandle {
    /// Takes no more jobs, lets those that run end within the grace, and interrupts the rest.
    pub fn warm(&self) {
        self.0.advance(Phase::Warm);
    }

    /// Takes no more jobs, and interrupts those that run. Also after [`warm`](Self::warm).
    pub fn cold(&self) {
        self.0.advance(Phase::Cold);
    }
}

impl fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShutdownHandle").field(&self.0.phase()).finish()
    }
}
