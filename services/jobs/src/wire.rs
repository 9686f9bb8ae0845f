//! Celery's wire format: requests, their arguments, outcomes, points in time.

pub(crate) mod arguments;
pub(crate) mod failure;
pub(crate) mod ids;
pub(crate) mod instant;
mod outcome;
mod parameter;
pub(crate) mod protocol_one;
pub(crate) mod reason;
pub(crate) mod request;
pub(crate) mod signature;
pub(crate) mod task;

pub use arguments::WrongArguments;
pub use failure::Failure;
pub use parameter::Parameter;
pub use request::{Poison, Request};
