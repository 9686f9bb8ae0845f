//! What people do with tasks: groups that end before a block does, and values that belong to a task.
//!
//! Everything here is made of traps alone, so it runs on any kernel. A group's members report their
//! own end: each runs inside a wrapper whose last act, whether its future returned, panicked or was
//! dropped, is to say so to the group. Whoever joins the group waits in one wait queue, and one end
//! costs the same whether the group has ten members or ten thousand.
//!
//! | you have | and want | use |
//! | --- | --- | --- |
//! | some futures | all their outcomes, in order | [`in_parallel`] |
//! | many items | the results of an async function, in order, so many at a time | [`ordered_map`] |
//! | a source without end | no more than so many tasks at a time | [`TaskGroup::bounded`] |
//! | a block | that none of its tasks outlives it | [`task_group`], [`try_task_group`] |
//! | a group | all values, or what went wrong | [`TaskGroup::join_all`], [`TaskGroup::try_join_all`] |
//! | | whoever ends first, either way | [`TaskGroup::join_any`], [`TaskGroup::try_join_any`] |
//! | | the first that succeeds | [`TaskGroup::first_value`], [`TaskGroup::try_first_value`] |
//! | | one after the other, as they end | [`TaskGroup::next_done`] |
//! | | the rest gone | [`TaskGroup::cancel_all`] |
//! | a task | values that are its own | [`TaskLocal`] |
//! | an object whose methods block | to call them | [`ThreadProxy`] |
//! | code that blocks, and awaits in between | to run it | [`spawn_thread`] |
//!
//! # What counts as a failure
//!
//! A member fails when it panics, or when it ends without a value because somebody outside the
//! group cancelled it. What else is a failure is said by the name of the call: to `join_all` and
//! its like a returned `Err` is a value as good as any, to `try_join_all` and its like it is a
//! failure, and the values are what was inside `Ok`.

#![forbid(unsafe_code)]

mod block;
mod bounded;
mod error;
mod group;
mod judge;
mod local;
mod members;
mod ordered;
mod parallel;
mod policy;
mod proxy;
mod spawner;
pub mod thread;

pub use block::{task_group, try_task_group};
pub use bounded::BoundedGroup;
pub use error::{Failure, GroupEnded, GroupError};
pub use group::{Done, TaskGroup};
pub use local::{LocalError, TaskLocal};
pub use ordered::{OrderedMap, ordered_map};
pub use parallel::{Outcomes, in_parallel};
pub use proxy::ThreadProxy;
pub use spawner::{Member, MemberBuilder, Spawner};
pub use thread::spawn_thread;
