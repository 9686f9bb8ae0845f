//! Which ready task is stepped next: by a rule, and by the seed.
//!
//! A program may rely on no order, so a simulation tries many. Drawing at random reaches most
//! orders sooner or later. Some mistakes show only when one task is held back for long, or runs far
//! ahead; for these, tasks get priorities, a few of which change in the course of the run
//! (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs",
//! ASPLOS 2010).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use pikake_kernel::Pick;
use pikake_traps::{ReadyList, TaskId, TaskRef};

use crate::rng::Rng;

/// How the ready queue of each host is ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// One of the others, by the seed: half of the seeds at random, a quarter each in order and by
    /// priority.
    #[default]
    Mixed,
    /// First in, first out, as on the real kernel.
    Fifo,
    /// Any of the ready tasks.
    Random,
    /// The ready task of the highest priority. Each task draws one; so many times in a run, at
    /// moments drawn, the highest falls below all others.
    Priorities {
        /// How often a priority changes.
        changes: u32,
    },
}

/// Priority changes of a seed that has priorities under [`Schedule::Mixed`]: most mistakes need no
/// more than two.
const MIXED_CHANGES: u32 = 3;

/// The steps among which those are drawn before which a priority changes.
const CHANGE_WITHIN_STEPS: u64 = 2_000;

/// A task that was chosen so many times running while others were ready falls below them, so that
/// one that spins does not hold up the others for ever.
const MOST_RUNNING: u32 = 64;

impl Schedule {
    fn settle(self, rng: &mut Rng) -> Self {
        match self {
            Self::Mixed => match rng.range(0..4) {
                0 => Self::Fifo,
                1 => Self::Priorities { changes: MIXED_CHANGES },
                _ => Self::Random,
            },
            settled => settled,
        }
    }
}

/// The ready queue of a simulated host. See [`Schedule`].
#[derive(Debug)]
pub struct SimPick(RefCell<Queue>);

#[derive(Debug)]
struct Queue {
    ready: VecDeque<TaskRef>,
    rng: Rng,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Fifo,
    Random,
    Priorities(Priorities),
}

#[derive(Debug)]
struct Priorities {
    of: BTreeMap<TaskId, u64>,
    /// Before which steps one changes, the last first.
    changes: Vec<u64>,
    steps: u64,
    /// Given to the next task that falls below all others; drawn ones are above it.
    lowest: u64,
    running: (Option<TaskId>, u32),
}

impl Default for SimPick {
    fn default() -> Self {
        Self::new(Schedule::Fifo, Rng::split(0, "", ""))
    }
}

impl SimPick {
    /// A ready queue that draws from this stream.
    pub fn new(schedule: Schedule, mut rng: Rng) -> Self {
        let order = match schedule.settle(&mut rng) {
            Schedule::Random => Order::Random,
            Schedule::Priorities { changes } => {
                Order::Priorities(Priorities::new(changes, &mut rng))
            }
            Schedule::Fifo | Schedule::Mixed => Order::Fifo,
        };
        Self(RefCell::new(Queue { ready: VecDeque::new(), rng, order }))
    }
}

impl Priorities {
    fn new(changes: u32, rng: &mut Rng) -> Self {
        let mut changes: Vec<u64> =
            (0..changes).map(|_| rng.range(0..CHANGE_WITHIN_STEPS)).collect();
        changes.sort_unstable_by(|one, other| other.cmp(one));
        Self {
            of: BTreeMap::new(),
            changes,
            steps: 0,
            lowest: u64::from(u32::MAX),
            running: (None, 0),
        }
    }

    fn highest(&self, ready: &VecDeque<TaskRef>) -> usize {
        let priority = |place: &usize| self.of.get(&ready[*place].id()).copied().unwrap_or(0);
        (0..ready.len()).max_by_key(priority).unwrap_or(0)
    }

    fn demote(&mut self, task: TaskId) {
        self.lowest = self.lowest.saturating_sub(1);
        self.of.insert(task, self.lowest);
    }

    fn choose(&mut self, ready: &VecDeque<TaskRef>) -> usize {
        let first = self.highest(ready);
        let task = ready[first].id();
        self.running = match self.running {
            (Some(same), count) if same == task && ready.len() > 1 => (Some(same), count + 1),
            _ => (Some(task), 0),
        };
        let is_change = self.changes.last().is_some_and(|at| *at <= self.steps);
        if is_change {
            self.changes.pop();
        }
        if is_change || self.running.1 >= MOST_RUNNING {
            self.running = (None, 0);
            self.demote(task);
        }
        self.steps += 1;
        self.highest(ready)
    }
}

impl Queue {
    fn take_in(&mut self, task: TaskRef) {
        if let Order::Priorities(priorities) = &mut self.order {
            let rng = &mut self.rng;
            // Above all that were lowered, and no two alike but by an accident that does no harm.
            let drawn = || rng.range(1 << 33..u64::MAX);
            priorities.of.entry(task.id()).or_insert_with(drawn);
        }
        self.ready.push_back(task);
    }

    fn choose(&mut self) -> Option<TaskRef> {
        if self.ready.is_empty() {
            return None;
        }
        let place = match &mut self.order {
            Order::Fifo => 0,
            Order::Random => self.rng.index(self.ready.len()),
            Order::Priorities(priorities) => priorities.choose(&self.ready),
        };
        match self.order {
            Order::Fifo => self.ready.pop_front(),
            Order::Random | Order::Priorities(_) => self.ready.swap_remove_back(place),
        }
    }
}

impl Pick for SimPick {
    fn pop(&self, ready: &ReadyList) -> Option<TaskRef> {
        let mut queue = self.0.borrow_mut();
        while let Some(task) = ready.pop() {
            queue.take_in(task);
        }
        queue.choose()
    }

    fn len(&self) -> usize {
        self.0.borrow().ready.len()
    }
}
