//! The ready queue of a simulated host, whose order depends on the seed.
//!
//! A program must not rely on an order of its tasks, so a simulation tries many. A random choice
//! reaches most orders eventually. Some bugs show only when one task is delayed for long, or runs
//! far ahead; for these, tasks get priorities, a few of which change during the run (Burckhardt et
//! al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use pikake_kernel::Pick;
use pikake_traps::{ReadyList, TaskId, TaskRef};

use crate::rng::Rng;

/// How the ready queue of each host is ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// One of the others, by the seed: half of the seeds use `Random`, a quarter each `Fifo` and
    /// `Priorities`.
    #[default]
    Mixed,
    /// First in, first out, as on the real kernel.
    Fifo,
    /// A random choice among the ready tasks.
    Random,
    /// The ready task of the highest priority. Each task draws a priority. At random steps, the
    /// highest one falls below all others.
    Priorities {
        /// How often a priority changes.
        changes: u32,
    },
}

/// The priority changes under [`Schedule::Mixed`]: most bugs need at most two.
const MIXED_CHANGES: u32 = 3;

/// The range from which the steps of priority changes are drawn.
const CHANGE_WITHIN_STEPS: u64 = 2_000;

/// The number of consecutive choices, while other tasks are ready, after which a task falls below
/// them. So a task that spins does not starve the others.
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
    /// The steps before which a priority changes, the last first.
    changes: Vec<u64>,
    steps: u64,
    /// The lowest priority given so far; drawn priorities are above it.
    lowest: u64,
    running: (Option<TaskId>, u32),
}

impl Default for SimPick {
    fn default() -> Self {
        Self::new(Schedule::Fifo, Rng::split(0, "", ""))
    }
}

impl SimPick {
    /// Creates a ready queue that draws from `rng`.
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
        let priority = |index: &usize| self.of.get(&ready[*index].id()).copied().unwrap_or(0);
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
    fn add(&mut self, task: TaskRef) {
        if let Order::Priorities(priorities) = &mut self.order {
            let rng = &mut self.rng;
            // Above all lowered priorities. A rare tie is harmless.
            let drawn = || rng.range(1 << 33..u64::MAX);
            priorities.of.entry(task.id()).or_insert_with(drawn);
        }
        self.ready.push_back(task);
    }

    fn choose(&mut self) -> Option<TaskRef> {
        if self.ready.is_empty() {
            return None;
        }
        let index = match &mut self.order {
            Order::Fifo => 0,
            Order::Random => self.rng.index(self.ready.len()),
            Order::Priorities(priorities) => priorities.choose(&self.ready),
        };
        match self.order {
            Order::Fifo => self.ready.pop_front(),
            Order::Random | Order::Priorities(_) => self.ready.swap_remove_back(index),
        }
    }
}

impl Pick for SimPick {
    fn pop(&self, ready: &ReadyList) -> Option<TaskRef> {
        let mut queue = self.0.borrow_mut();
        while let Some(task) = ready.pop() {
            queue.add(task);
        }
        queue.choose()
    }

    fn len(&self) -> usize {
        self.0.borrow().ready.len()
    }

    /// In order, always; otherwise every second time, at random.
    fn begins_at_once(&self) -> bool {
        let queue = &mut *self.0.borrow_mut();
        matches!(queue.order, Order::Fifo) || queue.rng.index(2) == 0
    }

    /// Every second time, at random.
    fn offers_early(&self) -> bool {
        self.0.borrow_mut().rng.index(2) == 0
    }
}
