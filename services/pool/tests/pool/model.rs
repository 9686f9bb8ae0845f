//! Random programs on a pool, beside a model of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pikake::pool::{Lease, Reuse, Verify};
use pikake::time::Instant;
use proptest::prelude::*;

use crate::objects::{MS, Things, builder, world};

#[derive(Clone, Debug)]
enum Step {
    Get,
    TryGet,
    /// Gives back one of the leases.
    GiveBack(usize),
    Detach(usize),
    Discard(usize),
    /// One of the leased objects dies.
    Die(usize),
    Add,
    Resize(usize),
    /// Destroys the idle objects with even or odd numbers.
    Retain(u32),
    /// Waits for so many milliseconds.
    Wait(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Get),
        2 => Just(Step::TryGet),
        6 => (0..8_usize).prop_map(Step::GiveBack),
        1 => (0..8_usize).prop_map(Step::Detach),
        1 => (0..8_usize).prop_map(Step::Discard),
        1 => (0..8_usize).prop_map(Step::Die),
        1 => Just(Step::Add),
        1 => (1..5_usize).prop_map(Step::Resize),
        1 => (0..2_u32).prop_map(Step::Retain),
        2 => (1..12_u32).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A pool as it should be: with objects that need no cleaning, between two steps of other tasks.
struct Model {
    limit: usize,
    min_idle: usize,
    reuse: Reuse,
    /// The idle objects, and since when they are idle.
    idle: VecDeque<(u32, Instant)>,
    /// Each leased object, and whether it is dead.
    leased: BTreeMap<u32, bool>,
    next: u32,
}

impl Model {
    fn total(&self) -> usize {
        self.idle.len() + self.leased.len()
    }

    fn try_get(&mut self) -> Option<u32> {
        let id = match self.reuse {
            Reuse::Lifo => self.idle.pop_back(),
            Reuse::Fifo => self.idle.pop_front(),
        }?
        .0;
        self.leased.insert(id, false);
        Some(id)
    }

    fn get(&mut self) -> Option<u32> {
        self.try_get().or_else(|| {
            (self.total() < self.limit).then(|| {
                self.next += 1;
                self.leased.insert(self.next, false);
                self.next
            })
        })
    }

    fn give_back(&mut self, id: u32) {
        let is_dead = self.leased.remove(&id).unwrap();
        if !is_dead && self.total() < self.limit {
            self.idle.push_back((id, Instant::now()));
        }
    }

    fn resize(&mut self, limit: usize) {
        self.limit = limit;
        while self.total() > limit && self.idle.pop_front().is_some() {}
    }

    /// Time has passed: objects were idle for too long, and others are made.
    fn tend(&mut self) {
        let is_old = |idle: &VecDeque<(_, Instant)>| {
            idle.front().is_some_and(|(_, since)| since.elapsed() >= MAX_IDLE)
        };
        while self.idle.len() > self.min_idle && is_old(&self.idle) {
            self.idle.pop_front();
        }
        while self.idle.len() < self.min_idle && self.total() < self.limit {
            self.next += 1;
            self.idle.push_back((self.next, Instant::now()));
        }
    }
}

/// Between two whole milliseconds, at which the steps are.
const MAX_IDLE: Duration = Duration::from_micros(5_500);

async fn compare(steps: Vec<Step>, reuse: Reuse, min_idle: usize) {
    let world = world();
    world.knows_clean.set(true);
    let pool = builder(&world).limit(3).reuse(reuse).verify(Verify::Never);
    let pool = pool.min_idle(min_idle).max_idle_time(Some(MAX_IDLE)).build();
    let (idle, leased) = (VecDeque::new(), BTreeMap::new());
    let mut model = Model { limit: 3, min_idle, reuse, idle, leased, next: 0 };
    // The pool begins at its first use.
    assert!(pool.try_get().is_none());
    model.tend();
    pikake::sleep(MS).await.unwrap();
    let mut leases: Vec<Lease<Things>> = Vec::new();
    for step in steps {
        match step {
            Step::Get => {
                let lease = pool.get_timeout(MS).await.ok();
                assert_eq!(lease.as_ref().map(|thing| thing.id), model.get());
                leases.extend(lease);
            }
            Step::TryGet => {
                let lease = pool.try_get();
                assert_eq!(lease.as_ref().map(|thing| thing.id), model.try_get());
                leases.extend(lease);
            }
            Step::GiveBack(number) if number < leases.len() => {
                let lease = leases.remove(number);
                model.give_back(lease.id);
            }
            Step::Detach(number) if number < leases.len() => {
                let thing = Lease::detach(leases.remove(number));
                model.leased.remove(&thing.id);
            }
            Step::Discard(number) if number < leases.len() => {
                let lease = leases.remove(number);
                model.leased.remove(&lease.id);
                Lease::discard(lease);
            }
            Step::Die(number) if number < leases.len() => {
                leases[number].is_dead = true;
                model.leased.insert(leases[number].id, true);
            }
            Step::Add => {
                let other = builder(&world).build();
                let thing = Lease::detach(other.get().await.unwrap());
                model.next += 1;
                let id = thing.id;
                let is_added = pool.add(thing).is_ok();
                assert_eq!(is_added, model.total() < model.limit);
                if is_added {
                    model.idle.push_back((id, Instant::now()));
                }
            }
            Step::Resize(limit) => {
                pool.resize(limit);
                model.resize(limit);
            }
            Step::Retain(rest) => {
                let count = pool.retain(|thing| thing.id % 2 == rest);
                let before = model.idle.len();
                model.idle.retain(|(id, _)| id % 2 == rest);
                assert_eq!(count, before - model.idle.len());
            }
            Step::Wait(count) => pikake::sleep(count * MS).await.unwrap(),
            _ => {}
        }
        model.tend();
        pikake::sleep(MS).await.unwrap();
        model.tend();
        let stats = pool.stats();
        let counts = (stats.idle, stats.leased, stats.total, stats.waiting);
        assert_eq!(counts, (model.idle.len(), model.leased.len(), model.total(), 0));
        assert_eq!(world.alive(), model.total());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_does_as_its_model(steps in steps(), is_lifo: bool, min_idle in 0..3_usize) {
        let reuse = if is_lifo { Reuse::Lifo } else { Reuse::Fifo };
        pikake::sim::Runs::new("pool_model").seeds(1).run(|sim| {
            let steps = steps.clone();
            sim.client("program", move || compare(steps.clone(), reuse, min_idle));
        });
    }
}
