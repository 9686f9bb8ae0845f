//! Running futures side by side, each in a task of its own.

use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskError};

use crate::group::TaskGroup;

/// The outcomes of several tasks.
pub type Outcomes<T> = Vec<Result<T, TaskError>>;

/// Runs each future in a task of its own, waits for all, and returns their outcomes in the order of
/// the futures.
///
/// A future that fails does not affect the others.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// let squares = pikake::task::in_parallel((1..=3).map(|n| async move { n * n })).await?;
/// let squares: Result<Vec<i32>, _> = squares.into_iter().collect();
/// assert_eq!(squares.unwrap(), [1, 4, 9]);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point while it waits: the tasks are asked to end, and the interruption is
/// returned after their ends, without a limit. A drop cannot wait: it asks the tasks to end, and
/// logs a warning.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[doc(alias = "join")]
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
            debug_assert!(spawned.is_ok(), "the group is open");
        }
        if let Err(interrupted) = group.wait_until(place, |_| false).await {
            group.end("the wait for it was interrupted", place).await;
            return Err(interrupted);
        }
        let mut ended: Vec<_> = group.take_finished().into();
        ended.sort_unstable_by_key(|finished| finished.number);
        Ok(ended.into_iter().map(|finished| finished.into_outcome().1).collect())
    }
}
