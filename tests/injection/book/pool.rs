//! Things that are lent, each to one task at a time.

// ANCHOR: pool
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use pikake::testing::interrupt_everywhere;
use pikake::traps::{WaitQueue, take};
use pikake::{Interrupted, TaskGroup, sleep};

/// Things that are lent to tasks, each to one at a time.
struct Pool<T> {
    things: RefCell<Vec<T>>,
    /// A permit for each thing in `things`.
    permits: WaitQueue,
}

/// A lent thing, which returns to its pool when this is dropped.
struct Lease<T> {
    pool: Rc<Pool<T>>,
    thing: Option<T>,
}

impl<T> Pool<T> {
    fn new(things: Vec<T>) -> Rc<Self> {
        let permits = WaitQueue::with_permits(things.len());
        Rc::new(Self { things: RefCell::new(things), permits })
    }

    /// Lends a thing, as soon as one is free and no earlier task waits.
    async fn lend(self: &Rc<Self>) -> Result<Lease<T>, Interrupted> {
        take(&self.permits, 1).await?;
        let thing = self.things.borrow_mut().pop();
        let lease = Lease { pool: self.clone(), thing };
        reset(&lease).await?;
        Ok(lease)
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.pool.things.borrow_mut().extend(self.thing.take());
        self.pool.permits.give(1);
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect("the pool had a thing for each permit")
    }
}

/// In place of a command that resets a connection: a round trip.
async fn reset<T>(_thing: &T) -> Result<(), Interrupted> {
    sleep(Duration::from_millis(1)).await
}

async fn use_one(pool: Rc<Pool<&'static str>>) -> Result<usize, Interrupted> {
    let connection = pool.lend().await?;
    sleep(Duration::from_millis(5)).await?;
    Ok(connection.len())
}

/// Three tasks share two connections.
#[test]
fn interrupted_pool_keeps_its_things() {
    let report = interrupt_everywhere(
        || async {
            let pool = Pool::new(vec!["one", "two"]);
            let mut others = TaskGroup::new();
            others.spawn(use_one(pool.clone()));
            others.spawn(use_one(pool.clone()));
            pikake::yield_now().await.ok(); // the others come first
            let used = use_one(pool.clone()).await;
            let _ = others.try_join_all().await;
            let left = pool.things.borrow().len();
            (used.is_ok(), left, pool.permits.free())
        },
        |run| {
            let (used, left, free) = run.output.expect("the program waits on traps only");
            assert_eq!((left, free), (2, 2), "a thing or a permit is lost");
            assert!(used || run.interruption.is_some());
        },
    );
    assert!(report.suspensions >= 4, "{report:?}");
}
// ANCHOR_END: pool
