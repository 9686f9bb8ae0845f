//! How the objects of a common limit move between pools: what [`Limit`] promises.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pikake::pool::{Limit, Pool, Verify};
use pikake::time::Instant;
use pikake::{random, sleep, spawn};
use proptest::prelude::*;

use crate::kernels::{Counted, LONG};
use crate::objects::{MS, Things, World, builder, world};

/// The creation time of a limit whose objects are made in less.
const CREATION_TIME: Duration = Duration::from_millis(5);
const PACE: u32 = 16;

fn pools<const COUNT: usize>(world: &Rc<World>, limit: &Limit) -> [Pool<Things>; COUNT] {
    [(); COUNT].map(|()| {
        let builder = builder(world).limit(limit.limit()).common_limit(limit);
        builder.verify(Verify::Never).wait(None).build()
    })
}

/// A length around this one.
fn about(length: Duration) -> Duration {
    length / 2 + length * random::range(0..1_000) as u32 / 1_000
}

/// Callers that ask again and again. Counts their leases.
fn load(pool: &Pool<Things>, callers: usize, hold: Duration, pause: Duration) -> Rc<Cell<u32>> {
    let count = Rc::<Cell<u32>>::default();
    for _ in 0..callers {
        let (pool, count) = (pool.clone(), count.clone());
        let task = spawn(async move {
            loop {
                let lease = pool.get().await.unwrap();
                sleep(about(hold)).await.unwrap();
                count.set(count.get() + 1);
                drop(lease);
                if pause > Duration::ZERO {
                    sleep(about(pause)).await.unwrap();
                }
            }
        });
        task.detach();
    }
    count
}

/// The new objects and the leases of two pools in a second, after half a second.
async fn costs(limit: usize, callers: [usize; 2], hold: Duration) -> (u32, u32) {
    let world = world();
    world.create_takes.set(3 * MS);
    world.clean_takes.set(hold / 2);
    let limit = Limit::new(limit);
    let pools = pools::<2>(&world, &limit);
    let counts = [0, 1].map(|index| load(&pools[index], callers[index], hold, hold / 5));
    let leases = || counts.iter().map(|count| count.get()).sum::<u32>();
    sleep(500 * MS).await.unwrap();
    let before = (world.made.get(), leases());
    sleep(1_000 * MS).await.unwrap();
    assert!(world.most.get() <= limit.limit());
    (world.made.get() - before.0, leases() - before.1)
}

/// A cleaning that waits counts as use, also where there are fewer callers than objects.
#[pikake::sim(seeds = 1)]
async fn a_steady_load_creates_nothing() {
    for callers in [[25, 25], [4, 4], [9, 1]] {
        let (new, leases) = costs(10, callers, 2 * MS).await;
        assert_eq!(new, 0, "{callers:?}, {leases} leases");
    }
}

/// Three objects do not suit two pools with long queues: one object goes to and fro, each way once
/// in sixteen creation times at most.
#[pikake::sim(seeds = 1)]
async fn long_queues_move_objects_at_the_pace() {
    for callers in [[250, 250], [400, 100]] {
        let (new, leases) = costs(3, callers, MS / 2).await;
        assert!(new <= 2 * 1_000 / (PACE * 5), "{callers:?}, {new} new of {leases} leases");
    }
}

/// Nine objects are where one caller is, and seven callers wait elsewhere.
#[pikake::sim(seeds = 2)]
async fn idle_objects_move_to_waiting_callers() {
    let world = world();
    world.create_takes.set(CREATION_TIME);
    let limit = Limit::new(10);
    let [one, other] = pools::<2>(&world, &limit);
    let mut leases = Vec::new();
    for _ in 0..9 {
        leases.push(one.get().await.unwrap());
    }
    drop(other.get().await.unwrap());
    drop(leases);
    load(&one, 1, MS, MS / 10);
    sleep(100 * MS).await.unwrap();
    assert_eq!((one.stats().total, other.stats().total), (9, 1));
    load(&other, 7, 20 * MS, MS / 10);
    // A wait, and two rounds of four creations.
    sleep(4 * CREATION_TIME).await.unwrap();
    assert_eq!((other.stats().leased, other.stats().waiting), (7, 0));
    assert!(one.stats().total >= 2, "{:?}", one.stats());
    let made = world.made.get();
    sleep(500 * MS).await.unwrap();
    assert_eq!(world.made.get(), made);
}

/// All objects are in use: they move one in sixteen creation times, until callers of both pools
/// wait alike.
#[pikake::sim(seeds = 2)]
async fn objects_in_use_move_at_their_pace() {
    let world = world();
    let limit = Limit::new(10);
    let [one, other] = pools::<2>(&world, &limit);
    load(&one, 18, 5 * MS, Duration::ZERO);
    sleep(100 * MS).await.unwrap();
    assert_eq!(one.stats().total, 10);
    load(&other, 18, 5 * MS, Duration::ZERO);
    let begin = Instant::now();
    let mut before = 0;
    while begin.elapsed() < 6 * PACE * CREATION_TIME {
        let total = other.stats().total;
        assert!(total <= before + 1);
        if total > before {
            let earliest = (total as u32 - 1) * PACE * CREATION_TIME;
            assert!(begin.elapsed() >= earliest, "{total} objects after {:?}", begin.elapsed());
        }
        before = total;
        sleep(MS).await.unwrap();
    }
    assert!((3..=5).contains(&before), "{before} objects moved");
    let made = world.made.get();
    sleep(500 * MS).await.unwrap();
    assert!(world.made.get() <= made + 1);
}

/// One pool always has callers who wait. The other has one caller, and no object at first.
#[pikake::sim(seeds = 1)]
async fn a_saturated_pool_starves_no_other() {
    let world = world();
    let limit = Limit::new(2);
    let [one, other] = pools::<2>(&world, &limit);
    let count = load(&one, 40, 2 * MS, Duration::ZERO);
    sleep(100 * MS).await.unwrap();
    let before = count.get();
    for _ in 0..10 {
        let begin = Instant::now();
        let lease = other.get().await.unwrap();
        // The callers of the saturated pool wait for up to 60 ms.
        let most = 2 * 60 * MS + (PACE + 1) * CREATION_TIME;
        assert!(begin.elapsed() <= most, "{:?}", begin.elapsed());
        drop(lease);
        sleep(100 * MS).await.unwrap();
    }
    assert!(count.get() - before > 400, "the saturated pool goes on");
}

#[pikake::sim]
async fn an_object_that_was_idle_for_long_is_taken_at_once() {
    let world = world();
    let limit = Limit::new(1);
    let [one, other] = pools::<2>(&world, &limit);
    drop(one.get().await.unwrap());
    sleep(CREATION_TIME).await.unwrap();
    let begin = Instant::now();
    drop(other.get().await.unwrap());
    assert!(begin.elapsed() < MS);
    // The object has just become idle.
    drop(one.get().await.unwrap());
    assert!((CREATION_TIME..CREATION_TIME + MS).contains(&begin.elapsed()));
}

/// The pool whose object may go first loses it to a caller of its own.
#[pikake::sim]
async fn an_idle_object_of_a_third_pool_is_taken() {
    let world = world();
    let limit = Limit::new(2);
    let [one, two, three] = pools::<3>(&world, &limit);
    drop(one.get().await.unwrap());
    sleep(MS).await.unwrap();
    drop(two.get().await.unwrap());
    let begin = Instant::now();
    let waiting = spawn(async move { three.get().await.map(drop).map(|()| begin.elapsed()) });
    sleep(MS).await.unwrap();
    let _held = one.get().await.unwrap();
    let waited = waiting.await.unwrap().unwrap();
    assert!((CREATION_TIME..CREATION_TIME + MS).contains(&waited), "{waited:?}");
    assert_eq!((one.stats().leased, two.stats().total), (1, 0));
}

/// What a caller of a random program does.
#[derive(Clone, Debug)]
struct Caller {
    pool: usize,
    begin: Duration,
    hold: Duration,
    pause: Duration,
    rounds: u32,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let length = |most: u64| (0..most).prop_map(Duration::from_micros);
    let caller = (0..3_usize, length(60_000), length(12_000), length(40_000), 1..40_u32);
    let caller = caller.prop_map(|(pool, begin, hold, pause, rounds)| Caller {
        pool,
        begin,
        hold,
        pause,
        rounds,
    });
    proptest::collection::vec(caller, 1..16)
}

/// The callers who wait, and how long others waited.
#[derive(Default)]
struct Waiting {
    /// By the moment and a number.
    all: RefCell<BTreeSet<(Duration, usize)>>,
    /// Since when the first one is the first.
    first_from: Cell<Duration>,
    /// The longest wait that has ended, and whose it was.
    longest: Cell<[Duration; 3]>,
}

impl Waiting {
    fn change(&self, now: Duration, change: impl FnOnce(&mut BTreeSet<(Duration, usize)>)) {
        let mut all = self.all.borrow_mut();
        let before = all.first().copied();
        change(&mut all);
        if all.first().copied() != before {
            self.first_from.set(now);
        }
    }
}

/// Runs the callers, and checks for each of them what the limit promises to the longest waiting
/// caller of all pools.
async fn run(callers: Vec<Caller>, limit: usize, takes: [Duration; 3]) {
    let world = world();
    let [create, clean, destroy] = takes;
    world.create_takes.set(create);
    world.clean_takes.set(clean);
    world.destroy_takes.set(destroy);
    let limit = Limit::new(limit);
    let pools = pools::<3>(&world, &limit);
    let (waiting, begin) = (Rc::<Waiting>::default(), Instant::now());
    let creation_time = CREATION_TIME.max(create);
    let most_held = callers.iter().map(|caller| caller.hold).max().unwrap_or_default();
    let tasks: Vec<_> = (0..)
        .zip(callers)
        .map(|(number, caller)| {
            let (pool, waiting) = (pools[caller.pool].clone(), waiting.clone());
            let (world, limit) = (world.clone(), limit.clone());
            spawn(async move {
                sleep(caller.begin).await.unwrap();
                for _ in 0..caller.rounds {
                    let asked = begin.elapsed();
                    waiting.change(asked, |all| assert!(all.insert((asked, number))));
                    let lease = pool.get().await.unwrap();
                    let served = begin.elapsed();
                    assert!(world.most.get() <= limit.limit() && limit.used() <= limit.limit());
                    let is_first = waiting.all.borrow().first() == Some(&(asked, number));
                    if is_first {
                        let longest = waiting.longest.get();
                        let others = (0..3).filter(|index| *index != caller.pool);
                        let longest = others.map(|index| longest[index]).max().unwrap_or_default();
                        let pace = waiting.first_from.get() + PACE * creation_time;
                        let due = pace.max(asked + creation_time + 2 * longest.max(most_held));
                        let comes_back = 2 * (most_held + clean) + destroy + create;
                        assert!(served <= due + comes_back + MS, "{served:?}, due {due:?}");
                    }
                    waiting.change(served, |all| assert!(all.remove(&(asked, number))));
                    let mut longest = waiting.longest.get();
                    longest[caller.pool] = longest[caller.pool].max(served - asked);
                    waiting.longest.set(longest);
                    sleep(caller.hold).await.unwrap();
                    drop(lease);
                    sleep(caller.pause).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    sleep(100 * MS).await.unwrap();
    let totals: usize = pools.iter().map(|pool| pool.stats().total).sum();
    assert_eq!((totals, world.alive()), (limit.used(), limit.used()));
    // No place is lost: each pool gets all of them.
    for pool in &pools {
        let mut leases = Vec::new();
        for _ in 0..limit.limit() {
            leases.push(pool.get_timeout(LONG).await.unwrap());
        }
        assert_eq!((pool.stats().total, limit.used()), (limit.limit(), limit.limit()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_caller_waits_longer_than_promised(
        callers in callers(),
        limit in 1..5_usize,
        takes in [0..9_000_u64, 0..2_000, 0..2_000],
    ) {
        let takes = takes.map(Duration::from_micros);
        pikake::sim::Runs::new("pool_shares").seeds(1).run(|sim| {
            let callers = callers.clone();
            sim.client("program", move || run(callers.clone(), limit, takes));
        });
    }
}

/// Two saturated kernels, and one with a caller now and then.
#[test]
fn a_common_limit_starves_no_kernel() {
    let (counted, limit) = (Counted::default(), Limit::new(3));
    let (is_over, leases) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let kernel = |callers: usize, rounds: usize| {
        let (counted, limit) = (counted.clone(), limit.clone());
        let (is_over, leases) = (is_over.clone(), leases.clone());
        std::thread::spawn(move || {
            pikake::run(async move {
                let builder = Pool::builder(counted).limit(3).common_limit(&limit);
                let pool = builder.wait(Some(LONG)).build();
                let tasks: Vec<_> = (0..callers)
                    .map(|_| {
                        let (pool, is_over, leases) =
                            (pool.clone(), is_over.clone(), leases.clone());
                        spawn(async move {
                            while !is_over.load(Ordering::Relaxed) {
                                let lease = pool.get().await.unwrap();
                                pikake::yield_now().await.unwrap();
                                drop(lease);
                                leases.fetch_add(1, Ordering::Relaxed);
                                pikake::yield_now().await.unwrap();
                            }
                        })
                    })
                    .collect();
                for _ in 0..rounds {
                    drop(pool.get().await.unwrap());
                    sleep(10 * MS).await.unwrap();
                }
                if rounds > 0 {
                    is_over.store(true, Ordering::Relaxed);
                }
                for task in tasks {
                    task.await.unwrap();
                }
                assert!(pool.close(LONG).await.is_complete());
            });
        })
    };
    let kernels = [kernel(20, 0), kernel(20, 0), kernel(0, 20)];
    kernels.into_iter().for_each(|kernel| kernel.join().unwrap());
    assert_eq!(limit.used(), 0);
    assert!(counted.most() <= 3);
    assert!(leases.load(Ordering::Relaxed) > 0);
}
