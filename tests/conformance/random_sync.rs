//! What the tasks of random programs meet at: locks, permits, items.

use std::cell::Cell;
use std::future::Future;

use pikake::Interrupted;
use pikake::sync::{Condvar, GetError, Mutex, NotPut, Queue, RwLock, Semaphore};
use proptest::prelude::*;

use crate::runner::World;

const MUTEXES: usize = 2;

/// How many permits there are.
const PERMITS: usize = 2;

/// What is held during a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Lock(usize),
    Read,
    Write,
    Permits(usize),
}

/// What is done with items and notifications.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exchange {
    Put(usize),
    TryPut(usize),
    Get(usize),
    /// Under the first mutex, until somebody notifies.
    Wait,
    Notify(usize),
}

pub(crate) fn held() -> impl Strategy<Value = Held> {
    prop_oneof![
        3 => (0..MUTEXES).prop_map(Held::Lock),
        1 => Just(Held::Read),
        1 => Just(Held::Write),
        2 => (1..=PERMITS).prop_map(Held::Permits),
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
    ]
}

const QUEUES: usize = 3;

/// What is noted when nobody is left, if nothing was lost.
pub(crate) const ALL_GIVEN_BACK: &str = "everything was given back";

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
                let _permit = self.permits.acquire(count).await?;
                let (left, waiting) = (self.permits.available(), self.permits.waiting());
                note(format!("has {count} permits, {left} are left, {waiting} wait"));
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
            Exchange::Get(which) => match self.queues[which].get().await {
                Ok(item) => note(format!("has got {item} from {which}")),
                Err(GetError::Interrupted(why)) => return Err(why),
                Err(error) => unreachable!("not closed: {error}"),
            },
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
        let permits = self.permits.available();
        match (waiting, is_held, permits) {
            (0, false, PERMITS) => self.world.note(ALL_GIVEN_BACK),
            _ => self.world.note(format_args!("{waiting} wait, {is_held}, {permits} permits")),
        }
    }
}
