//! Objects that the tasks of random programs share: locks, permits, items, and wait queues.

use std::cell::Cell;
use std::fmt;
use std::future::Future;

use pikake::Interrupted;
use pikake::sync::{Condvar, Mutex, NotPut, Queue, RwLock, Semaphore};
use pikake::traps::{WaitQueue, take};
use proptest::prelude::*;

use crate::runner::World;

const MUTEXES: usize = 2;

/// How many permits there are.
const PERMITS: usize = 2;

/// Locks and permits that a block holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Lock(usize),
    Read,
    Write,
    Permits(usize),
    /// So many permits of a wait queue.
    Taken(usize, usize),
}

/// Operations on items, notifications, and permits that any task may return.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exchange {
    Put(usize),
    TryPut(usize),
    Get(usize),
    /// Under the first mutex, until somebody notifies.
    Wait,
    Notify(usize),
    /// So many permits of a wait queue, which are kept.
    Take(usize, usize),
    TryTake(usize, usize),
    /// So many permits for a wait queue: those that are kept, or new ones.
    Give(usize, usize),
}

pub(crate) fn held() -> impl Strategy<Value = Held> {
    prop_oneof![
        3 => (0..MUTEXES).prop_map(Held::Lock),
        1 => Just(Held::Read),
        1 => Just(Held::Write),
        2 => (1..=PERMITS).prop_map(Held::Permits),
        2 => held_permits(),
    ]
}

pub(crate) fn exchange() -> impl Strategy<Value = Exchange> {
    // The number of a queue is the room in it.
    let queue = || 0..QUEUES;
    prop_oneof![
        2 => queue().prop_map(Exchange::Put),
        1 => queue().prop_map(Exchange::TryPut),
        2 => queue().prop_map(Exchange::Get),
        1 => Just(Exchange::Wait),
        1 => (1..3_usize).prop_map(Exchange::Notify),
        4 => permits(),
    ]
}

const QUEUES: usize = 3;

/// How many wait queues have permits; in the beginning, each has as many as its number.
const POOLS: usize = 2;

/// Permits that are taken, or given back.
pub(crate) fn permits() -> impl Strategy<Value = Exchange> {
    prop_oneof![
        4 => taken().prop_map(|(which, count)| Exchange::Take(which, count)),
        1 => taken().prop_map(|(which, count)| Exchange::TryTake(which, count)),
        4 => taken().prop_map(|(which, count)| Exchange::Give(which, count)),
    ]
}

/// Permits that are held during a block.
pub(crate) fn held_permits() -> impl Strategy<Value = Held> {
    taken().prop_map(|(which, count)| Held::Taken(which, count))
}

/// A wait queue, and a number of its permits.
fn taken() -> impl Strategy<Value = (usize, usize)> {
    (0..POOLS, 0..4_usize)
}

/// The note at the end of all tasks, if nothing was lost.
pub(crate) const ALL_GIVEN_BACK: &str = "everything was given back";

/// A wait queue with permits, and how many permits are not in it.
struct Pool {
    queue: WaitQueue,
    /// Held during blocks.
    held: Cell<usize>,
    /// Kept until some task gives them back.
    kept: Cell<usize>,
    made: Cell<usize>,
}

fn add(to: &Cell<usize>, count: usize) {
    to.set(to.get() + count);
}

impl Pool {
    fn new(permits: usize) -> Self {
        let queue = WaitQueue::with_permits(permits);
        Self { queue, held: Cell::new(0), kept: Cell::new(0), made: Cell::new(permits) }
    }

    /// Takes permits back that are kept, or makes new ones, and gives them.
    fn give(&self, count: usize) {
        match self.kept.get().checked_sub(count) {
            Some(kept) => self.kept.set(kept),
            None => add(&self.made, count),
        }
        self.queue.give(count);
    }

    /// Whether each permit is in one place.
    fn is_balanced(&self) -> bool {
        let Self { queue, held, kept, made } = self;
        queue.free() + queue.granted() + held.get() + kept.get() == made.get()
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, held, kept, .. } = self;
        let (free, granted, waiting) = (queue.free(), queue.granted(), queue.len());
        let (held, kept) = (held.get(), kept.get());
        write!(f, "{free} free, {granted} granted, {held} held, {kept} kept, {waiting} wait")?;
        if self.is_balanced() { Ok(()) } else { f.write_str(UNBALANCED) }
    }
}

/// The note when a permit is lost or doubled.
pub(crate) const UNBALANCED: &str = ", which is not what there is";

/// Permits that are held during a block.
struct Taken<'a>(&'a Pool, usize);

impl<'a> Taken<'a> {
    fn new(pool: &'a Pool, count: usize) -> Self {
        add(&pool.held, count);
        Self(pool, count)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - self.1);
        self.0.queue.give(self.1);
    }
}

/// Where they meet.
pub(crate) struct Points {
    world: World,
    mutexes: [Mutex<()>; MUTEXES],
    value: RwLock<u32>,
    permits: Semaphore,
    queues: [Queue<u64>; QUEUES],
    /// The number of the next item.
    next: Cell<u64>,
    notified: Condvar,
    pools: [Pool; POOLS],
}

impl Points {
    pub(crate) fn new(world: World) -> Self {
        Self {
            world,
            mutexes: Default::default(),
            value: RwLock::default(),
            permits: Semaphore::bounded(PERMITS),
            queues: std::array::from_fn(Queue::bounded),
            next: Cell::new(0),
            notified: Condvar::new(),
            pools: std::array::from_fn(Pool::new),
        }
    }

    /// Runs a block while something is held.
    pub(crate) async fn hold(
        &self,
        held: Held,
        note: impl Fn(String),
        block: impl Future<Output = Result<(), Interrupted>>,
    ) -> Result<(), Interrupted> {
        match held {
            Held::Lock(which) => {
                let mutex = &self.mutexes[which];
                let _guard = mutex.lock().await?;
                note(format!("has lock {which}, {} wait", mutex.waiting()));
                block.await
            }
            Held::Read => {
                let value = self.value.read().await?;
                note(format!("reads {}, {} wait", *value, self.value.waiting()));
                block.await
            }
            Held::Write => {
                let mut value = self.value.write().await?;
                *value += 1;
                note(format!("writes {}, {} wait", *value, self.value.waiting()));
                block.await
            }
            Held::Permits(count) => {
                let _permit = self.permits.acquire_many(count).await?;
                let (left, waiting) = (self.permits.available_permits(), self.permits.waiting());
                note(format!("has {count} permits, {left} are left, {waiting} wait"));
                block.await
            }
            Held::Taken(which, count) => {
                let pool = &self.pools[which];
                take(&pool.queue, count).await?;
                let _taken = Taken::new(pool, count);
                note(format!("has {count} of {which}: {pool}"));
                block.await
            }
        }
    }

    pub(crate) async fn exchange(
        &self,
        exchange: Exchange,
        note: impl Fn(String),
    ) -> Result<(), Interrupted> {
        let item = || {
            self.next.set(self.next.get() + 1);
            self.next.get()
        };
        match exchange {
            Exchange::Put(which) => {
                let item = item();
                if let Err(error) = self.queues[which].put(item).await {
                    assert_eq!(error.item, item);
                    let NotPut::Interrupted(why) = error.why else { unreachable!("not closed") };
                    return Err(why);
                }
                note(format!("has put {item} into {which}"));
            }
            Exchange::TryPut(which) => {
                let item = item();
                let is_put = self.queues[which].try_put(item).is_ok();
                note(format!("{item} into {which}: {is_put}"));
            }
            Exchange::Get(which) => {
                let item = self.queues[which].get().await?.expect("it is not closed");
                note(format!("has got {item} from {which}"));
            }
            Exchange::Wait => {
                let guard = self.mutexes[0].lock().await?;
                match self.notified.wait(guard).await {
                    Ok(_guard) => note("was notified".into()),
                    Err(error) => return Err(error.interrupted),
                }
            }
            Exchange::Notify(count) => {
                let notified = self.notified.notify(count);
                note(format!("notified {notified}, {} wait", self.notified.waiting()));
            }
            Exchange::Take(which, count) => {
                let pool = &self.pools[which];
                take(&pool.queue, count).await?;
                add(&pool.kept, count);
                note(format!("keeps {count} of {which}: {pool}"));
            }
            Exchange::TryTake(which, count) => {
                let pool = &self.pools[which];
                let is_taken = pool.queue.try_take(count);
                add(&pool.kept, if is_taken { count } else { 0 });
                note(format!("{count} of {which}, {is_taken}: {pool}"));
            }
            Exchange::Give(which, count) => {
                let pool = &self.pools[which];
                pool.give(count);
                note(format!("gives {count} to {which}: {pool}"));
            }
        }
        Ok(())
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        let waiting = self.mutexes.iter().map(Mutex::waiting).sum::<usize>()
            + self.value.waiting()
            + self.permits.waiting()
            + self.queues.iter().map(|queue| queue.getting() + queue.putting()).sum::<usize>()
            + self.notified.waiting();
        let is_held = self.mutexes.iter().any(Mutex::is_locked)
            || self.value.is_writing()
            || self.value.reading() > 0;
        let permits = self.permits.available_permits();
        let is_settled = |pool: &Pool| {
            pool.queue.granted() == 0 && pool.queue.is_empty() && pool.held.get() == 0
        };
        let is_balanced = self.pools.iter().all(|pool| is_settled(pool) && pool.is_balanced());
        match (waiting, is_held, permits, is_balanced) {
            (0, false, PERMITS, true) => self.world.note(ALL_GIVEN_BACK),
            _ => self.world.note(format_args!(
                "{waiting} wait, {is_held}, {permits} permits, balanced: {is_balanced}"
            )),
        }
    }
}
