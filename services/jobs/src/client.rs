//! The sending side: the application, calls of jobs, and handles to jobs that were sent.

pub(crate) mod app;
pub(crate) mod call;
pub(crate) mod carry_out;
mod group;
mod handle;
pub(crate) mod returns;
mod setup;
pub(crate) mod signature;
mod workflow;

pub use app::App;
pub use call::Call;
pub use group::{Group, Members, group, map};
pub use handle::{Cancelled, Handle};
pub use returns::Returns;
pub use workflow::{Follower, IntoWorkflow, Next, Workflow};
