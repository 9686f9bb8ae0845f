//! Many tasks on a pool whose manager fails, over seeds: no object is lost, shared, lent dirty or
//! lent dead.
//!
//! `PIKAKE_RUNS=10000 cargo test -p pikake-pool stress` runs ten thousand seeds.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pikake::pool::{GetError, Keyed, KeyedManager, Lease, Manager, Pool, Reuse, Verify};
use pikake::sim::Runs;
use pikake::{Interrupted, random, sleep, spawn, timeout_after, yield_now};

/// The objects of all pools of a run.
#[derive(Default)]
struct Inventory {
    next: Cell<u32>,
    alive: RefCell<BTreeSet<u32>>,
    most: Cell<usize>,
    in_use: RefCell<BTreeSet<u32>>,
    destroyed: Cell<u32>,
}

/// An object, which may die and become dirty.
struct Thing {
    id: u32,
    is_dirty: bool,
    is_dead: bool,
    inventory: Rc<Inventory>,
}

impl Drop for Thing {
    fn drop(&mut self) {
        assert!(self.inventory.alive.borrow_mut().remove(&self.id));
    }
}

#[derive(Clone)]
struct Chaos(Rc<Inventory>);

#[derive(Debug)]
struct Bad;

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bad luck")
    }
}

impl std::error::Error for Bad {}

impl From<Interrupted> for Bad {
    fn from(_: Interrupted) -> Self {
        Self
    }
}

fn one_in(count: u64) -> bool {
    random::range(0..count) == 0
}

async fn pause() -> Result<(), Interrupted> {
    match random::range(0..4) {
        0 => Ok(()),
        1 => yield_now().await,
        _ => sleep(Duration::from_micros(random::range(1..3000))).await,
    }
}

impl Manager for Chaos {
    type Object = Thing;
    type Error = Bad;

    async fn create(&self) -> Result<Thing, Bad> {
        pause().await?;
        if one_in(5) {
            return Err(Bad);
        }
        let inventory = &self.0;
        let id = inventory.next.get() + 1;
        inventory.next.set(id);
        inventory.alive.borrow_mut().insert(id);
        inventory.most.set(inventory.most.get().max(inventory.alive.borrow().len()));
        Ok(Thing { id, is_dirty: false, is_dead: false, inventory: inventory.clone() })
    }

    async fn verify(&self, thing: &mut Thing) -> Result<(), Bad> {
        pause().await?;
        if thing.is_dead || one_in(20) { Err(Bad) } else { Ok(()) }
    }

    async fn clean(&self, thing: &mut Thing) -> Result<(), Bad> {
        pause().await?;
        if one_in(20) {
            sleep(Duration::from_secs(3600)).await?;
        }
        thing.is_dirty = false;
        if one_in(20) { Err(Bad) } else { Ok(()) }
    }

    fn is_dead(&self, thing: &Thing) -> bool {
        thing.is_dead
    }

    fn is_clean(&self, thing: &Thing) -> bool {
        !thing.is_dirty
    }

    async fn destroy(&self, thing: Thing) {
        let _ = pause().await;
        self.0.destroyed.set(self.0.destroyed.get() + 1);
        drop(thing);
    }
}

/// Chaos for keys.
impl KeyedManager<u64> for Chaos {
    type Object = Thing;
    type Error = Bad;

    async fn create(&self, _: &u64) -> Result<Thing, Bad> {
        Manager::create(self).await
    }

    async fn clean(&self, _: &u64, thing: &mut Thing) -> Result<(), Bad> {
        Manager::clean(self, thing).await
    }

    fn is_dead(&self, _: &u64, thing: &Thing) -> bool {
        thing.is_dead
    }

    async fn destroy(&self, _: &u64, thing: Thing) {
        Manager::destroy(self, thing).await;
    }
}

/// Uses an object for a while. Whatever happens, the object is not used by others meanwhile.
async fn use_it<M: Manager<Object = Thing>>(mut lease: Lease<M>) -> Result<(), Interrupted> {
    struct InUse(u32, Rc<Inventory>);
    impl Drop for InUse {
        fn drop(&mut self) {
            assert!(self.1.in_use.borrow_mut().remove(&self.0));
        }
    }
    let (id, inventory) = (lease.id, lease.inventory.clone());
    assert!(inventory.in_use.borrow_mut().insert(id), "{id} is shared");
    let in_use = InUse(id, inventory);
    assert!(!lease.is_dirty, "{id} is lent dirty");
    assert!(!lease.is_dead, "{id} is lent dead");
    lease.is_dirty = !one_in(3);
    let paused = pause().await;
    lease.is_dead = one_in(10);
    drop(in_use);
    match random::range(0..20) {
        0 => drop(Lease::detach(lease)),
        1 => Lease::discard(lease),
        _ => drop(lease),
    }
    paused
}

const LIMIT: usize = 3;

/// A pool with options at random.
fn pool(inventory: &Rc<Inventory>) -> Pool<Chaos> {
    let verify = match random::range(0..3) {
        0 => Verify::Always,
        1 => Verify::AfterIdle(Duration::from_millis(1)),
        _ => Verify::Never,
    };
    Pool::builder(Chaos(inventory.clone()))
        .limit(LIMIT)
        .min_idle(random::range(0..2) as usize)
        .max_idle_time(one_in(2).then(|| Duration::from_millis(random::range(1..10))))
        .max_age(one_in(2).then(|| Duration::from_millis(random::range(1..50))))
        .max_uses(one_in(2).then(|| random::range(1..5)))
        .creations(random::range(1..4) as usize)
        .reuse(if one_in(2) { Reuse::Lifo } else { Reuse::Fifo })
        .wait(Some(Duration::from_millis(random::range(1..30))))
        .verify(verify)
        .clean_within(Duration::from_millis(5))
        .backoff(Duration::from_millis(1), Duration::from_millis(4))
        .build()
}

/// Asks for an object in one of several ways, and may be interrupted.
async fn work(pool: Pool<Chaos>) -> Result<(), GetError<Bad>> {
    for _ in 0..random::range(1..6) {
        let limit = Duration::from_micros(random::range(1..20_000));
        let lease = match random::range(0..4) {
            0 => pool.try_get(),
            1 => timeout_after(limit, pool.get()).await.ok().and_then(Result::ok),
            2 => pool.get_timeout(limit).await.ok(),
            _ => match pool.get().await {
                Ok(lease) => Some(lease),
                Err(error) if error.is_interrupted() => return Err(error),
                Err(_) => None,
            },
        };
        if let Some(lease) = lease {
            timeout_after(limit, use_it(lease)).await.ok();
        }
    }
    Ok(())
}

async fn lend() {
    let inventory = Rc::<Inventory>::default();
    let pool = pool(&inventory);
    let tasks: Vec<_> = (0..12).map(|_| spawn(work(pool.clone()))).collect();
    for _ in 0..random::range(0..6) {
        pause().await.unwrap();
        let task = &tasks[random::range(0..12) as usize];
        match random::range(0..2) {
            0 => task.request_cancel("by chance"),
            _ => task.abort(),
        }
        if one_in(8) {
            pool.resize(random::range(1..LIMIT as u64 + 1) as usize);
        }
    }
    for task in tasks {
        if let Err(error) = task.await {
            assert!(error.is_cancelled(), "{error}");
        }
    }
    sleep(Duration::from_millis(100)).await.unwrap();
    let stats = pool.stats();
    assert_eq!((stats.leased, stats.waiting), (0, 0));
    // A new object that is being verified counts as one that is being made.
    let alive = inventory.alive.borrow().len();
    assert!(alive <= stats.total && alive + stats.creating >= stats.total, "{alive} of {stats:?}");
    assert!(inventory.most.get() <= LIMIT, "detached objects are dropped at once");
    // All places of the pool are there, and each has an object to lend.
    pool.resize(LIMIT);
    let mut leases = Vec::new();
    while leases.len() < LIMIT {
        match pool.get().await {
            Ok(lease) => leases.push(lease),
            Err(GetError::Create(error)) => sleep(error.next_attempt).await.unwrap(),
            Err(GetError::Verify(_) | GetError::Exhausted(_)) => {
                sleep(Duration::from_millis(1)).await.unwrap()
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(leases);
    let report = pool.close(Duration::from_secs(60)).await;
    assert!(report.is_complete(), "{report}");
    assert_eq!(inventory.alive.borrow().len(), 0, "objects that were lost");
}

async fn lend_by_key() {
    let inventory = Rc::<Inventory>::default();
    let pools = Keyed::new(Chaos(inventory.clone()), LIMIT, |_, pool| {
        pool.limit(2)
            .wait(Some(Duration::from_millis(20)))
            .clean_within(Duration::from_millis(5))
            .backoff(Duration::from_millis(1), Duration::from_millis(4))
            .max_idle_time(Some(Duration::from_millis(5)))
    });
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            let pools = pools.clone();
            spawn(async move {
                for _ in 0..4 {
                    let limit = Duration::from_micros(random::range(1..20_000));
                    let key = random::range(0..4);
                    if let Ok(Ok(lease)) = timeout_after(limit, pools.get(&key)).await {
                        timeout_after(limit, use_it(lease)).await.ok();
                    }
                }
            })
        })
        .collect();
    for _ in 0..random::range(0..6) {
        pause().await.unwrap();
        tasks[random::range(0..12) as usize].abort();
    }
    for task in tasks {
        if let Err(error) = task.await {
            assert!(error.is_cancelled(), "{error}");
        }
    }
    assert!(inventory.most.get() <= LIMIT);
    sleep(Duration::from_millis(200)).await.unwrap();
    assert_eq!((pools.stats().len(), pools.limit().used()), (0, 0), "idle keys go");
    assert_eq!(inventory.alive.borrow().len(), 0, "objects that were lost");
}

fn run(name: &'static str, program: impl AsyncFn() + Copy + 'static) {
    Runs::new(name).seeds(100).run(move |sim| {
        // Callers that go on with the next object swallow what has interrupted them.
        sim.cleanup_limit(None);
        sim.client("program", move || async move { program().await });
    });
}

#[test]
fn nothing_is_lost_or_shared() {
    run("stress::nothing_is_lost_or_shared", lend);
}

#[test]
fn nothing_is_lost_between_keys() {
    run("stress::nothing_is_lost_between_keys", lend_by_key);
}
