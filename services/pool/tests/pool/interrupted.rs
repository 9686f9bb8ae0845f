//! Callers that are interrupted, dropped or late take nothing with them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake::pool::{GetError, Lease, Limit, Pool, Verify};
use pikake::testing::interrupt_everywhere;
use pikake::{TimedOut, sleep, spawn, timeout_after, yield_now};

use crate::objects::{Failed, MS, Things, World, builder, pool, world};

/// Serves in the order of asking, also if some callers give up in between.
#[pikake::sim(seeds = 50)]
async fn waiters_are_served_in_order() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let (pool, served) = (pool.clone(), served.clone());
        tasks.push(spawn(async move {
            let _thing = pool.get().await?;
            served.borrow_mut().push(number);
            sleep(MS).await?;
            Ok::<_, GetError<Failed>>(())
        }));
        while pool_waiting(&tasks, number) {
            yield_now().await.unwrap();
        }
    }
    sleep(MS).await.unwrap();
    for number in [0, 4, 9] {
        tasks[number].request_cancel("");
    }
    sleep(MS).await.unwrap();
    drop(thing);
    for task in tasks {
        let _ = task.await.unwrap();
    }
    assert_eq!(served.take(), [1, 2, 3, 5, 6, 7, 8]);
}

/// Whether the task has not begun to wait.
fn pool_waiting<T>(tasks: &[pikake::Task<T>], number: usize) -> bool {
    tasks[number].task_ref().is_ready()
}

/// The object is made in a task of the pool, so it is there for the next caller.
#[pikake::sim]
async fn a_caller_that_goes_away_loses_no_new_object() {
    let world = world();
    world.create_takes.set(10 * MS);
    let pool = pool(&world, 1);
    assert_eq!(timeout_after(5 * MS, pool.get()).await.map(drop), Err(TimedOut));
    sleep(6 * MS).await.unwrap();
    assert_eq!(pool.try_get().unwrap().id, 1);
    assert_eq!(world.made.get(), 1);
}

/// The object is being verified for a caller who goes away.
#[pikake::sim]
async fn a_caller_that_goes_away_loses_no_verified_object() {
    let world = world();
    let pool = builder(&world).limit(1).verify(Verify::Always).build();
    drop(pool.get().await.unwrap());
    world.verify_takes.set(10 * MS);
    sleep(MS).await.unwrap();
    assert_eq!(timeout_after(5 * MS, pool.get()).await.map(drop), Err(TimedOut));
    assert_eq!(pool.get().await.unwrap().id, 1);
    assert_eq!(world.made.get(), 1);
}

/// The lease was given to a waiter whose future is dropped before it sees it.
#[pikake::sim(seeds = 20)]
async fn a_lease_that_nobody_saw_goes_to_the_next() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    let (one, other) = (pool.clone(), pool.clone());
    let dropped = spawn(async move { one.get().await.map(drop) });
    sleep(MS).await.unwrap();
    let next = spawn(async move { other.get().await.map(|thing| thing.id) });
    sleep(MS).await.unwrap();
    drop(thing);
    dropped.abort();
    assert_eq!(next.await.unwrap().unwrap(), 1);
    let _ = dropped.await;
    assert_eq!(world.made.get(), 1);
}

/// A program with all ways in and out of a pool.
async fn program(
    world: Rc<World>,
    slot: Rc<RefCell<Option<Pool<Things>>>>,
) -> Result<(), GetError<Failed>> {
    let pool = builder(&world).limit(2).verify(Verify::AfterIdle(MS)).build();
    *slot.borrow_mut() = Some(pool.clone());
    let mut one = pool.get().await?;
    one.is_dirty = true;
    let other = pool.get().await?;
    let third = pool.clone();
    let waiting = spawn(async move { third.get().await.map(|thing| assert!(!thing.is_dirty)) });
    yield_now().await?;
    drop(one);
    assert!(!pool.get().await?.is_dirty);
    Lease::discard(other);
    sleep(3 * MS).await?;
    drop(pool.get_timeout(Duration::from_secs(1)).await?);
    let _ = waiting.await;
    Ok(())
}

/// Wherever the program is interrupted, the pool has all its objects, and lends clean ones.
#[test]
fn an_interruption_anywhere_loses_nothing() {
    let last = Rc::new(RefCell::new(Rc::new(World::default())));
    let made = last.clone();
    let report = interrupt_everywhere(
        move || {
            let world = Rc::new(World::default());
            for takes in
                [&world.create_takes, &world.clean_takes, &world.verify_takes, &world.destroy_takes]
            {
                takes.set(MS / 2);
            }
            *made.borrow_mut() = world.clone();
            async move {
                let slot = Rc::new(RefCell::new(None));
                let done = program(world.clone(), slot.clone()).await;
                // The pool after the interruption, in a task of its own, which no interruption
                // reaches.
                let checked = spawn(async move {
                    let Some(pool) = slot.take() else { return };
                    sleep(Duration::from_secs(1)).await.unwrap();
                    let stats = pool.stats();
                    assert_eq!((stats.leased, stats.waiting, stats.idle), (0, 0, stats.total));
                    assert_eq!(stats.total, world.alive());
                    let things = [pool.get().await.unwrap(), pool.get().await.unwrap()];
                    assert!(things.iter().all(|thing| !thing.is_dirty));
                    assert!(world.most.get() <= 2);
                });
                pikake::shield(checked).await.unwrap();
                done.map_err(|error| error.is_interrupted())
            }
        },
        |run| {
            if let Some(Err(is_interrupted)) = run.output {
                assert!(is_interrupted);
            }
            assert_eq!(last.borrow().alive(), 0, "everything is destroyed with the kernel");
        },
    );
    assert!(report.suspensions >= 6, "{report:?}");
}

/// The same for keys under one limit, where a caller may wait for the object of another key to go.
#[test]
fn an_interruption_anywhere_loses_no_place_of_a_common_limit() {
    let last = Rc::new(RefCell::new(None));
    let made = last.clone();
    let report = interrupt_everywhere(
        move || {
            let world = Rc::new(World::default());
            for takes in [&world.create_takes, &world.clean_takes, &world.destroy_takes] {
                takes.set(MS / 2);
            }
            let limit = Limit::new(2);
            *made.borrow_mut() = Some((world.clone(), limit.clone()));
            async move {
                let pools = [(); 3].map(|()| builder(&world).limit(2).common_limit(&limit).build());
                let done = async {
                    let one = pools[0].get().await?;
                    drop(pools[1].get().await?);
                    let other = pools[2].get().await?;
                    drop(one);
                    drop(pools[1].get().await?);
                    drop(other);
                    drop((pools[0].get().await?, pools[0].get().await?));
                    Ok::<(), GetError<Failed>>(())
                };
                let done = done.await;
                let checked = spawn(async move {
                    sleep(Duration::from_secs(1)).await.unwrap();
                    let totals: usize = pools.iter().map(|pool| pool.stats().total).sum();
                    assert_eq!((totals, world.alive()), (limit.used(), limit.used()));
                    drop((pools[1].get().await.unwrap(), pools[2].get().await.unwrap()));
                    assert!(world.most.get() <= 2);
                });
                pikake::shield(checked).await.unwrap();
                done.map_err(|error| error.is_interrupted())
            }
        },
        |run| {
            if let Some(Err(is_interrupted)) = run.output {
                assert!(is_interrupted);
            }
            let last = last.borrow();
            let (world, limit) = last.as_ref().unwrap();
            assert_eq!((world.alive(), limit.used()), (0, 0));
        },
    );
    assert!(report.suspensions >= 6, "{report:?}");
}
