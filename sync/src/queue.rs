//! Queues: items that some tasks put and others get.
//!
//! ```text
//!   put ──▶ [ pending items, and their putters ] ──▶ room ──▶ [ items ] ──▶ get
//!                                                                ▲
//!                                                 [ getters ] ───┘ one permit for each item
//! ```
//!
//! *Each item is a permit* of the queue of getters. A getter takes a permit, then the item. A
//! permit that was granted to a getter reserves an item, which stays in the queue until the getter
//! runs. So the queue still holds the item if the getter is dropped.
//!
//! *A putter that waits* adds its item to the pending items. A call that makes room moves the first
//! pending item to the items, and grants the item's putter a permit, which ends the `put`. Putters
//! and their pending items have the same order, and leave together.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at};

use crate::error::{NothingToDo, TryGetError, TryPutError};
use crate::name::Name;
use crate::pending::Pending;
use crate::store::{Fifo, Lifo, Smallest, Store};

pub(crate) mod waits;

/// Items that some tasks put and others get.
///
/// The first item in is the first out. A [`LifoQueue`] returns the last item first, a
/// [`PriorityQueue`] the smallest. Getters and putters wait in order of arrival. See [`AnyQueue`]
/// for the methods.
///
/// A queue of [capacity](AnyQueue::bounded) zero holds no items: `put` waits for a getter, and
/// returns when the item was handed over. If that getter is interrupted before it runs, the item
/// waits for the next getter.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::Queue;
///
/// let queue = Queue::bounded(2);
/// queue.put("first").await?;
/// queue.put("second").await?;
/// assert_eq!(queue.try_put("third").unwrap_err().into_item(), "third");
/// assert_eq!(queue.get().await?, Some("first"));
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// Waiting until all items are processed:
///
/// ```
/// # async fn copy(file: u32) {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pikake::sync::Queue;
/// use std::rc::Rc;
///
/// let files = Rc::new(Queue::unbounded());
/// for _ in 0..4 {
///     let files = files.clone();
///     let worker = pikake::spawn(async move {
///         while let Some(file) = files.get().await? {
///             copy(file).await;
///             files.task_done().expect("called once per item");
///         }
///         Ok::<_, pikake::Interrupted>(())
///     });
///     worker.detach();
/// }
/// for file in 0..100 {
///     files.put(file).await?;
/// }
/// files.join().await?;
/// files.close(); // the workers end
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
pub type Queue<T> = AnyQueue<Fifo<T>>;

/// A [`Queue`] that returns the smallest item first, and equal items in order of arrival.
///
/// # Examples
///
/// ```
/// use pikake::sync::PriorityQueue;
///
/// let queue = PriorityQueue::unbounded();
/// for number in [3, 1, 2] {
///     queue.try_put(number).unwrap();
/// }
/// assert_eq!(queue.try_get(), Ok(1));
/// ```
pub type PriorityQueue<T> = AnyQueue<Smallest<T>>;

/// A [`Queue`] that returns the last item first.
///
/// # Examples
///
/// ```
/// use pikake::sync::LifoQueue;
///
/// let queue = LifoQueue::unbounded();
/// for number in [3, 1, 2] {
///     queue.try_put(number).unwrap();
/// }
/// assert_eq!(queue.try_get(), Ok(2));
/// ```
pub type LifoQueue<T> = AnyQueue<Lifo<T>>;

/// A [`Queue`], [`LifoQueue`] or [`PriorityQueue`]: `S` determines the order of the items.
pub struct AnyQueue<S: Store> {
    items: RefCell<S>,
    capacity: usize,
    closed: Cell<bool>,
    /// One permit for each item, free or granted.
    getters: WaitQueue,
    pending: RefCell<Pending<S::Item>>,
    /// A permit is granted to the first putter when its item is not pending any more.
    putters: WaitQueue,
    /// Items that were put and not reported done.
    unfinished: Cell<usize>,
    /// How often `unfinished` became zero.
    rounds: Cell<u64>,
    joiners: WaitQueue,
    name: Cell<Name>,
}

impl<S: Store> AnyQueue<S> {
    /// Creates a queue that holds any number of items.
    pub fn unbounded() -> Self {
        Self::bounded(usize::MAX)
    }

    /// Creates a queue that holds up to `capacity` items. `put` waits while the queue is full.
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

    /// Adds a name, which `Debug` and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        self.set_name(name);
        self
    }

    /// Puts an item, if there is room now and no other caller waits for room.
    ///
    /// # Errors
    ///
    /// [`TryPutError`], with the item: there is no room, or the queue is closed.
    #[inline]
    pub fn try_put(&self, item: S::Item) -> Result<(), TryPutError<S::Item>> {
        if self.closed.get() {
            return Err(TryPutError::Closed(item));
        }
        if self.putting() > 0 || !self.has_room() {
            return Err(TryPutError::Full(item));
        }
        self.take_in(item);
        Ok(())
    }

    /// Gets the next item, unless all items are granted to waiting getters.
    ///
    /// # Errors
    ///
    /// [`TryGetError`], which tells an empty queue from one that is closed.
    #[inline]
    pub fn try_get(&self) -> Result<S::Item, TryGetError> {
        if self.capacity == 0 {
            if let Some(item) = self.take_from_putter() {
                return Ok(item);
            }
        }
        if self.getters.try_take(1) {
            if let Some(item) = self.take_out(self.getters.granted()) {
                return Ok(item);
            }
        }
        if self.is_over() {
            return Err(TryGetError::Closed);
        }
        if self.getters.granted() > 0 {
            self.getters.recover();
            if self.getters.granted() == 0 {
                // The items were granted to getters of an ended kernel.
                return self.try_get();
            }
        }
        Err(TryGetError::Empty)
    }

    /// Reports one item as processed. See [`join`](Self::join).
    ///
    /// # Errors
    ///
    /// [`NothingToDo`]: every item was already reported.
    pub fn task_done(&self) -> Result<(), NothingToDo> {
        let left = self.unfinished.get().checked_sub(1).ok_or(NothingToDo)?;
        self.unfinished.set(left);
        if left == 0 {
            self.rounds.set(self.rounds.get() + 1);
            self.joiners.wake(usize::MAX);
        }
        Ok(())
    }

    /// Waits until all items that were put are [reported done](Self::task_done).
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
        let place = Location::caller();
        async move {
            let before = self.rounds.get();
            while self.unfinished.get() > 0 && self.rounds.get() == before {
                park_at(JoinWait(self), place).await?;
            }
            Ok(())
        }
    }

    /// Refuses further items. Items in the queue can still be got.
    ///
    /// Pending `put`s return their items; pending `get`s return `None` once the queue is empty.
    pub fn close(&self) {
        self.closed.set(true);
        // The putters find their items still pending.
        self.putters.give(self.putters.len());
        self.putters.reclaim();
        self.dismiss_if_over();
    }

    /// Whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The number of items, with those that are granted to waiting getters.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }

    /// Whether the queue holds no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a `put` would have to wait.
    pub fn is_full(&self) -> bool {
        !self.has_room() || self.putting() > 0
    }

    /// The capacity; `None` if the queue is unbounded.
    pub fn capacity(&self) -> Option<usize> {
        (self.capacity < usize::MAX).then_some(self.capacity)
    }

    /// The number of waiting getters.
    pub fn getting(&self) -> usize {
        self.getters.len()
    }

    /// The number of waiting putters.
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

    /// A description for listings of waits.
    pub(crate) fn about(&self) -> About {
        let capacity = match self.capacity() {
            Some(capacity) => format!(" of {capacity}"),
            None => String::new(),
        };
        About::new(format!("queue{}, length {}{capacity}", self.name(), self.len()))
    }

    /// Whether the queue is closed and empty.
    #[inline]
    fn is_over(&self) -> bool {
        self.closed.get() && self.is_empty()
    }

    #[inline]
    fn has_room(&self) -> bool {
        match self.capacity {
            // Room for one item per waiting getter.
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

    /// Takes out the item behind the first `after` ones, for a permit, and fills the room with
    /// pending items. `None` if the permit only reported that the queue is closed and empty.
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

    /// Moves pending items into the queue while there is room.
    #[inline(never)]
    fn take_pending(&self) {
        while !self.closed.get() && self.has_room() {
            let Some(item) = self.pending.borrow_mut().pop() else { return };
            // Also if the comparison of a priority queue panics.
            let granted = GrantPutterOnDrop(self);
            self.unfinished.set(self.unfinished.get() + 1);
            self.items.borrow_mut().push(item);
            drop(granted);
            self.getters.give(1);
        }
    }

    /// Takes the item of the first waiting putter.
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

    /// Grants a permit to the first putter, whose item is not pending any more. If that putter has
    /// left or its kernel has ended, the permit is discarded, since it is no other putter's.
    #[inline]
    fn grant_putter(&self) {
        self.putters.reclaim();
        self.putters.give(1);
        self.putters.reclaim();
    }

    /// Wakes all getters if the queue is closed and empty.
    #[inline(never)]
    fn dismiss_if_over(&self) {
        if self.is_over() {
            self.getters.give(self.getters.len());
        }
    }
}

impl<T> Queue<T> {
    /// Puts an item before all others, for an item that a worker got but could not process.
    ///
    /// Never waits, may exceed the capacity, and works on a closed queue. [`join`](Self::join)
    /// counts the item once more.
    pub fn push_front(&self, item: T) {
        self.items.borrow_mut().0.push_front(item);
        self.unfinished.set(self.unfinished.get() + 1);
        self.getters.give(1);
    }
}

/// Grants a permit to the first putter on drop.
struct GrantPutterOnDrop<'a, S: Store>(&'a AnyQueue<S>);

impl<S: Store> Drop for GrantPutterOnDrop<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.0.grant_putter();
    }
}

/// A wait until all items are done.
struct JoinWait<'a, S: Store>(&'a AnyQueue<S>);

impl<S: Store> Queued for JoinWait<'_, S> {
    fn queue(&self) -> &WaitQueue {
        &self.0.joiners
    }

    fn about(&self) -> About {
        About::new(format!("queue{}, {} not done", self.0.name(), self.0.unfinished.get()))
    }
}

impl<S: Store> fmt::Debug for AnyQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        self.name().show(&mut shown);
        shown
            .field("length", &self.len())
            .field("capacity", &self.capacity())
            .field("granted", &self.getters.granted())
            .field("getting", &self.getting())
            .field("putting", &self.putting())
            .field("unfinished", &self.unfinished.get())
            .field("closed", &self.is_closed())
            .finish()
    }
}
