//! A queue between threads and tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use super::items::{
    Items, Joining, Numbered, blocking_get, blocking_put, get, put, put_blocking_until, try_get,
};
use super::wait::{TaskWait, Wait};
use super::waiters::Shared;
use crate::error::{NothingToDo, PutError, TryGetError, TryPutError};

/// A queue between threads and tasks of any kernel, in any mix.
///
/// As in a [`sync::Queue`](crate::Queue), the first item in is the first out. Getters and putters
/// wait in order of arrival, whether they await or block.
///
/// # Examples
///
/// ```
/// use pikake::sync::shared::Queue;
/// use std::sync::Arc;
///
/// let queue = Arc::new(Queue::bounded(2));
/// let thread = std::thread::spawn({
///     let queue = queue.clone();
///     move || (0..10).for_each(|number| queue.blocking_put(number).unwrap())
/// });
/// // A task would say `queue.get().await?`.
/// let sum: u32 = (0..10).map(|_| queue.blocking_get().unwrap()).sum();
/// assert_eq!(sum, 45);
/// thread.join().unwrap();
/// ```
pub struct Queue<T>(pub(crate) Shared<Items<T>>);

impl<T> Queue<T> {
    /// Creates a queue that holds any number of items.
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// Creates a queue that holds up to `capacity` items. `put` waits while the queue is full; with
    /// capacity zero, `put` waits for a getter.
    pub fn bounded(capacity: usize) -> Self {
        Self(Shared::new(Items::new(capacity)))
    }

    /// Puts an item, as a task, waiting for room.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. An interruption returns the item in the error. Dropping
    /// the future drops the item, unless the channel or queue has already taken it in.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the wait was interrupted, or the queue is closed.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn put(&self, item: T) -> impl Future<Output = Result<(), PutError<T>>> {
        put(&self.0, item, Location::caller())
    }

    /// Puts an item, blocking the thread until there is room.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the queue is closed.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_put(&self, item: T) -> Result<(), PutError<T>> {
        blocking_put(&self.0, item)
    }

    /// Puts an item, blocking the thread for at most `length` until there is room.
    ///
    /// # Errors
    ///
    /// [`TryPutError`], with the item: the time is up, or the queue is closed.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_put_timeout(&self, item: T, length: Duration) -> Result<(), TryPutError<T>> {
        put_blocking_until(&self.0, item, Instant::now().checked_add(length))
    }

    /// Puts an item, if there is room now and no other caller waits for room.
    ///
    /// # Errors
    ///
    /// [`TryPutError`], with the item: there is no room, or the queue is closed.
    pub fn try_put(&self, item: T) -> Result<(), TryPutError<T>> {
        self.0.change(|items| items.try_put(item))
    }

    /// Gets the next item, as a task, waiting until there is one; `None` once the queue is closed
    /// and empty.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A dropped future stops waiting; an item that was granted
    /// to it goes to the next getter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; `get` can be called again.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn get(&self) -> impl Future<Output = Result<Option<T>, Interrupted>> {
        get(&self.0, Location::caller())
    }

    /// Gets the next item, blocking the thread until there is one; `None` if the queue is closed
    /// and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_get(&self) -> Option<T> {
        blocking_get(&self.0, None).ok()
    }

    /// Gets the next item, blocking the thread for at most `length` until there is one.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: the time is up, or the queue is closed and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_get_timeout(&self, length: Duration) -> Result<T, TryGetError> {
        blocking_get(&self.0, Instant::now().checked_add(length))
    }

    /// Gets the next item, if there is one and no other getter waits.
    ///
    /// # Errors
    ///
    /// [`TryGetError`], which tells an empty queue from one that is closed.
    pub fn try_get(&self) -> Result<T, TryGetError> {
        try_get(&self.0)
    }

    /// Puts an item before all others, for an item that a worker got but could not process.
    ///
    /// Never waits, may exceed the capacity, and works on a closed queue. [`join`](Self::join)
    /// counts the item once more.
    pub fn push_front(&self, item: T) {
        self.0.change(|items| {
            items.first -= 1;
            items.put_back(Numbered(items.first, item));
            items.unfinished += 1;
        });
    }

    /// Reports one item as processed. See [`join`](Self::join).
    ///
    /// # Errors
    ///
    /// [`NothingToDo`]: every item was already reported.
    pub fn task_done(&self) -> Result<(), NothingToDo> {
        self.0.change(|items| {
            items.unfinished = items.unfinished.checked_sub(1).ok_or(NothingToDo)?;
            Ok(())
        })
    }

    /// Waits, as a task, until all items that were put are [reported done](Self::task_done).
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before all items were done.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn join(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let wait = TaskWait::<_, _, Joining>::new(&self.0, (), Location::caller());
        async move { wait.await.map(|_| ()) }
    }

    /// Blocks the thread until all items that were put are [reported done](Self::task_done).
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_join(&self) {
        Wait::<_, _, Joining>::new(&self.0, ()).block(None);
    }

    /// Refuses further items. Items in the queue can still be got.
    ///
    /// Pending `put`s return their items; pending `get`s return `None` once the queue is empty.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// The number of items, with those that are granted to waiting getters.
    pub fn len(&self) -> usize {
        let items = self.0.lock();
        items.items.len() + items.granted
    }

    /// Whether the queue holds no items.
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
