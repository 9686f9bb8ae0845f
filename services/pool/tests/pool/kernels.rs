//! Several kernels: each has its pool, and a common limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use pikake::pool::{Lease, Limit, Manager, Pool, Shared, Verify};
use pikake::{Kernel, sleep, spawn};

use crate::objects::{MS, builder, pool, world};

/// Longer than any test takes, on any machine.
const LONG: Duration = Duration::from_secs(60);

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
struct Counted(Arc<(AtomicUsize, AtomicUsize, AtomicUsize, AtomicUsize)>);

struct One(Counted, u64);

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Manager for Counted {
    type Object = One;
    type Error = pikake::Interrupted;

    async fn create(&self) -> Result<One, pikake::Interrupted> {
        let (alive, most, made, _) = &*self.0;
        made.fetch_add(1, Ordering::SeqCst);
        most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Ok(One(self.clone(), 0))
    }

    async fn verify(&self, _: &mut One) -> Result<(), pikake::Interrupted> {
        self.0.3.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

const KERNELS: usize = 3;

/// Runs a program in several kernels at a time, with a pool each.
fn on_kernels(counted: &Counted, pool: impl Fn() -> Pool<Counted> + Clone + Send + 'static) {
    let begin = Arc::new(Barrier::new(KERNELS));
    let threads = (0..KERNELS).map(|_| {
        let (pool, begin) = (pool.clone(), begin.clone());
        std::thread::spawn(move || {
            pikake::run(async move {
                let pool = pool();
                begin.wait();
                let tasks: Vec<_> = (0..20)
                    .map(|_| {
                        let pool = pool.clone();
                        spawn(async move {
                            for _ in 0..20 {
                                let mut one = pool.get().await.unwrap();
                                one.1 += 1;
                                pikake::yield_now().await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                pool.close(LONG).await
            })
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        assert!(thread.join().unwrap().is_complete());
    }
    let (alive, most, ..) = &*counted.0;
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert!(most.load(Ordering::SeqCst) <= 4);
}

#[test]
fn a_common_limit_holds_over_kernels() {
    let (counted, limit) = (Counted::default(), Limit::new(4));
    let manager = counted.clone();
    on_kernels(&counted, move || {
        Pool::builder(manager.clone()).limit(4).common_limit(&limit).wait(Some(LONG)).build()
    });
}

#[test]
fn shared_objects_move_between_kernels() {
    let counted = Counted::default();
    let shared = Shared::new(counted.clone(), 4, |pool| pool.wait(Some(LONG)));
    on_kernels(&counted, move || shared.pool());
}

/// In simulation: two hosts share the objects, and none is used by both.
#[test]
fn shared_objects_move_between_hosts() {
    let moved = Arc::new(AtomicUsize::new(0));
    let seen = moved.clone();
    pikake::sim::Runs::new("kernels::shared_objects_move_between_hosts").seeds(100).run(
        move |sim| {
            let counted = Counted::default();
            let shared = Shared::new(counted.clone(), 2, |pool| pool.wait(Some(LONG)));
            for host in ["one", "other"] {
                let (shared, counted, moved) = (shared.clone(), counted.clone(), seen.clone());
                sim.client(host, move || {
                    let (shared, counted, moved) = (shared.clone(), counted.clone(), moved.clone());
                    async move {
                        let pool = shared.pool();
                        let mut own = 0;
                        for _ in 0..30 {
                            let pause = MS * pikake::random::range(0..3) as u32;
                            let limit = MS * pikake::random::range(1..20) as u32;
                            let used = pikake::timeout_after(limit, async {
                                let mut one = pool.get().await.unwrap();
                                own += 1;
                                one.1 += 1;
                                let before = one.1;
                                let slept = sleep(pause).await;
                                assert_eq!(one.1, before, "it is used by both");
                                slept
                            });
                            let _ = used.await;
                            sleep(pause).await.unwrap();
                        }
                        assert!(pool.close(LONG).await.is_complete());
                        assert!(counted.0.1.load(Ordering::SeqCst) <= 2);
                        moved.fetch_add(own, Ordering::SeqCst);
                    }
                });
            }
        },
    );
    assert!(moved.load(Ordering::SeqCst) > 1000);
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

/// A pool with the common limit of shared pools gets no object of theirs, and room for its own.
#[pikake::sim]
async fn a_pool_outside_of_the_shared_ones_gets_room() {
    let counted = Counted::default();
    let shared = Shared::new(counted.clone(), 1, |pool| pool.wait(Some(LONG)));
    let pool = shared.pool();
    let outside = Pool::builder(counted.clone()).common_limit(shared.limit()).wait(Some(LONG));
    let outside = outside.build();
    let held = pool.get().await.unwrap();
    let waiting = spawn(async move { outside.get().await.map(|one| one.1) });
    sleep(MS).await.unwrap();
    drop(held);
    assert_eq!(waiting.await.unwrap().unwrap(), 0);
    assert_eq!(counted.0.2.load(Ordering::SeqCst), 2, "a new object");
    sleep(MS).await.unwrap();
    assert_eq!((counted.0.0.load(Ordering::SeqCst), shared.limit().used()), (0, 0));
}

/// An object keeps its idle time on its way to another kernel.
#[pikake::sim]
async fn a_shared_object_is_verified_for_its_idle_time() {
    let counted = Counted::default();
    let second = Duration::from_secs(1);
    let shared = Shared::new(counted.clone(), 1, move |pool| {
        pool.wait(Some(LONG)).verify(Verify::AfterIdle(10 * second))
    });
    let (one, other) = (shared.pool(), shared.pool());
    let mut verified = Vec::new();
    for (pool, idle) in [(&one, 20), (&other, 5), (&one, 20), (&one, 5), (&other, 0)] {
        drop(pool.get().await.unwrap());
        verified.push(counted.0.3.load(Ordering::SeqCst));
        sleep(idle * second).await.unwrap();
    }
    assert_eq!(verified, [0, 1, 1, 2, 2]);
    assert_eq!(counted.0.2.load(Ordering::SeqCst), 1, "one object");
}

/// One object serves two kernels in turn.
#[test]
fn an_idle_object_goes_to_the_kernel_that_needs_it() {
    let counted = Counted::default();
    let shared = Shared::new(counted.clone(), 1, |pool| pool.wait(Some(LONG)));
    let other = shared.clone();
    let kernel = Kernel::new().unwrap();
    let thread = kernel.run(async {
        let pool = shared.pool();
        pool.get().await.unwrap().1 = 7;
        let (done, is_done) = pikake::sync::shared::bounded_channel(1);
        let thread = std::thread::spawn(move || {
            let seen = pikake::run(async move { other.pool().get().await.unwrap().1 });
            done.send_blocking(()).unwrap();
            seen
        });
        // This kernel runs until the other one has got the object.
        let mut is_done = is_done;
        is_done.recv().await.unwrap();
        thread
    });
    assert_eq!(thread.join().unwrap(), 7);
    assert_eq!(counted.0.2.load(Ordering::SeqCst), 1);
}
