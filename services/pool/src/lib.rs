//! Pools of objects that cost something to make, and are never leaked, shared, dirty or dead.
#![forbid(unsafe_code)]

mod core;
mod error;
mod holder;
mod keeper;
mod keyed;
mod lease;
mod limit;
mod manager;
mod options;
mod pool;
mod shared;
mod signal;
mod stats;
mod ticket;
mod work;

pub use error::{AddError, CreateError, Exhausted, GetError, NotAdded};
pub use holder::Holder;
pub use keyed::{ForKey, Keyed, KeyedLease, KeyedManager};
pub use lease::Lease;
pub use limit::Limit;
pub use manager::Manager;
pub use options::{
    Builder, CLEAN_WITHIN, CREATIONS, FIRST_BACKOFF, GREATEST_BACKOFF, MAX_IDLE_TIME, Reuse,
    Verify, WAIT,
};
pub use pool::{CloseReport, Pool};
pub use shared::Shared;
pub use stats::Stats;
