//! A runtime is a kernel.
//!
//! | module | in place of tokio's |
//! | --- | --- |
//! | `handle` | scheduler, driver and context: the current kernel, or one that was entered |
//! | `task` | the cell of a task: a task of the kernel, and a `JoinHandle` for any thread |
//! | `io` | the registration of a socket with the driver: waits by trap |
//! | `owner`, `builder`, `clock` | a kernel of its own, for programs that make a runtime |
//! | `signal` | the driver of signals: a task that reads the pipe |

mod blocking;
mod builder;
pub(crate) mod clock;
pub(crate) mod context;
mod handle;
pub(crate) mod io;
pub(crate) mod kernels;
mod names;
mod owner;
pub(crate) mod signal;
pub(crate) mod task;

tokio_files! {
    "../../../../target/tokio-source/src/runtime/park.rs" pub(crate) mod park;
}

pub(crate) use blocking::{spawn_blocking, spawn_mandatory_blocking};
pub use builder::Builder;
pub use handle::{EnterGuard, Handle, Id, RuntimeFlavor, RuntimeMetrics, TryCurrentError};
pub use owner::{LocalOptions, LocalRuntime, Runtime};

/// Where tokio's files look for the current runtime.
pub(crate) mod scheduler {
    pub(crate) use super::handle::Handle;
}

/// Whether an error says that the runtime has ended.
pub fn is_rt_shutdown_err(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<pikake_traps::Closed>())
}
