//! Celery's wire format: requests, their arguments, outcomes, points in time.

pub(crate) mod arguments;
pub(crate) mod failure;
pub(crate) mod instant;
mod outcome;
mod parameter;
pub(crate) mod reason;
pub(crate) mod request;

pub use arguments::WrongArguments;
pub use failure::Failure;
pub use parameter::Parameter;
pub use request::{Poison, Request};
