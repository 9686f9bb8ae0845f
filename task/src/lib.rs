//! Tasks, groups of tasks that end before a block does, task locals, and threads that may await.
//!
//! | you have | and want | use |
//! | --- | --- | --- |
//! | a future | a task of its own | [`spawn`], [`Task`]; with a name: [`Builder`] |
//! | some futures | all their outcomes, in order | [`in_parallel`] |
//! | many items | the results of an async function, in order, a limited number at a time | [`ordered_map`] |
//! | a source without end | a limited number of tasks at a time | [`TaskGroup::bounded`] |
//! | a block | its tasks to end before it does | [`task_group`], [`try_task_group`] |
//! | a group | all values, or all failures | [`TaskGroup::join_all`], [`TaskGroup::try_join_all`] |
//! | | the first end, a success or a failure | [`TaskGroup::join_any`], [`TaskGroup::try_join_any`] |
//! | | the first success | [`TaskGroup::first_value`], [`TaskGroup::try_first_value`] |
//! | | one outcome after the other | [`TaskGroup::join_next`] |
//! | | the end of all members | [`TaskGroup::cancel_all`] |
//! | a period | ticks at a fixed rate | [`interval`] |
//! | a stream, a receiver, a generator | the next item, or none for now | [`next_timeout`] |
//! | a task | values of its own | [`TaskLocal`] |
//! | an object whose methods block | to call them | [`ThreadProxy`] |
//! | code that blocks | its result | [`run_in_thread`], [`run_in_thread_with`] |
//! | code that blocks, and awaits in between | to run it | [`spawn_thread`] |
//!
//! # Examples
//!
//! ```
//! use pikake::task::{GroupError, ordered_map};
//! use pikake::{TaskGroup, sleep};
//! use std::time::Duration;
//!
//! # pikake::sim::example(async {
//! // At most two members run at a time; `spawn` waits for room.
//! let mut group = TaskGroup::bounded(2);
//! for number in 1..=4_u64 {
//!     let member = async move { sleep(Duration::from_secs(number)).await.map(|()| number) };
//!     group.spawn(member).await?;
//! }
//! assert_eq!(group.try_join_all().await?, [1, 2, 3, 4]);
//!
//! // The results of an async function in the order of the items, two at a time.
//! let mut squares = ordered_map(1..=4, 2, async |number| number * number);
//! while let Some(square) = squares.next_outcome().await? {
//!     println!("{}", square.unwrap());
//! }
//! # Ok::<_, GroupError>(())
//! # })
//! # .unwrap();
//! ```
//!
//! # Failures
//!
//! A member fails when it panics, or when a cancel from outside the group ends it without a value.
//! The name of the call decides about a returned `Err`. For `join_all`, `join_any` and
//! `first_value` an `Err` is a value like any other. For `try_join_all`, `try_join_any` and
//! `try_first_value` an `Err` is a failure, and the values are those inside `Ok`.
//!
//! # Implementation
//!
//! Groups are made of traps alone, so they run on any kernel. A group's members report their own
//! end: each runs inside a wrapper whose drop reports that its future returned, panicked or was
//! dropped. The joiner of a group waits in one wait queue, so an end costs the same in a group of
//! ten or of ten thousand members.

#![forbid(unsafe_code)]

mod block;
mod bounded;
mod error;
mod failure_rule;
mod flatten;
mod group;
mod interval;
mod local;
mod member;
mod members;
mod next_timeout;
mod ordered;
mod parallel;
mod policy;
mod proxy;
#[doc(hidden)]
pub mod select;
mod spawner;
pub mod thread;

pub use block::{task_group, try_task_group};
pub use bounded::BoundedGroup;
pub use error::{Failure, GroupEnded, GroupError};
pub use flatten::Flatten;
pub use group::{Done, TaskGroup};
pub use interval::{Interval, MissedTickBehavior, interval, interval_at};
pub use local::{LocalError, TaskLocal};
pub use member::Member;
pub use next_timeout::{NextTimeout, next_timeout};
pub use ordered::{OrderedMap, ordered_map};
pub use parallel::{Outcomes, in_parallel};
pub use proxy::ThreadProxy;
pub use spawner::{MemberBuilder, Spawner};
pub use thread::spawn_thread;

pub use pikake_traps::{
    Blocking, Builder, CancelFlag, CancelOnDrop, Current, Exit, Panic, Task, TaskError, TaskId,
    blocking as run_in_thread, blocking_with as run_in_thread_with, spawn, spawn_anywhere,
    yield_now,
};
