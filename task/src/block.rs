//! A group around a block: the group's tasks end before the block does.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::error::{BoxError, GroupError};
use crate::failure_rule::{AnyOutput, FailureRule, OnlyOk};
use crate::group::TaskGroup;

/// Runs a block with a group, and ends the group before it returns.
///
/// When the block has returned `Ok`, the group is joined as by [`join_all`](TaskGroup::join_all).
/// If a member fails, the others are asked to end, and the failure is the error. When the block has
/// returned `Err`, for example because it was interrupted, or panicked, the members are asked to
/// end. The call waits for them, and then returns the error or goes on with the panic. In all cases
/// no member is left.
///
/// A member that returns an `Err` has not failed. If it should have, use [`try_task_group`].
///
/// A failure does not interrupt the block. The block sees a failure when it joins the group, calls
/// [`join_next`](TaskGroup::join_next), or ends.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # async fn answer(line: u32) {}
/// # async fn example() -> Result<(), pikake::task::GroupError> {
/// use pikake::task::GroupError;
/// use pikake::task_group;
///
/// let lines = task_group(async |group| {
///     for line in 0..10 {
///         group.spawn(answer(line));
///         pikake::sleep(Duration::from_millis(1)).await?;
///     }
///     Ok::<_, GroupError>(10)
/// })
/// .await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Interruptions arrive inside the block. After the block's end the call is an interruption point,
/// which returns a [`GroupError`] with the interruption. The drop of the call cannot wait for the
/// members: it asks them to end, and logs a warning.
///
/// # Errors
///
/// The block's, or a [`GroupError`] made into one.
///
/// # Panics
///
/// With the block's panic, when the members have ended. When the call has to wait outside a task of
/// a kernel.
#[track_caller]
pub fn task_group<T, R, E, B>(block: B) -> impl Future<Output = Result<R, E>>
where
    T: 'static,
    E: From<GroupError>,
    B: AsyncFnOnce(&mut TaskGroup<T>) -> Result<R, E>,
{
    run::<AnyOutput, _, _, _, _>(block, Location::caller())
}

/// As [`task_group`], but a member that returns an `Err` has failed.
///
/// # Examples
///
/// ```
/// # async fn copy(file: u32) -> std::io::Result<()> { Ok(()) }
/// # async fn example() -> std::io::Result<()> {
/// pikake::try_task_group(async |group| {
///     for file in 0..10 {
///         group.spawn(copy(file));
///     }
///     Ok::<_, std::io::Error>(())
/// })
/// .await
/// # }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Errors
///
/// The block's, or a [`GroupError`] made into one.
///
/// # Panics
///
/// As [`task_group`].
#[track_caller]
pub fn try_task_group<V, M, R, E, B>(block: B) -> impl Future<Output = Result<R, E>>
where
    V: 'static,
    M: Into<BoxError> + 'static,
    E: From<GroupError>,
    B: AsyncFnOnce(&mut TaskGroup<Result<V, M>>) -> Result<R, E>,
{
    run::<OnlyOk<M>, _, _, _, _>(block, Location::caller())
}

async fn run<J, T, R, E, B>(block: B, place: &'static Location<'static>) -> Result<R, E>
where
    T: 'static,
    J: FailureRule<T>,
    E: From<GroupError>,
    B: AsyncFnOnce(&mut TaskGroup<T>) -> Result<R, E>,
{
    let mut group = TaskGroup::at(place);
    let ended = {
        let mut block = pin!(block(&mut group));
        poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| block.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await
    };
    match ended {
        Ok(Ok(value)) => match group.join::<J>(place).await {
            Ok(_) => Ok(value),
            Err(error) => Err(error.into()),
        },
        Ok(Err(error)) => {
            group.end_and_log::<J>("the block around its group failed", place).await;
            Err(error)
        }
        Err(panic) => {
            group.end_and_log::<J>("the block around its group panicked", place).await;
            resume_unwind(panic)
        }
    }
}
