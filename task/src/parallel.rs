//! Running futures side by side, each in a task of its own.

use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskError};

use crate::group::TaskGroup;

/// What became of each of some tasks.
pub type Outcomes<T> = Vec<Result<T, TaskError>>;

/// Runs each future in a task of its own, waits for all, and gives their outcomes in the order in
/// which the futures came.
///
/// One that fails does not disturb the others.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// let squares = pikake_task::in_parallel((1..=3).map(|n| async move { n * n })).await?;
/// let squares: Result<Vec<i32>, _> = squares.into_iter().collect();
/// assert_eq!(squares.unwrap(), [1, 4, 9]);
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point while it waits: the tasks are asked to end and waited for, however long
/// that takes, before the interruption is returned. Dropped, it cannot wait: it asks them to end,
/// and logs that.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn in_parallel<F>(
    futures: impl IntoIterator<Item = F>,
) -> impl Future<Output = Result<Outcomes<F::Output>, Interrupted>>
where
    F: Future<Output: 'static> + 'static,
{
    let place = Location::caller();
    async move {
        let mut group = TaskGroup::at(place);
        for future in futures {
            let spawned = group.member().spawned_at(place).spawn(future);
            debug_assert!(spawned.is_ok(), "nobody has ended the group");
        }
        if let Err(interrupted) = group.wait_until(place, |_| false).await {
            group.end("whoever waited for it was interrupted", place).await;
            return Err(interrupted);
        }
        let mut ended: Vec<_> = group.take_finished().into();
        ended.sort_unstable_by_key(|finished| finished.number);
        Ok(ended.into_iter().map(|finished| finished.into_outcome().1).collect())
    }
}
