//! Each option.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pikake::pool::{GetError, Lease, NotAdded, Pool, Reuse, Verify};
use pikake::time::Instant;
use pikake::{sleep, spawn};

use crate::objects::{MS, Things, builder, pool, world};

const SECOND: Duration = Duration::from_secs(1);

async fn lend_two(pool: &Pool<Things>) -> (u32, u32) {
    let (one, other) = (pool.get().await.unwrap(), pool.get().await.unwrap());
    let ids = (one.id, other.id);
    drop(one);
    sleep(MS).await.unwrap();
    drop(other);
    sleep(MS).await.unwrap();
    ids
}

#[pikake::sim]
async fn reuse_is_last_or_first() {
    let world = world();
    let pool = builder(&world).limit(2).build();
    assert_eq!(lend_two(&pool).await, (1, 2));
    assert_eq!(pool.get().await.unwrap().id, 2);
    let pool = builder(&world).limit(2).reuse(Reuse::Fifo).build();
    assert_eq!(lend_two(&pool).await, (3, 4));
    assert_eq!(pool.get().await.unwrap().id, 3);
}

#[pikake::sim]
async fn idle_objects_go() {
    let world = world();
    let pool = builder(&world).limit(3).max_idle_time(Some(10 * SECOND)).build();
    lend_two(&pool).await;
    sleep(5 * SECOND).await.unwrap();
    drop(pool.get().await.unwrap());
    sleep(6 * SECOND).await.unwrap();
    assert_eq!((pool.stats().idle, world.alive()), (1, 1), "one was used meanwhile");
    sleep(5 * SECOND).await.unwrap();
    assert_eq!((pool.stats().total, world.alive()), (0, 0));
}

#[pikake::sim]
async fn the_least_number_of_idle_objects_is_kept() {
    let world = world();
    let pool = builder(&world).limit(5).min_idle(2).max_idle_time(Some(SECOND)).build();
    drop(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    assert!(pool.stats().idle >= 2, "two, and perhaps that of the caller");
    sleep(3 * SECOND).await.unwrap();
    assert_eq!(pool.stats().idle, 2);
    let _things = (pool.get().await.unwrap(), pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().idle, pool.stats().leased), (2, 2));
    sleep(3 * SECOND).await.unwrap();
    assert_eq!(pool.stats().idle, 2, "they do not become idle for too long");
}

/// With no more objects than `min_idle`, and no caller to start a creation.
#[pikake::sim]
async fn idle_objects_are_made_again_without_a_caller() {
    let world = world();
    let pool = builder(&world).limit(10).min_idle(10).creations(4).max_idle_time(None);
    let pool = pool.max_age(Some(10 * SECOND)).build();
    assert!(pool.try_get().is_none());
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 10, "more than are made at a time");
    sleep(11 * SECOND).await.unwrap();
    assert_eq!(pool.stats().idle, 10, "others, as the first ones are too old");
    drop(Lease::detach(pool.get().await.unwrap()));
    Lease::discard(pool.get().await.unwrap());
    world.clean_fails.set(true);
    drop(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 10);
}

#[pikake::sim]
async fn the_greatest_min_idle_fills_the_pool() {
    let world = world();
    let pool = builder(&world).limit(3).min_idle(usize::MAX).build();
    drop(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().idle, 3);
}

/// A failing creation is tried again without a caller, at the pace of the backoff.
#[pikake::sim]
async fn idle_objects_are_made_after_failures() {
    let world = world();
    let pool = builder(&world).limit(5).min_idle(1).creations(1).backoff(10 * MS, 40 * MS).build();
    world.failing.set(3);
    assert!(pool.get().await.is_err());
    sleep(69 * MS).await.unwrap();
    assert_eq!(pool.stats().idle, 0);
    sleep(2 * MS).await.unwrap();
    assert_eq!(pool.stats().idle, 1, "after 10, 20 and 40 ms");
}

#[pikake::sim(seeds = 20)]
async fn old_objects_go_at_different_moments() {
    let world = world();
    let pool = builder(&world).limit(10).max_age(Some(100 * SECOND)).max_idle_time(None).build();
    let mut leases = Vec::new();
    for _ in 0..10 {
        leases.push(pool.get().await.unwrap());
    }
    drop(leases.split_off(1));
    sleep(89 * SECOND).await.unwrap();
    assert_eq!(world.alive(), 10);
    let mut counts = Vec::new();
    for _ in 0..12 {
        sleep(SECOND).await.unwrap();
        counts.push(world.alive());
    }
    assert_eq!(counts.pop(), Some(1), "the one in use");
    counts.dedup();
    assert!(counts.len() > 3, "{counts:?}");
    drop(leases);
    sleep(MS).await.unwrap();
    assert_eq!(world.alive(), 0, "destroyed when it comes back");
}

#[pikake::sim]
async fn uses_are_counted() {
    let world = world();
    let pool = builder(&world).limit(1).max_uses(Some(3)).build();
    let mut ids = Vec::new();
    for _ in 0..7 {
        let thing = pool.get().await.unwrap();
        ids.push((thing.id, Lease::uses(&thing)));
    }
    assert_eq!(ids, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0)]);
}

#[pikake::sim]
async fn creations_are_limited() {
    let world = world();
    world.create_takes.set(10 * MS);
    let pool = builder(&world).limit(6).creations(2).build();
    let begin = Instant::now();
    let waiting: Vec<_> = (0..6)
        .map(|_| {
            let pool = pool.clone();
            spawn(async move { std::mem::forget(Lease::detach(pool.get().await.unwrap())) })
        })
        .collect();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert_eq!(begin.elapsed().as_millis(), 30);
}

#[pikake::sim]
async fn verification_follows_its_option() {
    let world = world();
    for (verify, expected) in [
        (Verify::Never, 0),
        (Verify::AfterIdle(5 * SECOND), 1),
        // Also the new one.
        (Verify::Always, 4),
    ] {
        world.take_events();
        let pool = builder(&world).limit(1).verify(verify).build();
        drop(pool.get().await.unwrap());
        drop(pool.get().await.unwrap());
        sleep(5 * SECOND + MS).await.unwrap();
        drop(pool.get().await.unwrap());
        drop(pool.get().await.unwrap());
        let events = world.take_events();
        let count = events.iter().filter(|event| event.starts_with("verify")).count();
        assert_eq!(count, expected, "{verify:?}: {events:?}");
    }
}

/// A verification without an answer, as of a connection to a host that is gone, ends.
#[pikake::sim]
async fn a_verification_that_hangs_is_cut_short() {
    let world = world();
    let pool =
        builder(&world).limit(1).verify(Verify::AfterIdle(SECOND)).clean_within(SECOND).build();
    drop(pool.get().await.unwrap());
    sleep(2 * SECOND).await.unwrap();
    world.verify_takes.set(1000 * SECOND);
    let begin = Instant::now();
    assert_eq!(pool.get().await.unwrap().id, 2);
    assert_eq!(begin.elapsed().as_secs(), 1);
}

#[pikake::sim]
async fn a_wait_is_limited() {
    let world = world();
    let pool = builder(&world).limit(1).wait(Some(SECOND)).build();
    let _thing = pool.get().await.unwrap();
    let begin = Instant::now();
    assert!(matches!(pool.get().await, Err(GetError::Exhausted(_))));
    assert_eq!(begin.elapsed().as_secs(), 1);
    assert!(matches!(pool.get_timeout(2 * SECOND).await, Err(GetError::Exhausted(_))));
    assert_eq!(begin.elapsed().as_secs(), 3);
    assert!(matches!(pool.get_timeout(Duration::ZERO).await, Err(GetError::Exhausted(_))));
    assert_eq!(begin.elapsed().as_secs(), 3);
    assert_eq!(pool.stats().gave_up, 3);
}

/// A caller who waits gets an object that is being cleaned, or a new one if the cleaning takes
/// longer than a step.
#[pikake::sim]
async fn a_slow_cleaning_delays_no_caller() {
    let world = world();
    let pool = pool(&world, 2);
    drop(pool.get().await.unwrap());
    assert_eq!(pool.get().await.unwrap().id, 1);
    sleep(MS).await.unwrap();
    world.clean_takes.set(100 * MS);
    drop(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    let begin = Instant::now();
    assert_eq!(pool.get().await.unwrap().id, 2);
    assert_eq!(begin.elapsed().as_millis(), 0);
}

#[pikake::sim]
async fn objects_are_added() {
    let world = world();
    let (one, pool) = (pool(&world, 3), builder(&world).limit(1).build());
    let (first, second) = (one.get().await.unwrap(), one.get().await.unwrap());
    pool.add(Lease::detach(first)).unwrap();
    let error = pool.add(Lease::detach(second)).unwrap_err();
    assert_eq!((error.why, error.object.id), (NotAdded::Full, 2));
    assert_eq!(pool.try_get().unwrap().id, 1);
    pool.close(SECOND).await;
    assert_eq!(pool.add(error.object).unwrap_err().why, NotAdded::Closed);
}

#[pikake::sim]
async fn a_pool_is_resized() {
    let world = world();
    let pool = pool(&world, 4);
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(pool.get().await.unwrap());
    }
    let leased = leases.split_off(2);
    drop(leases);
    sleep(MS).await.unwrap();
    pool.resize(1);
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().total, pool.stats().limit), (2, 1), "the idle ones are gone");
    drop(leased);
    sleep(MS).await.unwrap();
    assert_eq!((pool.stats().idle, world.alive()), (1, 1));
    let _thing = pool.get().await.unwrap();
    let other = pool.clone();
    let waiting = spawn(async move { other.get().await.map(|thing| thing.id) });
    sleep(MS).await.unwrap();
    pool.resize(2);
    assert_eq!(waiting.await.unwrap().unwrap(), 5);
}

#[test]
#[should_panic(expected = "its limit is at least 1")]
fn a_limit_of_zero_is_refused() {
    drop(pool(&world(), 0));
}

/// Of the idle objects only, and the closure may use the pool.
#[pikake::sim]
async fn idle_objects_are_retained_by_choice() {
    let world = world();
    world.knows_clean.set(true);
    let pool = builder(&world).limit(4).max_age(Some(3600 * SECOND)).build();
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(pool.get().await.unwrap());
    }
    leases.drain(1..).for_each(drop);
    let count = pool.retain(|thing| {
        if let Some(lease) = leases.pop() {
            assert!(pool.try_get().is_none(), "they are not idle meanwhile");
            drop(lease);
        }
        assert_eq!(pool.stats().total, 4);
        thing.id != 3
    });
    sleep(MS).await.unwrap();
    assert_eq!((count, pool.stats().idle, world.alive()), (1, 3, 3));
    let ids = [4, 2, 1].map(|_| pool.try_get().unwrap());
    assert_eq!(ids.map(|thing| thing.id), [1, 4, 2], "the last one that came back first");
}

/// A closure that panics changes nothing.
#[pikake::test]
async fn a_choice_that_panics_keeps_all() {
    let world = world();
    let pool = pool(&world, 2);
    drop([pool.get().await.unwrap(), pool.get().await.unwrap()]);
    let chosen = catch_unwind(AssertUnwindSafe(|| pool.retain(|thing| panic!("{}", thing.id))));
    assert!(chosen.is_err());
    assert_eq!((pool.stats().idle, pool.stats().total), (2, 2));
    drop([pool.try_get().unwrap(), pool.try_get().unwrap()]);
}
