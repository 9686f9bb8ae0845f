//! A queue between threads and tasks of any kernel.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use crate::error::{GetError, NotPut, NothingToDo, PutError, TryGetError};
use crate::shared_line::{Line, Shared, Side, State, Wakers};
use crate::shared_wait::{Trapped, Wait};

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

/// What is in a queue, and who waits.
pub(crate) struct Items<T> {
    /// In the order of their numbers.
    items: VecDeque<Numbered<T>>,
    /// The number of the next to be put, and of the last that was put before all others.
    next: i64,
    first: i64,
    capacity: usize,
    /// How many items were given to getters that have not seen them and may be gone before they do.
    on_the_way: usize,
    closed: bool,
    getters: Line<(), Numbered<T>>,
    putters: Line<T, ()>,
    /// How many were put and not reported done.
    unfinished: usize,
    joiners: Line<(), ()>,
}

/// An item with its number, by which it finds its place again if it comes back.
pub(crate) struct Numbered<T>(pub(crate) i64, pub(crate) T);

impl<T> Items<T> {
    fn has_room(&self) -> bool {
        match self.capacity {
            0 => self.items.is_empty() && self.getters.has_callable(),
            capacity => self.items.len() < capacity,
        }
    }

    fn is_over(&self) -> bool {
        self.closed && self.items.is_empty() && self.on_the_way == 0
    }

    fn take_in(&mut self, item: T) {
        self.items.push_back(Numbered(self.next, item));
        self.next += 1;
        self.unfinished += 1;
    }

    fn put_back(&mut self, item: Numbered<T>) {
        let place = self.items.partition_point(|other| other.0 < item.0);
        self.items.insert(place, item);
    }

    pub(crate) fn try_put(&mut self, item: T) -> Result<(), PutError<T>> {
        if self.closed {
            return Err(PutError::new(item, NotPut::Closed));
        }
        if !self.putters.is_empty() || !self.has_room() {
            return Err(PutError::new(item, NotPut::Full));
        }
        self.take_in(item);
        Ok(())
    }

    fn try_get(&mut self) -> Option<Numbered<T>> {
        if self.getters.is_empty() { self.items.pop_front() } else { None }
    }
}

impl<T> State for Items<T> {
    fn serve(&mut self, wakers: &mut Wakers) {
        if self.closed {
            self.putters.dismiss_all(wakers);
        }
        loop {
            if self.getters.has_callable()
                && let Some(item) = self.items.pop_front()
            {
                self.getters.call(wakers, || item);
                self.on_the_way += 1;
            } else if self.has_room()
                && let Some(item) = self.putters.call(wakers, || ())
            {
                self.take_in(item);
            } else {
                break;
            }
        }
        if self.is_over() {
            self.getters.dismiss_all(wakers);
        }
        while self.unfinished == 0 && self.joiners.call(wakers, || ()).is_some() {}
    }
}

/// Those who wait for an item.
pub(crate) struct Getting;

impl<T> Side<Items<T>> for Getting {
    type Brings = ();
    type Gets = Numbered<T>;

    fn line(items: &mut Items<T>) -> &mut Line<(), Numbered<T>> {
        &mut items.getters
    }

    fn now(items: &mut Items<T>, (): ()) -> Result<Numbered<T>, ()> {
        items.try_get().ok_or(())
    }

    fn collected(items: &mut Items<T>) {
        items.on_the_way -= 1;
    }

    fn give_back(items: &mut Items<T>, item: Numbered<T>) {
        items.on_the_way -= 1;
        items.put_back(item);
    }
}

/// Those who wait for room.
pub(crate) struct Putting;

impl<T> Side<Items<T>> for Putting {
    type Brings = T;
    type Gets = ();
    const STEPS_ASIDE: bool = true;

    fn line(items: &mut Items<T>) -> &mut Line<T, ()> {
        &mut items.putters
    }

    fn now(items: &mut Items<T>, item: T) -> Result<(), T> {
        items.try_put(item).map_err(PutError::into_item)
    }

    /// It has been taken in, and stays there.
    fn give_back(_: &mut Items<T>, (): ()) {}
}

/// Those who wait until everything is done.
struct Joining;

impl<T> Side<Items<T>> for Joining {
    type Brings = ();
    type Gets = ();

    fn line(items: &mut Items<T>) -> &mut Line<(), ()> {
        &mut items.joiners
    }

    fn now(items: &mut Items<T>, (): ()) -> Result<(), ()> {
        if items.unfinished == 0 { Ok(()) } else { Err(()) }
    }

    fn give_back(_: &mut Items<T>, (): ()) {}
}

impl<T> Queue<T> {
    /// A queue that takes any number of items.
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// A queue that takes so many items; whoever puts more has to wait. With none, who puts waits
    /// for somebody who gets.
    pub fn bounded(capacity: usize) -> Self {
        Self(Shared::new(Items {
            items: VecDeque::new(),
            next: 0,
            first: 0,
            capacity,
            on_the_way: 0,
            closed: false,
            getters: Line::new(),
            putters: Line::new(),
            unfinished: 0,
            joiners: Line::new(),
        }))
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

impl<T> Shared<Items<T>> {
    pub(crate) fn show(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let items = self.lock();
        let [length, getting, putting, unfinished] = [
            items.items.len() + items.on_the_way,
            items.getters.len(),
            items.putters.len(),
            items.unfinished,
        ];
        let (capacity, closed) = (items.capacity, items.closed);
        drop(items);
        shown
            .field("length", &length)
            .field("capacity", &(capacity < usize::MAX).then_some(capacity))
            .field("getting", &getting)
            .field("putting", &putting)
            .field("unfinished", &unfinished)
            .field("closed", &closed);
    }

    pub(crate) fn close(&self) {
        self.change(|items| items.closed = true);
    }

    /// Ends the queue from the getting side: what is in it is dropped.
    pub(crate) fn abandon(&self) {
        let items = self.change(|items| {
            items.closed = true;
            std::mem::take(&mut items.items)
        });
        drop(items);
    }
}

pub(crate) async fn put<T>(
    shared: &Shared<Items<T>>,
    item: T,
    place: &'static Location<'static>,
) -> Result<(), PutError<T>> {
    let mut wait = Trapped::<_, _, Putting>::new(shared, item, place);
    match (&mut wait).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(item)) => Err(PutError::new(item, NotPut::Closed)),
        Err(interrupted) => {
            let item = wait.take_back().expect("what was not taken is there");
            Err(PutError::new(item, NotPut::Interrupted(interrupted)))
        }
    }
}

pub(crate) fn put_blocking<T>(
    shared: &Shared<Items<T>>,
    item: T,
    until: Option<Instant>,
) -> Result<(), PutError<T>> {
    let mut wait = Wait::<_, _, Putting>::new(shared, item);
    match wait.block(until) {
        Some(Ok(())) => Ok(()),
        Some(Err(item)) => Err(PutError::new(item, NotPut::Closed)),
        None => match wait.take_back() {
            Some(item) => Err(PutError::new(item, NotPut::TimedOut)),
            None => Ok(()), // taken in the last moment
        },
    }
}

pub(crate) async fn get<T, P>(shared: P, place: &'static Location<'static>) -> Result<T, GetError>
where
    P: Deref<Target = Shared<Items<T>>>,
{
    match Trapped::<_, _, Getting>::new(shared, (), place).await? {
        Ok(Numbered(_, item)) => Ok(item),
        Err(()) => Err(GetError::Closed),
    }
}

pub(crate) fn get_blocking<T>(
    shared: &Shared<Items<T>>,
    until: Option<Instant>,
) -> Result<T, TryGetError> {
    match Wait::<_, _, Getting>::new(shared, ()).block(until) {
        Some(Ok(Numbered(_, item))) => Ok(item),
        Some(Err(())) => Err(TryGetError::Closed),
        None => Err(TryGetError::Empty),
    }
}

pub(crate) fn try_get<T>(shared: &Shared<Items<T>>) -> Result<T, TryGetError> {
    shared.change(|items| match items.try_get() {
        Some(Numbered(_, item)) => Ok(item),
        None if items.is_over() => Err(TryGetError::Closed),
        None => Err(TryGetError::Empty),
    })
}
