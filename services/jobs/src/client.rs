//! The sending side: the application, calls of jobs, and handles to jobs that were sent.

pub(crate) mod app;
pub(crate) mod call;
mod handle;
mod setup;
pub(crate) mod signature;

pub use app::App;
pub use call::Call;
pub use handle::{Cancelled, Handle};
