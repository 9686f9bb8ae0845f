//! Several kernels: each has its pool, and a common limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use pikake::pool::{Lease, Limit, Manager, Pool};
use pikake::{Kernel, sleep, spawn};

use crate::objects::{MS, builder, pool, world};

/// Longer than any test takes, on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[test]
#[should_panic(expected = "the pool `things` belongs to another kernel")]
fn a_pool_belongs_to_its_first_kernel() {
    let world = world();
    let pool = pool(&world, 1);
    let (one, other) = (Kernel::new().unwrap(), Kernel::new().unwrap());
    one.run(async { drop(pool.get().await) });
    other.run(async { drop(pool.get().await) });
}

/// An idle object makes room, and callers of both pools are served in the order of asking.
#[pikake::sim(seeds = 20)]
async fn a_common_limit_holds_and_is_fair() {
    let world = world();
    let limit = Limit::new(2);
    let pools = [(); 2].map(|()| builder(&world).limit(2).common_limit(&limit).build());
    drop((pools[0].get().await.unwrap(), pools[0].get().await.unwrap()));
    sleep(MS).await.unwrap();
    assert_eq!((limit.used(), pools[0].stats().idle), (2, 2));
    let held = pools[1].get().await.unwrap();
    assert_eq!((pools[0].stats().idle, limit.used()), (1, 2));
    let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let first = pools[0].get().await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (pool, order) = (pools[number % 2].clone(), order.clone());
        tasks.push(spawn(async move {
            let _thing = pool.get().await.unwrap();
            order.borrow_mut().push(number);
            sleep(2 * MS).await
        }));
        sleep(MS / 100).await.unwrap();
    }
    drop(held);
    drop(first);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let order = order.take();
    let is_fair = order.iter().enumerate().all(|(place, number)| place.abs_diff(*number) < 2);
    assert!(is_fair, "two are served at a time: {order:?}");
    assert!(world.most.get() <= 2);
    drop(pools);
    sleep(MS).await.unwrap();
    assert_eq!((limit.used(), world.alive()), (0, 0));
}

/// Counts the objects that exist, in all kernels.
#[derive(Clone, Default)]
pub(crate) struct Counted(Arc<(AtomicUsize, AtomicUsize)>);

impl Counted {
    pub(crate) fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

pub(crate) struct One(Counted);

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Manager for Counted {
    type Object = One;
    type Error = pikake::Interrupted;

    async fn create(&self) -> Result<One, pikake::Interrupted> {
        let (alive, most) = &*self.0;
        most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Ok(One(self.clone()))
    }
}

const KERNELS: usize = 3;

#[test]
fn a_common_limit_holds_over_kernels() {
    let (counted, limit) = (Counted::default(), Limit::new(4));
    let begin = Arc::new(Barrier::new(KERNELS));
    let threads = [(); KERNELS].map(|()| {
        let (counted, limit, begin) = (counted.clone(), limit.clone(), begin.clone());
        std::thread::spawn(move || {
            pikake::run(async move {
                let builder = Pool::builder(counted).limit(4).common_limit(&limit);
                let pool = builder.wait(Some(LONG)).build();
                begin.wait();
                let tasks = [(); 20].map(|()| {
                    let pool = pool.clone();
                    spawn(async move {
                        for _ in 0..20 {
                            let _one = pool.get().await.unwrap();
                            pikake::yield_now().await.unwrap();
                        }
                    })
                });
                for task in tasks {
                    task.await.unwrap();
                }
                pool.close(LONG).await
            })
        })
    });
    for thread in threads {
        assert!(thread.join().unwrap().is_complete());
    }
    assert_eq!(counted.0.0.load(Ordering::SeqCst), 0);
    assert!(counted.most() <= 4);
}

/// A unit that nobody asked for goes to a pool with too few idle objects.
#[pikake::sim]
async fn a_free_unit_goes_to_a_pool_short_of_idle_objects() {
    let world = world();
    let limit = Limit::new(2);
    let other = builder(&world).limit(2).common_limit(&limit).build();
    let held = (other.get().await.unwrap(), other.get().await.unwrap());
    let pool = builder(&world).min_idle(1).common_limit(&limit).build();
    assert!(pool.try_get().is_none());
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 0);
    Lease::discard(held.0);
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().idle, limit.used()), (1, 2));
}

/// The request of a pool stands for its first caller who still waits.
#[pikake::sim]
async fn a_request_of_a_caller_who_left_is_not_served_first() {
    let world = world();
    let limit = Limit::new(1);
    let pools = [(); 3].map(|()| builder(&world).limit(1).common_limit(&limit).build());
    let held = pools[0].get().await.unwrap();
    let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, wait) in [(1, MS), (2, LONG), (1, LONG)] {
        let (pool, order) = (pools[number].clone(), order.clone());
        tasks.push(spawn(async move {
            let thing = pool.get_timeout(wait).await;
            order.borrow_mut().push((number, thing.is_ok()));
            sleep(MS).await.unwrap();
        }));
        sleep(MS / 100).await.unwrap();
    }
    sleep(5 * MS).await.unwrap();
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(order.take(), [(1, false), (2, true), (1, true)]);
}

#[pikake::sim]
async fn an_exhausted_pool_shows_the_common_limit() {
    let world = world();
    let limit = Limit::new(1);
    let [one, other] = [(); 2].map(|()| builder(&world).limit(4).common_limit(&limit).build());
    let _held = one.get().await.unwrap();
    let error = other.get_timeout(MS).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the pool `things` gave no object within 1ms: 0 of 4 are in use; the pools of the common limit have 1 of 1 objects"
    );
}
