//! Tasks of the kernel, in tokio's names.

mod blocking;
mod local;
mod spawn;

tokio_files! {
    "../../../../target/tokio-source/src/task/coop/mod.rs" pub mod coop;
    "../../../../target/tokio-source/src/task/join_set.rs" mod join_set;
    "../../../../target/tokio-source/src/task/task_local.rs" mod task_local;
    "../../../../target/tokio-source/src/task/yield_now.rs" mod yield_now;
}

pub use blocking::{block_in_place, spawn_blocking};
pub use coop::{consume_budget, unconstrained, Unconstrained};
pub use join_set::JoinSet;
pub use local::{spawn_local, LocalEnterGuard, LocalSet};
pub use spawn::spawn;
pub use task_local::LocalKey;
pub use yield_now::yield_now;

pub use crate::runtime::task::{id, try_id, AbortHandle, Id, JoinError, JoinHandle};

/// Futures of this module's functions.
pub mod futures {
    pub use super::task_local::TaskLocalFuture;
}
