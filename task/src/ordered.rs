//! An async function over many items, a limited number at a time, with the results in order.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::iter::Fuse;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskError, in_kernel};

use crate::group::TaskGroup;
use crate::members::Finished;
use crate::parallel::Outcomes;

/// Calls an async function for each item, each call in a task of its own, and returns the outcomes
/// in the order of the items.
///
/// At most `limit` calls are under way at a time. A call is under way from its start until its
/// outcome is taken, so at most `limit` outcomes are kept.
/// [`next_outcome`](OrderedMap::next_outcome) takes items from the iterator as long as there is
/// room.
///
/// A call that fails does not affect the others.
///
/// # Examples
///
/// ```
/// # async fn fetch(page: u32) -> String { page.to_string() }
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use pikake::task::ordered_map;
///
/// let mut pages = ordered_map(1..=1000, 10, fetch);
/// while let Some(page) = pages.next_outcome().await? {
///     match page {
///         Ok(text) => println!("{text}"),
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Panics
///
/// When the limit is zero.
#[track_caller]
pub fn ordered_map<I, M, F>(items: I, limit: usize, map: M) -> OrderedMap<I::IntoIter, M, F::Output>
where
    I: IntoIterator,
    M: FnMut(I::Item) -> F,
    F: Future<Output: 'static> + 'static,
{
    assert!(limit > 0, "with a limit of zero there is never an outcome");
    let place = Location::caller();
    let group = TaskGroup::at(place);
    let items = items.into_iter().fuse();
    OrderedMap { items, map, limit, place, group, started: 0, next: 0, done: BTreeMap::new() }
}

/// The outcomes of [`ordered_map`].
///
/// A drop asks the calls that are under way to end, and logs a warning, since a drop cannot wait;
/// [`cancel_all`](Self::cancel_all) waits.
#[must_use = "nothing is called until an outcome is asked for"]
pub struct OrderedMap<I: Iterator, M, T: 'static> {
    items: Fuse<I>,
    map: M,
    limit: usize,
    place: &'static Location<'static>,
    group: TaskGroup<T>,
    /// The number of calls that were started.
    started: u64,
    /// The number of outcomes that were taken.
    next: u64,
    /// Calls that have ended before an earlier one, by their numbers.
    done: BTreeMap<u64, Finished<T>>,
}

impl<I, M, F, T> OrderedMap<I, M, T>
where
    I: Iterator,
    M: FnMut(I::Item) -> F,
    F: Future<Output = T> + 'static,
{
    /// Waits for the outcome of the next item; `None` after the last.
    ///
    /// # Cancellation
    ///
    /// An interruption point while the call waits; it may be repeated. Nothing is lost when the
    /// future is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; the calls go on.
    ///
    /// # Panics
    ///
    /// With a panic of the iterator, or of the function before it returned a future. When polled
    /// outside a task of a kernel.
    #[track_caller]
    pub fn next_outcome(
        &mut self,
    ) -> impl Future<Output = Result<Option<Result<T, TaskError>>, Interrupted>> {
        let place = Location::caller();
        in_kernel(async move { self.next_at(place).await })
    }

    /// Waits for all outcomes that were not taken yet, and returns them in the order of the items.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits: no further call is started, and the calls that are
    /// under way are asked to end. The interruption is returned after their ends, without a limit.
    /// A drop cannot wait: it asks the calls to end, and logs a warning.
    ///
    /// # Errors
    ///
    /// [`Interrupted`].
    ///
    /// # Panics
    ///
    /// As [`next_outcome`](Self::next_outcome).
    #[track_caller]
    pub fn collect(mut self) -> impl Future<Output = Result<Outcomes<T>, Interrupted>> {
        let place = Location::caller();
        async move {
            let mut outcomes = Outcomes::new();
            loop {
                match self.next_at(place).await {
                    Ok(Some(outcome)) => outcomes.push(outcome),
                    Ok(None) => return Ok(outcomes),
                    Err(interrupted) => {
                        self.group.end("the wait for it was interrupted", place).await;
                        return Err(interrupted);
                    }
                }
            }
        }
    }

    /// Starts no further call, asks the calls that are under way to end, and waits for their ends.
    /// Their outcomes are dropped; panics are logged.
    ///
    /// # Cancellation
    ///
    /// Not an interruption point: an interruption of the caller is due at its next wait.
    ///
    /// # Panics
    ///
    /// When the call has to wait outside a task of a kernel.
    #[track_caller]
    pub fn cancel_all(mut self) -> impl Future<Output = ()> {
        let place = Location::caller();
        async move { self.group.end("its results are not wanted any more", place).await }
    }

    async fn next_at(
        &mut self,
        place: &'static Location<'static>,
    ) -> Result<Option<Result<T, TaskError>>, Interrupted> {
        loop {
            self.start_calls();
            for finished in self.group.take_finished() {
                self.done.insert(finished.number, finished);
            }
            if let Some(finished) = self.done.remove(&self.next) {
                self.next += 1;
                return Ok(Some(finished.into_outcome().1));
            }
            if self.next == self.started {
                return Ok(None);
            }
            self.group.wait_for_end(place).await?;
        }
    }

    fn start_calls(&mut self) {
        while self.started - self.next < self.limit as u64 {
            let Some(item) = self.items.next() else { return };
            let call = (self.map)(item);
            let spawned = self.group.member().spawned_at(self.place).spawn(call);
            debug_assert!(spawned.is_ok(), "the group is open");
            self.started += 1;
        }
    }
}

impl<I: Iterator, M, T> fmt::Debug for OrderedMap<I, M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedMap")
            .field("limit", &self.limit)
            .field("under_way", &(self.started - self.next))
            .field("running", &self.group.running())
            .field("taken", &self.next)
            .finish_non_exhaustive()
    }
}
