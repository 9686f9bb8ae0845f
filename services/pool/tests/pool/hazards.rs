//! The hazards of a pool, each by itself: sharing, leaks, dirty and dead objects, double release,
//! fork.
//!
//! An object cannot be given back twice, since a lease is moved when it is dropped, and its object
//! is out of reach then: the documentation of `Lease` has programs that do not compile.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use pikake::pool::{GetError, Verify};
use pikake::sync::Barrier;
use pikake::{TaskGroup, sleep, spawn, yield_now};

use crate::objects::{MS, builder, pool, world};

/// Runs each test on the real kernel, and in simulation.
macro_rules! on_both_kernels {
    ($($name:ident)*) => {
        mod real {
            $(#[pikake::test]
            async fn $name() {
                super::$name().await;
            })*
        }

        mod simulated {
            $(#[pikake::sim]
            async fn $name() {
                super::$name().await;
            })*
        }
    };
}

on_both_kernels! {
    parallel_gets_give_distinct_objects
    all_objects_come_back
    an_object_that_cannot_be_cleaned_is_destroyed
    dead_objects_are_replaced
    an_object_that_died_idle_is_not_lent
    pools_share_no_object
}

/// As many tasks as objects get one each, and the next one gets none.
async fn parallel_gets_give_distinct_objects() {
    const COUNT: usize = 300;
    let world = world();
    world.create_takes.set(MS);
    let pool = builder(&world).limit(COUNT).creations(COUNT).build();
    let all_have_one = Rc::new(Barrier::new(COUNT + 1));
    let mut group = TaskGroup::new();
    for _ in 0..COUNT {
        let (pool, barrier) = (pool.clone(), all_have_one.clone());
        group.spawn(async move {
            let thing = pool.get().await.unwrap();
            barrier.wait().await.unwrap();
            Ok::<_, pikake::Interrupted>(thing.id)
        });
    }
    while pool.stats().leased < COUNT {
        sleep(MS).await.unwrap();
    }
    assert!(matches!(pool.get_timeout(MS).await, Err(GetError::Exhausted(_))));
    all_have_one.wait().await.unwrap();
    let ids: BTreeSet<u32> = group.try_join_all().await.unwrap().into_iter().collect();
    assert_eq!(ids.len(), COUNT);
    assert_eq!(world.most.get(), COUNT);
}

/// Twice as many tasks as objects, and one more, take three rounds.
#[pikake::sim(seeds = 20)]
async fn surplus_callers_take_rounds() {
    const LIMIT: usize = 20;
    let world = world();
    let pool = pool(&world, LIMIT);
    let begin = pikake::time::Instant::now();
    let mut group = TaskGroup::new();
    for _ in 0..2 * LIMIT + 1 {
        let pool = pool.clone();
        group.spawn(async move {
            let _thing = pool.get().await.unwrap();
            sleep(10 * MS).await
        });
    }
    group.try_join_all().await.unwrap();
    let rounds = begin.elapsed().as_millis() / 10;
    assert_eq!((rounds, world.most.get()), (3, LIMIT));
}

/// Objects are made when they are needed, and are idle afterwards, all of them.
async fn all_objects_come_back() {
    let world = world();
    let pool = pool(&world, 10);
    assert_eq!(pool.stats().total, 0);
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(pool.get().await.unwrap());
    }
    drop(leases);
    sleep(MS).await.unwrap();
    let stats = pool.stats();
    assert_eq!((stats.idle, stats.total, stats.leased), (10, 10, 0));
}

/// A limit of one makes a single leak visible. Not in a simulation, which fails with any task that
/// panics.
#[pikake::test]
async fn a_panicking_holder_gives_back_a_clean_object() {
    let world = world();
    world.knows_clean.set(true);
    let pool = pool(&world, 1);
    for _ in 0..10 {
        let pool = pool.clone();
        let holder = spawn(async move {
            let mut thing = pool.get().await.unwrap();
            thing.is_dirty = true;
            panic!("the holder panics");
        });
        assert!(holder.await.unwrap_err().panic().is_some());
    }
    assert!(!pool.get().await.unwrap().is_dirty);
    assert_eq!(world.made.get(), 1);
}

async fn an_object_that_cannot_be_cleaned_is_destroyed() {
    let world = world();
    let pool = pool(&world, 1);
    world.clean_fails.set(true);
    drop(pool.get().await.unwrap());
    let thing = pool.get().await.unwrap();
    assert_eq!(thing.id, 2);
    assert_eq!(world.take_events(), ["make 1", "clean 1", "destroy 1", "make 2"]);
    assert_eq!(pool.stats().clean_failures, 1);
}

/// A cleaning that never ends, as of a connection whose peer is silent, does not hold the object's
/// place for ever.
#[pikake::sim]
async fn a_cleaning_that_hangs_is_cut_short() {
    let world = world();
    let pool = builder(&world).limit(1).clean_within(5 * MS).build();
    world.clean_takes.set(1_000_000 * MS);
    world.destroy_takes.set(1_000_000 * MS);
    drop(pool.get().await.unwrap());
    let begin = pikake::time::Instant::now();
    assert_eq!(pool.get().await.unwrap().id, 2);
    assert_eq!(begin.elapsed().as_millis(), 10, "five for the cleaning, five for the end");
}

#[pikake::test]
async fn a_cleaning_that_panics_loses_only_the_object() {
    let world = world();
    let pool = pool(&world, 1);
    world.clean_panics.set(true);
    drop(pool.get().await.unwrap());
    assert_eq!(pool.get().await.unwrap().id, 2);
    assert_eq!(world.alive(), 1);
}

/// A panic of the manager's checks counts as an object that is dirty and dead. No caller and no
/// task ends with it.
#[pikake::sim]
async fn checks_that_panic_destroy_the_object() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    world.checks_panic.set(true);
    drop(thing);
    let thing = pool.get().await.unwrap();
    assert_eq!(thing.id, 2, "found when it came back");
    world.checks_panic.set(false);
    drop(thing);
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 1);
    world.checks_panic.set(true);
    let thing = pool.get().await.unwrap();
    assert_eq!(thing.id, 3, "found when it went out");
    assert_eq!((pool.stats().dead, pool.stats().waiting), (2, 0));
}

/// The caller who waits for an object gets another one if the object dies while it is cleaned.
#[pikake::sim]
async fn an_object_that_dies_in_its_cleaning_is_not_lent() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    world.clean_takes.set(2 * MS);
    let other = pool.clone();
    let waiting = spawn(async move { other.get().await.unwrap().id });
    sleep(MS).await.unwrap();
    drop(thing);
    sleep(MS).await.unwrap();
    world.all_are_dead.set(true);
    assert_eq!(waiting.await.unwrap(), 2);
}

/// All idle objects are dead: found without asking them, or by the verification.
async fn dead_objects_are_replaced() {
    let world = world();
    let pool = builder(&world).limit(4).verify(Verify::Always).build();
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(pool.get().await.unwrap());
    }
    leases.iter_mut().enumerate().for_each(|(number, thing)| match number % 2 {
        0 => thing.is_dead = true,
        _ => thing.is_bad = true,
    });
    drop(leases);
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().dead, 2, "found when they came back");
    assert_eq!(pool.get().await.unwrap().id, 5);
    assert_eq!(pool.stats().verify_failures, 2);
}

/// An object that dies while it is idle.
async fn an_object_that_died_idle_is_not_lent() {
    let world = world();
    world.knows_clean.set(true);
    let pool = builder(&world).limit(1).verify(Verify::Never).build();
    let mut thing = pool.get().await.unwrap();
    thing.is_dead = true;
    drop(thing);
    assert!(pool.try_get().is_none());
    assert_eq!(pool.get().await.unwrap().id, 2);
}

/// Keys never mix: see `keyed`. Neither do two pools of one manager.
async fn pools_share_no_object() {
    let world = world();
    let (one, other) = (pool(&world, 1), pool(&world, 1));
    drop(one.get().await.unwrap());
    yield_now().await.unwrap();
    assert_eq!(other.get().await.unwrap().id, 2);
}

/// A process that forks has no use for the objects of its parent. Safe Rust forks only to start
/// another program, which has no pool; and the drop of nothing in the child reaches the parent's
/// objects.
#[test]
fn a_child_process_has_no_pool() {
    let world = world();
    let child = Cell::new(None);
    pikake::run(async {
        let pool = pool(&world, 1);
        let _thing = pool.get().await.unwrap();
        let program = std::env::current_exe().unwrap();
        let list = std::process::Command::new(program).args(["--list", "hazards::"]).output();
        child.set(Some(list.unwrap()));
        assert_eq!(pool.stats().total, 1);
    });
    assert!(child.take().unwrap().status.success());
    assert_eq!((world.made.get(), world.alive()), (1, 0));
}
