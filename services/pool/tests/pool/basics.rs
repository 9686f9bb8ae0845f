//! Get, give back, detach, discard, add, resize, close.

use std::time::Duration;

use pikake::pool::{GetError, Lease};
use pikake::{sleep, spawn};

use crate::objects::{MS, pool, world};

#[pikake::sim]
async fn an_object_is_made_once_and_cleaned_each_time() {
    let world = world();
    let pool = pool(&world, 3);
    for _ in 0..3 {
        let mut thing = pool.get().await.unwrap();
        assert!(!thing.is_dirty);
        thing.is_dirty = true;
    }
    sleep(MS).await.unwrap();
    assert_eq!(world.take_events(), ["make 1", "clean 1", "clean 1", "clean 1"]);
    assert_eq!(pool.stats().idle, 1);
}

#[pikake::sim]
async fn a_caller_waits_for_an_object_that_comes_back() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    let other = pool.clone();
    let waiting = spawn(async move { other.get().await.map(|thing| thing.id) });
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().waiting, 1);
    drop(thing);
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
}

#[pikake::sim]
async fn a_detached_object_counts_no_more() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = Lease::detach(pool.get().await.unwrap());
    let other = pool.get().await.unwrap();
    assert_eq!((thing.id, other.id), (1, 2));
    drop(thing);
    assert_eq!(world.take_events(), ["make 1", "make 2"], "the pool destroys no detached object");
}

#[pikake::sim]
async fn a_discarded_object_is_destroyed_in_order() {
    let world = world();
    let pool = pool(&world, 1);
    Lease::discard(pool.get().await.unwrap());
    let thing = pool.get().await.unwrap();
    assert_eq!(thing.id, 2);
    assert_eq!(world.take_events(), ["make 1", "destroy 1", "make 2"]);
}

#[pikake::sim]
async fn close_waits_for_what_is_out() {
    let world = world();
    let pool = pool(&world, 2);
    let thing = pool.get().await.unwrap();
    drop(pool.get().await.unwrap());
    let holder = spawn(async move {
        sleep(10 * MS).await.unwrap();
        drop(thing);
    });
    let report = pool.close(5 * MS).await;
    assert_eq!((report.holders.len(), report.left), (1, 0));
    assert!(matches!(pool.get().await, Err(GetError::Closed)));
    let report = pool.close(Duration::from_secs(1)).await;
    assert!(report.is_complete(), "{report}");
    assert_eq!(world.alive(), 0);
    holder.await.unwrap();
}
