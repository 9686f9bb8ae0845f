//! Creations that fail: who learns what and when, and how often the pool tries.

use std::error::Error;
use std::io;
use std::time::Duration;

use pikake::pool::{GetError, Lease, Verify};
use pikake::time::{Clock, Deadline, Instant, ManualClock, Rate, Ticks};
use pikake::{Kernel, sleep, spawn};

use crate::objects::{MS, builder, pool, world};

/// A clock that advances by a tick at each reading.
struct Steps(ManualClock);

impl Clock for Steps {
    fn now(&self) -> Ticks {
        self.0.advance(Duration::from_nanos(1));
        self.0.now()
    }

    fn rate(&self) -> Rate {
        self.0.rate()
    }

    fn idle(&self, until: Option<Deadline>) -> Option<Duration> {
        self.0.idle(until)
    }
}

/// The keeper is called shortly before the next attempt is due, which becomes due while the keeper
/// looks at the pool.
#[test]
fn an_attempt_that_becomes_due_is_not_forgotten() {
    for early in 0..60 {
        let world = world();
        let kernel = Kernel::builder().clock(Steps(ManualClock::auto())).build().unwrap();
        kernel.run(async {
            let length = Duration::from_micros(1);
            let pool = builder(&world).limit(2).backoff(length, length).wait(Some(1000 * MS));
            let pool = pool.build();
            let _thing = pool.get().await.unwrap();
            world.failing.set(1);
            let other = pool.clone();
            let waiting = spawn(async move { other.get().await.map(|thing| thing.id) });
            while pool.stats().create_failures == 0 {
                pikake::yield_now().await.unwrap();
            }
            sleep(length - Duration::from_nanos(early)).await.unwrap();
            pool.resize(2);
            assert_eq!(waiting.await.unwrap().unwrap(), 2, "{early} ticks early");
        });
    }
}

#[pikake::sim]
async fn a_failed_creation_is_the_callers_error() {
    let world = world();
    let pool = pool(&world, 1);
    world.failing.set(1);
    let error = pool.get().await.unwrap_err();
    let GetError::Create(error) = &error else { panic!("{error}") };
    assert_eq!((error.attempts, error.next_attempt), (1, 50 * MS));
    assert_eq!(error.source().unwrap().to_string(), "refused");
    assert_eq!(
        error.to_string(),
        "an object could not be made: refused (attempt 1; the next one in 50ms)"
    );
}

/// Between two attempts callers learn the last error at once, so no server is asked more often than
/// the backoff says.
#[pikake::sim]
async fn callers_fail_fast_between_attempts() {
    let world = world();
    let pool = builder(&world).limit(5).backoff(10 * MS, 30 * MS).build();
    world.failing.set(u32::MAX);
    let begin = Instant::now();
    let mut attempts = Vec::new();
    while begin.elapsed() < 200 * MS {
        let called = Instant::now();
        match pool.get().await.unwrap_err() {
            GetError::Create(error) => attempts.push(error.attempts),
            other => panic!("{other}"),
        }
        assert_eq!(called.elapsed().as_millis(), 0);
        sleep(MS).await.unwrap();
    }
    attempts.dedup();
    // At 0, 10, 30, and then every 30 ms, each asked for at the next whole millisecond.
    assert_eq!(attempts, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(world.take_events().len(), 8);
}

#[pikake::sim]
async fn all_waiters_learn_of_the_failure() {
    let world = world();
    world.create_takes.set(5 * MS);
    let pool = builder(&world).limit(10).creations(2).build();
    world.failing.set(u32::MAX);
    let begin = Instant::now();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let pool = pool.clone();
            spawn(async move { pool.get().await.map(drop) })
        })
        .collect();
    for waiter in waiting {
        assert!(matches!(waiter.await.unwrap(), Err(GetError::Create(_))));
    }
    assert_eq!(begin.elapsed().as_millis(), 5);
    assert_eq!(world.take_events().len(), 2, "two attempts for twenty callers");
}

/// An object that is in use may come back, so its waiters wait, and the pool tries again.
#[pikake::sim]
async fn waiters_wait_on_while_an_object_is_in_use() {
    let world = world();
    let pool = builder(&world).limit(2).backoff(10 * MS, 10 * MS).build();
    let thing = pool.get().await.unwrap();
    world.failing.set(2);
    let begin = Instant::now();
    let other = pool.get().await.unwrap();
    assert_eq!(begin.elapsed().as_millis(), 20, "after two failures");
    assert_eq!((thing.id, other.id), (1, 2));
    assert_eq!(pool.stats().create_failures, 2);
}

#[pikake::sim]
async fn an_exhausted_pool_tells_the_last_failure() {
    let world = world();
    let pool = pool(&world, 2);
    let _thing = pool.get().await.unwrap();
    world.failing.set(u32::MAX);
    let Err(GetError::Exhausted(error)) = pool.get_timeout(20 * MS).await else { panic!() };
    assert!(error.creation_failed.as_deref().is_some_and(|failure| failure.contains("refused")));
    assert_eq!((error.holders.len(), error.limit, error.waited), (1, 2, 20 * MS));
    let text = error.to_string();
    assert!(text.starts_with(
        "the pool `things` gave no object within 20ms: 1 of 2 are in use, held by task "
    ));
    assert_eq!(
        io::Error::from(GetError::<io::Error>::Exhausted(error)).kind(),
        io::ErrorKind::TimedOut
    );
}

/// The error of a caller who gives up names a few of many holders, and counts all.
#[pikake::sim]
async fn an_exhausted_pool_names_few_holders() {
    let world = world();
    let pool = pool(&world, 8);
    let mut things = Vec::new();
    for _ in 0..8 {
        things.push(pool.get().await.unwrap());
    }
    let Err(GetError::Exhausted(error)) = pool.get_timeout(MS).await else { panic!() };
    assert_eq!((error.leased, error.holders.len(), pool.holders().len()), (8, 5, 8));
    let text = error.to_string();
    assert!(text.contains("8 of 8 are in use") && text.ends_with(" and 3 more"), "{text}");
}

/// Not in a simulation, which fails with any task that panics.
#[pikake::test]
async fn a_creation_that_panics_fails() {
    let world = world();
    let pool = pool(&world, 1);
    world.create_panics.set(true);
    let error = pool.get().await.unwrap_err();
    assert!(matches!(&error, GetError::Create(error) if error.error.is_none()), "{error}");
    world.create_panics.set(false);
    sleep(50 * MS).await.unwrap();
    drop(pool.get().await.unwrap());
}

#[pikake::sim]
async fn a_new_object_that_is_bad_is_an_error() {
    let world = world();
    let pool = builder(&world).limit(1).verify(Verify::Always).build();
    world.new_ones_are_bad.set(true);
    let error = pool.get().await.unwrap_err();
    assert!(matches!(&error, GetError::Verify(_)), "{error}");
    world.new_ones_are_bad.set(false);
    sleep(50 * MS).await.unwrap();
    assert_eq!(pool.get().await.unwrap().id, 2);
    assert_eq!(world.alive(), 1, "the bad one is destroyed");
}

/// New objects that are bad, or whose verification gives no answer, are made at the pace of the
/// backoff, as failed creations.
#[pikake::sim]
async fn the_backoff_grows_for_bad_new_objects() {
    for hangs in [false, true] {
        let world = world();
        let pool = builder(&world).limit(2).verify(Verify::Always).clean_within(MS / 10);
        let pool = pool.backoff(10 * MS, 40 * MS).build();
        if hangs {
            world.verify_takes.set(MS);
        } else {
            world.new_ones_are_bad.set(true);
        }
        let begin = Instant::now();
        while begin.elapsed() < 100 * MS {
            pool.get().await.unwrap_err();
            sleep(MS).await.unwrap();
        }
        assert_eq!(world.made.get(), 4, "at about 0, 10, 30 and 70 ms");
    }
}

/// An object that was added says nothing about creations.
#[pikake::sim]
async fn an_added_object_ends_no_backoff() {
    let world = world();
    let (pool, other) = (pool(&world, 2), builder(&world).build());
    let thing = other.get().await.unwrap();
    world.failing.set(u32::MAX);
    pool.get().await.unwrap_err();
    pool.add(Lease::detach(thing)).unwrap();
    Lease::discard(pool.get().await.unwrap());
    sleep(MS).await.unwrap();
    pool.get().await.unwrap_err();
    assert_eq!(pool.stats().create_failures, 1, "the second caller learns the first failure");
}

/// Creations at the same time that fail are one attempt of the backoff.
#[pikake::sim]
async fn a_round_of_failures_is_one_attempt() {
    let world = world();
    world.create_takes.set(MS);
    let pool = builder(&world).limit(4).creations(4).backoff(10 * MS, 1000 * MS).build();
    world.failing.set(u32::MAX);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let pool = pool.clone();
            spawn(async move { pool.get().await.map(drop) })
        })
        .collect();
    for waiter in waiting {
        waiter.await.unwrap().unwrap_err();
    }
    sleep(MS).await.unwrap();
    assert_eq!(pool.stats().create_failures, 4);
    let GetError::Create(error) = pool.get().await.unwrap_err() else { panic!() };
    assert_eq!(error.attempts, 1);
    assert!(error.next_attempt <= 10 * MS, "{error}");
}

/// The creation's cleanup handles the interruption, and gives the object.
#[pikake::sim]
async fn an_object_that_is_made_late_is_lent() {
    let world = world();
    let pool = builder(&world).limit(1).create_within(Some(10 * MS)).build();
    world.create_takes.set(20 * MS);
    world.ignores_interruptions.set(true);
    assert_eq!(pool.get().await.unwrap().id, 1);
}

/// A creation that hangs, as of a connection to a host that does not answer, holds up no later
/// caller for ever.
#[pikake::sim]
async fn a_creation_that_hangs_fails() {
    let world = world();
    let pool = builder(&world).limit(1).create_within(Some(10 * MS)).build();
    world.create_takes.set(1_000_000 * MS);
    let begin = Instant::now();
    let error = pool.get().await.unwrap_err();
    assert!(matches!(&error, GetError::Create(error) if error.is_timeout), "{error}");
    assert_eq!(begin.elapsed().as_millis(), 10);
    world.create_takes.set(MS);
    sleep(50 * MS).await.unwrap();
    drop(pool.get().await.unwrap());
}
