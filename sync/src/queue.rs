//! Queues: items that some tasks put and others get.
//!
//! ```text
//!   put ──▶ [ pending items, and their putters ] ──▶ room ──▶ [ items ] ──▶ get
//!                                                                ▲
//!                                                 [ getters ] ───┘ one permit for each item
//! ```
//!
//! *Each item is a permit* of the queue of getters. A getter takes a permit, then the item. A permit that was granted to
//! a getter keeps an item for it, and the item stays where it is until the getter runs. So an
//! item whose getter is gone is still there.
//!
//! *A putter that waits* puts its item into the list of pending items. A call that makes room moves the first pending
//! item to the items, and grants the item's putter a permit. Such a putter has nothing left to do. Putters and
//! their items wait in the same order, and leave both at once.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::Duration;

use pikake_traps::{Interrupted, WaitQueue, timed};

use crate::error::{GetError, NotPut, NothingToDo, PutError, TryGetError};
use crate::name::Name;
use crate::pending::Pending;
use crate::signals::{Signals, signal};
use crate::store::{Fifo, Lifo, Smallest, Store};

pub(crate) mod waits;

use waits::{Get, Getters, Next, Put, QueueStream};

/// Items that some tasks put and others get.
///
/// What was put first is got first. A [`LifoQueue`] gives the last first, a [`PriorityQueue`] the
/// smallest. Those who wait for an item, and those who wait for room, are each served in the order
/// in which they came. See [`AnyQueue`] for what can be done with it.
///
/// A queue of [capacity](AnyQueue::bounded) zero holds nothing: `put` waits for somebody who gets, and
/// returns when the item was handed over. (Should that somebody be interrupted in this very moment,
/// the item waits for the next.)
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_sync::Queue;
///
/// let queue = Queue::bounded(2);
/// queue.put("first").await?;
/// queue.put("second").await?;
/// assert_eq!(queue.try_put("third").unwrap_err().item, "third");
/// assert_eq!(queue.get().await?, "first");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// Waiting until everything is done that was put:
///
/// ```
/// # async fn copy(file: u32) {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pikake_sync::Queue;
/// use std::rc::Rc;
///
/// let files = Rc::new(Queue::unbounded());
/// for _ in 0..4 {
///     let files = files.clone();
///     let worker = pikake_traps::spawn(async move {
///         while let Ok(file) = files.get().await {
///             copy(file).await;
///             files.task_done().expect("once for each");
///         }
///     });
///     worker.detach();
/// }
/// for file in 0..100 {
///     files.put(file).await?;
/// }
/// files.join().await?;
/// files.close(); // the workers end
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
pub type Queue<T> = AnyQueue<Fifo<T>>;

/// A [`Queue`] that gives the smallest item first, and of equal ones the one that was put first.
///
/// # Examples
///
/// ```
/// use pikake_sync::PriorityQueue;
///
/// let queue = PriorityQueue::unbounded();
/// for number in [3, 1, 2] {
///     queue.try_put(number).unwrap();
/// }
/// assert_eq!(queue.try_get(), Ok(1));
/// ```
pub type PriorityQueue<T> = AnyQueue<Smallest<T>>;

/// A [`Queue`] that gives the last item first.
///
/// # Examples
///
/// ```
/// use pikake_sync::LifoQueue;
///
/// let queue = LifoQueue::unbounded();
/// for number in [3, 1, 2] {
///     queue.try_put(number).unwrap();
/// }
/// assert_eq!(queue.try_get(), Ok(2));
/// ```
pub type LifoQueue<T> = AnyQueue<Lifo<T>>;

/// A [`Queue`], [`LifoQueue`] or [`PriorityQueue`]: `S` decides which item comes next.
pub struct AnyQueue<S: Store> {
    items: RefCell<S>,
    capacity: usize,
    closed: Cell<bool>,
    /// One permit for each item, free or granted.
    getters: WaitQueue,
    pending: RefCell<Pending<S::Item>>,
    /// A permit is granted to the first putter when its item is no longer pending.
    putters: WaitQueue,
    /// How many were put and not reported done.
    unfinished: Cell<usize>,
    /// How often everything was done.
    rounds: Cell<u64>,
    joiners: WaitQueue,
    name: Cell<Name>,
}

impl<S: Store> AnyQueue<S> {
    /// A queue that takes any number of items.
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// A queue that takes so many items; whoever puts more has to wait.
    pub fn bounded(capacity: usize) -> Self {
        Self {
            items: RefCell::default(),
            capacity,
            closed: Cell::new(false),
            getters: WaitQueue::new(),
            pending: RefCell::default(),
            putters: WaitQueue::new(),
            unfinished: Cell::new(0),
            rounds: Cell::new(0),
            joiners: WaitQueue::new(),
            name: Cell::new(Name::NONE),
        }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        self.set_name(name);
        self
    }

    /// Puts an item, when there is room for it.
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
    #[inline]
    pub fn put(&self, item: S::Item) -> impl Future<Output = Result<(), PutError<S::Item>>> {
        Put::new(self, item, Location::caller())
    }

    /// Puts an item, if there is room for it within so long.
    ///
    /// # Cancellation
    ///
    /// As [`put`](Self::put).
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: it was too late, interrupted, or the queue is closed.
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn put_timeout(
        &self,
        item: S::Item,
        length: Duration,
    ) -> impl Future<Output = Result<(), PutError<S::Item>>> {
        let put = timed(length, self.put(item));
        async move {
            let put = put.await;
            let outcome = put.output.expect("a wait on a trap alone is told, and not dropped");
            outcome.map_err(|error| match error.why {
                NotPut::Interrupted(_) if put.expired => {
                    PutError::new(error.item, NotPut::TimedOut)
                }
                _ => error,
            })
        }
    }

    /// Puts an item, if there is room for it now and nobody waits for room.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: there is no room, or the queue is closed.
    pub fn try_put(&self, item: S::Item) -> Result<(), PutError<S::Item>> {
        self.put_now(item).map_err(|(item, why)| PutError::new(item, why))
    }

    #[inline]
    pub(crate) fn put_now(&self, item: S::Item) -> Result<(), (S::Item, NotPut)> {
        if self.closed.get() {
            return Err((item, NotPut::Closed));
        }
        if self.putting() > 0 || !self.has_room() {
            return Err((item, NotPut::Full));
        }
        self.take_in(item);
        Ok(())
    }

    /// Gets the next item, when there is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Dropped, it leaves the line; an item that was promised
    /// to it goes to the next.
    ///
    /// # Errors
    ///
    /// [`GetError`]: interrupted, or the queue is closed and empty.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    #[inline]
    pub fn get(&self) -> impl Future<Output = Result<S::Item, GetError>> {
        Get(self.next(Location::caller()))
    }

    /// The items as they come, as a stream of `Result<S::Item, Interrupted>` that ends when the queue
    /// is closed and empty. After an interruption it goes on.
    ///
    /// # Cancellation
    ///
    /// Each wait as [`get`](Self::get).
    #[track_caller]
    pub fn stream(&self) -> QueueStream<'_, S> {
        QueueStream::new(self, Location::caller())
    }

    /// What waits for the next item.
    #[inline]
    pub(crate) fn next(&self, place: &'static Location<'static>) -> Next<Getters<'_, S>> {
        Next::new(Getters(self), place)
    }

    /// Gets the next item, if one is there that is not promised to somebody who waits.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: there is none, and whether there may be one later.
    #[inline]
    pub fn try_get(&self) -> Result<S::Item, TryGetError> {
        if self.capacity == 0
            && let Some(item) = self.take_from_putter()
        {
            return Ok(item);
        }
        if self.getters.try_take(1)
            && let Some(item) = self.take_out(self.getters.granted())
        {
            return Ok(item);
        }
        if self.is_over() {
            return Err(TryGetError::Closed);
        }
        if self.getters.granted() > 0 {
            self.getters.recover();
            if self.getters.granted() == 0 {
                // They were promised in a kernel that has ended.
                return self.try_get();
            }
        }
        Err(TryGetError::Empty)
    }

    /// Gets all items that are there and not promised to somebody else, waiting until there is one.
    ///
    /// # Cancellation
    ///
    /// As [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn pop_all(&self) -> impl Future<Output = Result<Vec<S::Item>, GetError>> {
        let first = self.get();
        async move {
            let mut all = vec![first.await?];
            while let Ok(item) = self.try_get() {
                all.push(item);
            }
            Ok(all)
        }
    }

    /// Reports that one of the items that were put has been dealt with. See [`join`](Self::join).
    ///
    /// # Errors
    ///
    /// [`NothingToDo`]: that was reported of every item already.
    pub fn task_done(&self) -> Result<(), NothingToDo> {
        let left = self.unfinished.get().checked_sub(1).ok_or(NothingToDo)?;
        self.unfinished.set(left);
        if left == 0 {
            self.rounds.set(self.rounds.get() + 1);
            self.joiners.wake(usize::MAX);
        }
        Ok(())
    }

    /// Waits until everything has been [reported done](Self::task_done) that was put; not at all
    /// if that is so.
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
        let place = Location::caller();
        async move {
            let before = self.rounds.get();
            while self.unfinished.get() > 0 && self.rounds.get() == before {
                signal(Joiners(self), place).await?;
            }
            Ok(())
        }
    }

    /// Lets nobody put anything any more. What is there can still be got.
    ///
    /// Those who wait for room get their items back; those who wait for an item are told.
    pub fn close(&self) {
        self.closed.set(true);
        // They find their items still pending.
        self.putters.give(self.putters.len());
        self.putters.reclaim();
        self.dismiss_if_over();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// How many items are there, those included that are promised to somebody who waits.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }

    /// Whether no item is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether whoever puts now has to wait.
    pub fn is_full(&self) -> bool {
        !self.has_room() || self.putting() > 0
    }

    /// How many items it takes; `None` if any number.
    pub fn capacity(&self) -> Option<usize> {
        (self.capacity < usize::MAX).then_some(self.capacity)
    }

    /// How many wait for an item.
    pub fn getting(&self) -> usize {
        self.getters.len()
    }

    /// How many wait for room.
    pub fn putting(&self) -> usize {
        self.pending.borrow().len()
    }
}

impl<S: Store> AnyQueue<S> {
    pub(crate) fn set_name(&self, name: &'static str) {
        self.name.set(Name::new(name));
    }

    pub(crate) fn name(&self) -> Name {
        self.name.get()
    }

    /// What it is, for a listing.
    pub(crate) fn about(&self) -> String {
        let capacity = match self.capacity() {
            Some(capacity) => format!(" of {capacity}"),
            None => String::new(),
        };
        format!("queue{}, length {}{capacity}", self.name(), self.len())
    }

    /// Whether nothing will ever come out.
    #[inline]
    fn is_over(&self) -> bool {
        self.closed.get() && self.is_empty()
    }

    #[inline]
    fn has_room(&self) -> bool {
        match self.capacity {
            // Only what somebody waits for.
            0 => self.getters.free() == 0 && !self.getters.is_empty(),
            capacity => self.len() < capacity,
        }
    }

    #[inline]
    fn take_in(&self, item: S::Item) {
        self.unfinished.set(self.unfinished.get() + 1);
        self.items.borrow_mut().push(item);
        self.getters.give(1);
    }

    /// Takes out the item that comes after so many others, for a permit; somebody may have room now. `None`: the permit was one
    /// of a queue that is over.
    #[inline]
    fn take_out(&self, after: usize) -> Option<S::Item> {
        let item = self.items.borrow_mut().pop(after)?;
        if self.putting() > 0 {
            self.take_pending();
        }
        if self.closed.get() {
            self.dismiss_if_over();
        }
        Some(item)
    }

    /// Takes in what is pending, as far as there is room.
    #[inline(never)]
    fn take_pending(&self) {
        while !self.closed.get() && self.has_room() {
            let Some(item) = self.pending.borrow_mut().pop() else { return };
            // Also if the order of a priority queue panics.
            let granted = PutterGranted(self);
            self.unfinished.set(self.unfinished.get() + 1);
            self.items.borrow_mut().push(item);
            drop(granted);
            self.getters.give(1);
        }
    }

    /// Takes an item from the hands of the first putter.
    #[inline(never)]
    fn take_from_putter(&self) -> Option<S::Item> {
        if self.closed.get() || self.getters.free() > 0 || !self.getters.is_empty() {
            return None;
        }
        let item = self.pending.borrow_mut().pop()?;
        self.unfinished.set(self.unfinished.get() + 1);
        self.grant_putter();
        Some(item)
    }

    /// Grants a permit to the first putter, whose item is no longer pending. A permit that is left over, because the putter's
    /// kernel has ended or because it has just left, is no other putter's.
    #[inline]
    fn grant_putter(&self) {
        self.putters.reclaim();
        self.putters.give(1);
        self.putters.reclaim();
    }

    /// Has getters look that wait for what never comes.
    #[inline(never)]
    fn dismiss_if_over(&self) {
        if self.is_over() {
            self.getters.give(self.getters.len());
        }
    }
}

impl<T> Queue<T> {
    /// Puts an item before all others, as one that was got and could not be dealt with.
    ///
    /// Never waits, and may exceed the capacity; also when the queue is closed. It counts as one
    /// more item for [`join`](Self::join).
    pub fn push_front(&self, item: T) {
        self.items.borrow_mut().0.push_front(item);
        self.unfinished.set(self.unfinished.get() + 1);
        self.getters.give(1);
    }
}

/// Grants a permit to the first putter when it is dropped.
struct PutterGranted<'a, S: Store>(&'a AnyQueue<S>);

impl<S: Store> Drop for PutterGranted<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.0.grant_putter();
    }
}

/// Waits for the end of all work.
struct Joiners<'a, S: Store>(&'a AnyQueue<S>);

impl<S: Store> Signals for Joiners<'_, S> {
    fn queue(&self) -> &WaitQueue {
        &self.0.joiners
    }

    fn about(&self) -> String {
        format!("queue{}, {} not done", self.0.name(), self.0.unfinished.get())
    }
}

impl<S: Store> fmt::Debug for AnyQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        self.name().show(&mut shown);
        shown
            .field("length", &self.len())
            .field("capacity", &self.capacity())
            .field("promised", &self.getters.granted())
            .field("getting", &self.getting())
            .field("putting", &self.putting())
            .field("unfinished", &self.unfinished.get())
            .field("closed", &self.is_closed())
            .finish()
    }
}
