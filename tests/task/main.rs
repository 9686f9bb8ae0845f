//! Groups of tasks, with and without a limit, and task locals.

#[path = "../support/mod.rs"]
mod support;

mod bounded;
mod group;
mod locals;
