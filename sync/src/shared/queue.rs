//! A queue between threads and tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use super::items::{Items, Joining, Numbered, get, get_blocking, put, put_blocking, try_get};
use super::line::Shared;
use super::wait::{Trapped, Wait};
use crate::error::{GetError, NothingToDo, PutError, TryGetError};

/// A queue between threads and tasks of any kernel, in any mix.
///
/// As in a [`sync::Queue`](crate::Queue), what was put first is got first, and those who wait for an
/// item and those who wait for room are each served in the order in which they came, whether they
/// await or block.
///
/// # Examples
///
/// ```
/// use pikake_sync::shared::Queue;
/// use std::sync::Arc;
///
/// let queue = Arc::new(Queue::bounded(2));
/// let thread = std::thread::spawn({
///     let queue = queue.clone();
///     move || (0..10).for_each(|number| queue.put_blocking(number).unwrap())
/// });
/// // A task would say `queue.get().await?`.
/// let sum: u32 = (0..10).map(|_| queue.get_blocking().unwrap()).sum();
/// assert_eq!(sum, 45);
/// thread.join().unwrap();
/// ```
pub struct Queue<T>(pub(crate) Shared<Items<T>>);

impl<T> Queue<T> {
    /// A queue that takes any number of items.
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// A queue that takes so many items; whoever puts more has to wait. With none, who puts waits
    /// for somebody who gets.
    pub fn bounded(capacity: usize) -> Self {
        Self(Shared::new(Items::new(capacity)))
    }

    /// Puts an item, as a task, when there is room for it.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Interrupted, it gives the item back in the error.
    /// Dropped, it leaves the line, and the item is dropped, unless somebody has got it already.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: interrupted, or the queue is closed.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn put(&self, item: T) -> impl Future<Output = Result<(), PutError<T>>> {
        put(&self.0, item, Location::caller())
    }

    /// Puts an item, blocking the thread until there is room for it.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the queue is closed.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn put_blocking(&self, item: T) -> Result<(), PutError<T>> {
        put_blocking(&self.0, item, None)
    }

    /// Puts an item, blocking the thread until there is room for it, but only so long.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: it was too late, or the queue is closed.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn put_blocking_timeout(&self, item: T, length: Duration) -> Result<(), PutError<T>> {
        put_blocking(&self.0, item, Instant::now().checked_add(length))
    }

    /// Puts an item, if there is room for it now and nobody waits for room.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: there is no room, or the queue is closed.
    pub fn try_put(&self, item: T) -> Result<(), PutError<T>> {
        self.0.change(|items| items.try_put(item))
    }

    /// Gets the next item, as a task, when there is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Dropped, it leaves the line; an item that it had been
    /// given and had not seen yet goes to the next.
    ///
    /// # Errors
    ///
    /// [`GetError`]: interrupted, or the queue is closed and empty.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn get(&self) -> impl Future<Output = Result<T, GetError>> {
        get(&self.0, Location::caller())
    }

    /// Gets the next item, blocking the thread until there is one; `None` if the queue is closed
    /// and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn get_blocking(&self) -> Option<T> {
        get_blocking(&self.0, None).ok()
    }

    /// Gets the next item, blocking the thread until there is one, but only so long.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: there was none in time, or the queue is closed and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn get_blocking_timeout(&self, length: Duration) -> Result<T, TryGetError> {
        get_blocking(&self.0, Instant::now().checked_add(length))
    }

    /// Gets the next item, if there is one and nobody waits for it.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: there is none, and whether there may be one later.
    pub fn try_get(&self) -> Result<T, TryGetError> {
        try_get(&self.0)
    }

    /// Puts an item before all others, as one that was got and could not be dealt with.
    ///
    /// Never waits, and may exceed the capacity; also when the queue is closed. It counts as one
    /// more item for [`join`](Self::join).
    pub fn push_front(&self, item: T) {
        self.0.change(|items| {
            items.first -= 1;
            items.put_back(Numbered(items.first, item));
            items.unfinished += 1;
        });
    }

    /// Reports that one of the items that were put has been dealt with. See [`join`](Self::join).
    ///
    /// # Errors
    ///
    /// [`NothingToDo`]: that was reported of every item already.
    pub fn task_done(&self) -> Result<(), NothingToDo> {
        self.0.change(|items| {
            items.unfinished = items.unfinished.checked_sub(1).ok_or(NothingToDo)?;
            Ok(())
        })
    }

    /// Waits, as a task, until everything has been [reported done](Self::task_done) that was put.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before it was so.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn join(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let wait = Trapped::<_, _, Joining>::new(&self.0, (), Location::caller());
        async move { wait.await.map(|_| ()) }
    }

    /// Blocks the thread until everything has been [reported done](Self::task_done) that was put.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn join_blocking(&self) {
        Wait::<_, _, Joining>::new(&self.0, ()).block(None);
    }

    /// Lets nobody put anything any more. What is there can still be got.
    ///
    /// Those who wait for room get their items back; those who wait for an item are told.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// How many items are there, those included that were given to somebody who waited for one and
    /// has not run since.
    pub fn len(&self) -> usize {
        let items = self.0.lock();
        items.items.len() + items.on_the_way
    }

    /// Whether no item is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        self.0.show(&mut shown);
        shown.finish()
    }
}
