//! The end of a pool: by `close`, with its last handle, and with its kernel.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pikake::pool::{GetError, Lease};
use pikake::{Kernel, sleep, spawn, yield_now};

use crate::objects::{MS, pool, world};

#[pikake::sim]
async fn closing_answers_the_callers_who_wait() {
    let world = world();
    let pool = pool(&world, 1);
    let thing = pool.get().await.unwrap();
    let other = pool.clone();
    let waiting = spawn(async move { other.get().await.map(drop) });
    yield_now().await.unwrap();
    let closing = pool.close(Duration::from_secs(1));
    assert!(pool.is_closed(), "at once");
    assert!(matches!(waiting.await.unwrap(), Err(GetError::Closed)));
    drop(thing);
    assert!(closing.await.is_complete());
    assert_eq!(world.take_events(), ["make 1", "destroy 1"]);
}

#[pikake::sim]
async fn an_interrupted_close_reports_it() {
    let world = world();
    let pool = pool(&world, 1);
    let _thing = pool.get().await.unwrap();
    let other = pool.clone();
    let closing = spawn(async move { other.close(Duration::from_secs(1)).await });
    sleep(MS).await.unwrap();
    closing.request_cancel("");
    let report = closing.await.unwrap();
    assert!(report.interrupted.is_some_and(|why| why.is_cancel()));
    assert_eq!(report.holders.len(), 1);
}

#[pikake::sim]
async fn the_last_handle_closes_the_pool() {
    let world = world();
    let pool = pool(&world, 2);
    let (thing, other) = (pool.get().await.unwrap(), pool.get().await.unwrap());
    drop((other, pool));
    sleep(MS).await.unwrap();
    assert_eq!(world.alive(), 1);
    assert_eq!(thing.id, 1, "a lease stays good");
    drop(thing);
    sleep(MS).await.unwrap();
    assert_eq!(world.alive(), 0);
    assert_eq!(world.take_events().last().unwrap(), "destroy 1");
}

/// Holders that end in time give back, and the objects are destroyed in order, within the kernel's
/// grace.
#[test]
fn a_shutdown_destroys_in_order() {
    let world = world();
    world.destroy_takes.set(2 * MS);
    world.clean_takes.set(2 * MS);
    pikake::run(async {
        let pool = pool(&world, 4);
        let idle = pool.get().await.unwrap();
        let held = pool.get().await.unwrap();
        drop(pool.get().await.unwrap());
        drop(idle);
        sleep(20 * MS).await.unwrap();
        spawn(async move {
            let _held = held;
            let _ = sleep(Duration::from_secs(3600)).await;
        })
        .detach();
        // This one is being cleaned when the kernel is shut down.
        drop(pool.get().await.unwrap());
        yield_now().await.unwrap();
    });
    assert_eq!(world.alive(), 0);
    let events = world.take_events();
    let destroyed = events.iter().filter(|event| event.starts_with("destroy")).count();
    assert_eq!(destroyed, world.made.get() as usize, "{events:?}");
}

/// The shutdown interrupts no object's end, neither one that has begun nor one of the keeper, and a
/// panic of one ends no other.
#[test]
fn a_shutdown_interrupts_no_end_of_an_object() {
    let world = world();
    world.destroy_takes.set(2 * MS);
    world.end_panics.set(1);
    let kernel = Kernel::builder().shutdown_grace(Duration::from_secs(30)).build().unwrap();
    kernel.run(async {
        let pool = pool(&world, 4);
        let things = [pool.get().await, pool.get().await, pool.get().await].map(Result::unwrap);
        let [one, other, third] = things;
        drop((one, other));
        sleep(MS).await.unwrap();
        Lease::discard(third);
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(world.alive(), 0);
    let mut events = world.take_events();
    events.retain(|event| event.starts_with("destroy") || event.starts_with("interrupt"));
    events.sort();
    assert_eq!(events, ["destroy 1", "destroy 2", "destroy 3"]);
}

/// Ends that the grace cuts are in the warning, of the keeper and of other tasks.
#[test]
fn an_end_that_outlives_the_grace_is_counted() {
    let log = crate::shown::Log::default();
    let world = world();
    world.destroy_takes.set(Duration::from_secs(3600));
    let _guard = tracing::subscriber::set_default(log.clone());
    let kernel = Kernel::builder().shutdown_grace(5 * MS).build().unwrap();
    kernel.run(async {
        let pool = pool(&world, 2);
        let (one, other) = (pool.get().await.unwrap(), pool.get().await.unwrap());
        drop(one);
        sleep(MS).await.unwrap();
        Lease::discard(other);
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(world.alive(), 0);
    let lines = log.lines();
    let warned = lines.iter().find(|line| line.contains("while its pool had objects")).unwrap();
    assert!(warned.contains("count=2"), "{warned}");
}

/// A holder that does not end is dropped with the kernel, and so is its object.
#[test]
fn a_holder_that_outlives_the_grace_is_named() {
    let log = crate::shown::Log::default();
    let world = world();
    let _guard = tracing::subscriber::set_default(log.clone());
    let kernel = Kernel::builder().shutdown_grace(5 * MS).build().unwrap();
    kernel.run(async {
        let pool = pool(&world, 1);
        let thing = pool.get().await.unwrap();
        let stubborn = async move {
            let _thing = thing;
            loop {
                let _ = sleep(Duration::from_secs(3600)).await;
            }
        };
        pikake::task::Builder::new().name("stubborn").spawn(stubborn).detach();
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(world.alive(), 0);
    let lines = log.lines();
    let warned =
        lines.iter().any(|line| line.contains("a kernel ended while its pool had objects"));
    assert!(warned, "{lines:?}");
}

/// A lease that leaves its kernel is good as long as it lives.
#[test]
fn a_lease_outlives_its_kernel() {
    let world = world();
    let kernel = Kernel::builder().shutdown_grace(5 * MS).build().unwrap();
    let pool = pool(&world, 1);
    let thing = kernel.run(async { pool.get().await.unwrap() });
    kernel.shutdown();
    drop(kernel);
    assert_eq!((thing.id, world.alive()), (1, 1));
    drop(thing);
    assert_eq!((world.alive(), pool.stats().total), (0, 0));
    let error = pikake::run(async { pool.get().await.map(drop) });
    assert!(matches!(error, Err(GetError::Closed)));
}

/// A lease that is dropped between two runs of its kernel comes back in the next run.
#[test]
fn a_lease_comes_back_between_runs() {
    let world = world();
    let kernel = Kernel::new().unwrap();
    let pool = pool(&world, 1);
    let thing = kernel.run(async { pool.get().await.unwrap() });
    drop(thing);
    assert_eq!(world.take_events(), ["make 1"]);
    let again = kernel.run(async { pool.get().await.unwrap() });
    assert_eq!(again.id, 1);
    assert_eq!(world.take_events(), ["clean 1"]);
    drop(again);
    kernel.shutdown();
    assert_eq!(world.alive(), 0);
}

/// A task that is cancelled while it holds a lease leaves nothing dirty.
#[pikake::sim(seeds = 10)]
async fn a_cancelled_holder_leaves_a_clean_object() {
    let world = world();
    let pool = pool(&world, 1);
    let events = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..5 {
        let (pool, events) = (pool.clone(), events.clone());
        let holder = spawn(async move {
            let mut thing = pool.get().await.unwrap();
            events.borrow_mut().push(thing.is_dirty);
            thing.is_dirty = true;
            sleep(Duration::from_secs(1)).await
        });
        sleep(MS).await.unwrap();
        holder.request_cancel("");
        holder.await.unwrap().unwrap_err();
    }
    assert_eq!(events.take(), [false; 5]);
    assert_eq!(world.made.get(), 1);
}
