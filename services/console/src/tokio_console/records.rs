//! What is known of each task, and what a client has not seen of it yet.
//!
//! Each change of a record is marked with the number of the present *round*. A client's look begins
//! a new round, and shows the records with a mark that is greater than the round of its last look.
//! A mark is set under the lock of the kernel's table. So a change after the look has a mark of a
//! later round.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pikake_kernel::Observer;
use pikake_traps::{Exit, TaskRef};

use super::histogram::Histogram;

/// The number of ended tasks of a kernel that are kept. tokio-console shows ended tasks for some
/// seconds.
pub(super) const ENDED_LIMIT: usize = 4_096;

/// The number of records that a look visits under one lock.
const VISITED_AT_ONCE: usize = 4_096;

/// The number of tasks in one part of a look: a message of less than a megabyte.
pub(super) const PART_TASKS: usize = 1_024;

/// The greatest length of a name in bytes.
const NAME_LIMIT: usize = 256;

/// The number of a task in the process: that of its kernel, and its own.
pub(super) type Key = (u32, u64);

/// The tasks of all observed kernels.
pub(super) struct Records {
    began: Instant,
    began_at: SystemTime,
    round: AtomicU64,
    /// The number of records that were removed.
    removed: AtomicU64,
    kernels: Mutex<BTreeMap<u32, Arc<Mutex<Table>>>>,
}

/// The tasks of a kernel.
#[derive(Default)]
struct Table {
    tasks: BTreeMap<u64, Record>,
    /// The ended tasks, the one that ended first at the front.
    ended: VecDeque<u64>,
}

struct Record {
    identity: Arc<Identity>,
    figures: Figures,
    times: Times,
    /// The begin of the step before the current one.
    step_before: Option<Duration>,
    /// Only a look at the task's waits has made the task ready for the current step. If the task
    /// does not go on, the step does not count.
    is_look: bool,
    /// The round of the spawn.
    new_in: u64,
    /// The round of the last change.
    changed_in: u64,
}

/// What never changes of a task.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) key: Key,
    pub(super) name: Box<str>,
    pub(super) parent: Option<u64>,
    pub(super) spawned_at: &'static Location<'static>,
    pub(super) future: Box<str>,
    pub(super) future_bytes: u64,
}

/// What changes of a task. Moments are the time since the records began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Figures {
    pub(super) spawned: Duration,
    pub(super) ended: Option<Duration>,
    pub(super) steps: u64,
    pub(super) first_step: Option<Duration>,
    pub(super) step_began: Option<Duration>,
    pub(super) step_ended: Option<Duration>,
    pub(super) busy: Duration,
    /// The number of its wakes.
    pub(super) wakes: u64,
    /// The number of its wakes in its own steps.
    pub(super) self_wakes: u64,
    pub(super) last_wake: Option<Duration>,
    /// The moment from which the task waits for its next step, if the task is ready.
    ready_since: Option<Duration>,
    /// The time in which the task was ready and waited for its steps.
    pub(super) scheduled: Duration,
    is_stepping: bool,
}

/// The times of a task's steps, and those between a wake and its step.
#[derive(Clone, Default)]
pub(super) struct Times {
    pub(super) steps: Histogram,
    pub(super) scheduled: Histogram,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Records are figures for people: those of a thread that panicked are still of use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// Notes a wake. A task is not ready before its last step has ended, so the wake of another
    /// thread counts from then on at the earliest.
    fn note_wake(&mut self, moment: Duration) {
        let earliest = if self.is_stepping { self.step_began } else { self.step_ended };
        let moment = moment.max(earliest.unwrap_or_default());
        self.wakes += 1;
        self.self_wakes += u64::from(self.is_stepping);
        self.last_wake = Some(moment);
        self.ready_since = Some(moment);
    }
}

/// A text without what is beyond the limit.
pub(super) fn limited(text: &str) -> Box<str> {
    let mut end = text.len().min(NAME_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

impl Records {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            began_at: SystemTime::now(),
            round: AtomicU64::new(1),
            removed: AtomicU64::new(0),
            kernels: Mutex::default(),
        }
    }

    /// The time since the records began.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time of day at a moment.
    pub(super) fn time_of_day(&self, moment: Duration) -> SystemTime {
        self.began_at + moment
    }

    /// Whether there is a record of the task.
    pub(super) fn has(&self, key: Key) -> bool {
        self.find(key, |_| ()).is_some()
    }

    /// The times of a task.
    pub(super) fn times(&self, key: Key) -> Option<Times> {
        self.find(key, |record| record.times.clone())
    }

    /// Whether the kernel with this number is observed.
    pub(super) fn has_kernel(&self, kernel: u32) -> bool {
        lock(&self.kernels).contains_key(&kernel)
    }

    fn find<T>(&self, (kernel, task): Key, read: impl FnOnce(&Record) -> T) -> Option<T> {
        let table = lock(&self.kernels).get(&kernel).cloned()?;
        let table = lock(&table);
        table.tasks.get(&task).map(read)
    }
}

/// The observer of one kernel.
pub(super) struct Recorder {
    records: Arc<Records>,
    table: Arc<Mutex<Table>>,
}

impl Recorder {
    pub(super) fn new(records: &Arc<Records>) -> Self {
        Self { records: records.clone(), table: Arc::default() }
    }

    fn change(&self, task: &TaskRef, change: impl FnOnce(&mut Record)) {
        let mut table = lock(&self.table);
        if let Some(record) = table.tasks.get_mut(&task.id().0) {
            change(record);
            record.changed_in = self.records.round.load(Ordering::SeqCst);
        }
    }
}

impl Observer for Recorder {
    fn created(&self, task: &TaskRef) {
        let (future, bytes) = task.future_type();
        let identity = Identity {
            key: (task.kernel().number(), task.id().0),
            name: limited(task.name()),
            parent: task.parent().map(|parent| parent.0),
            spawned_at: task.spawned_at(),
            future: limited(future),
            future_bytes: bytes as u64,
        };
        let spawned = self.records.now();
        let figures = Figures {
            spawned,
            ended: None,
            steps: 0,
            first_step: None,
            step_began: None,
            step_ended: None,
            busy: Duration::ZERO,
            wakes: 0,
            self_wakes: 0,
            last_wake: None,
            ready_since: Some(spawned),
            scheduled: Duration::ZERO,
            is_stepping: false,
        };
        let kernel = identity.key.0;
        let mut table = lock(&self.table);
        let is_first = table.tasks.is_empty();
        let round = self.records.round.load(Ordering::SeqCst);
        let record = Record {
            identity: Arc::new(identity),
            figures,
            times: Times::default(),
            step_before: None,
            is_look: false,
            new_in: round,
            changed_in: round,
        };
        table.tasks.insert(task.id().0, record);
        drop(table);
        if is_first {
            // The observer learns the number of its kernel from the kernel's tasks.
            lock(&self.records.kernels).entry(kernel).or_insert_with(|| self.table.clone());
        }
    }

    fn woken(&self, task: &TaskRef, ago: Duration) {
        let moment = self.records.now().saturating_sub(ago);
        self.change(task, |record| record.figures.note_wake(moment));
    }

    fn stepping(&self, task: &TaskRef) {
        let now = self.records.now();
        let is_look = task.is_looked_at();
        self.change(task, |record| {
            let figures = &mut record.figures;
            record.is_look = is_look;
            record.step_before = figures.step_began.replace(now);
            figures.is_stepping = true;
            if is_look {
                return;
            }
            figures.steps += 1;
            figures.first_step.get_or_insert(now);
            if let Some(since) = figures.ready_since.take() {
                let waited = now.saturating_sub(since);
                figures.scheduled += waited;
                record.times.scheduled.add(waited);
            }
        });
    }

    fn stepped(&self, task: &TaskRef, took: Duration) {
        let now = self.records.now();
        let was_look = !task.is_ended() && task.was_looked_at();
        self.change(task, |record| {
            let figures = &mut record.figures;
            figures.is_stepping = false;
            if let Some(since) = &mut figures.ready_since {
                *since = now;
            }
            if was_look {
                figures.step_began = record.step_before;
                return;
            }
            if record.is_look {
                // A wake has come after the look had made the task ready, so the kernel did not
                // report the wake.
                figures.steps += 1;
                figures.wakes += 1;
                figures.last_wake = figures.last_wake.max(figures.step_began);
            }
            figures.step_ended = Some(now);
            figures.busy += took;
            record.times.steps.add(took);
        });
    }

    fn exited(&self, task: &TaskRef, _: Exit) {
        let now = self.records.now();
        self.change(task, |record| record.figures.ended = Some(now));
        let mut table = lock(&self.table);
        table.ended.push_back(task.id().0);
        if table.ended.len() > ENDED_LIMIT {
            if let Some(oldest) = table.ended.pop_front() {
                table.tasks.remove(&oldest);
                self.records.removed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut kernels = lock(&self.records.kernels);
        kernels.retain(|_, table| !Arc::ptr_eq(table, &self.table));
        self.records.removed.fetch_add(1, Ordering::SeqCst);
    }
}

/// The look of one client at the records.
pub(super) struct Look {
    records: Arc<Records>,
    /// The round of the last look.
    seen: u64,
    removed: u64,
    /// The tasks that the client takes for alive.
    alive: HashMap<Key, Figures>,
    round: Option<Round>,
}

/// Where a look is.
struct Round {
    number: u64,
    tables: VecDeque<(u32, Arc<Mutex<Table>>)>,
    /// The next task of the first table.
    next: u64,
}

/// What is new to a client.
#[derive(Default, Debug)]
pub(super) struct Part {
    pub(super) new: Vec<Arc<Identity>>,
    pub(super) figures: Vec<(Key, Figures)>,
}

impl Look {
    pub(super) fn new(records: Arc<Records>) -> Self {
        Self { records, seen: 0, removed: 0, alive: HashMap::new(), round: None }
    }

    /// The next part of the present round; begins a round if there is none. `None`: the round is
    /// over.
    pub(super) fn next_part(&mut self) -> Option<Part> {
        let mut round = self.round.take().unwrap_or_else(|| self.begin());
        let mut part = Part::default();
        while let Some((kernel, table)) = round.tables.front().cloned() {
            match self.visit(kernel, &table, round.next, &mut part) {
                Some(next) => round.next = next,
                None => {
                    round.tables.pop_front();
                    round.next = 0;
                }
            }
            if part.figures.len() >= PART_TASKS {
                self.round = Some(round);
                return Some(part);
            }
        }
        self.end_removed(&mut part);
        if !part.figures.is_empty() {
            // The next call finds nothing more in the same round.
            self.round = Some(round);
            return Some(part);
        }
        self.seen = round.number;
        None
    }

    fn begin(&self) -> Round {
        let number = self.records.round.fetch_add(1, Ordering::SeqCst);
        let kernels = lock(&self.records.kernels);
        let tables = kernels.iter().map(|(kernel, table)| (*kernel, table.clone())).collect();
        Round { number, tables, next: 0 }
    }

    /// Visits some records of a table. Returns the number of the next task to visit.
    fn visit(
        &mut self,
        kernel: u32,
        table: &Mutex<Table>,
        from: u64,
        part: &mut Part,
    ) -> Option<u64> {
        let table = lock(table);
        for (visited, (task, record)) in table.tasks.range(from..).enumerate() {
            if visited == VISITED_AT_ONCE || part.figures.len() == PART_TASKS {
                return Some(*task);
            }
            if record.changed_in <= self.seen {
                continue;
            }
            let key = (kernel, *task);
            if !self.alive.contains_key(&key) {
                if record.new_in <= self.seen {
                    continue; // The client knows the task's end.
                }
                part.new.push(record.identity.clone());
            }
            match record.figures.ended {
                None => self.alive.insert(key, record.figures),
                Some(_) => self.alive.remove(&key),
            };
            part.figures.push((key, record.figures));
        }
        None
    }

    /// Ends the tasks whose records were removed before the client has seen their end.
    fn end_removed(&mut self, part: &mut Part) {
        let removed = self.records.removed.load(Ordering::SeqCst);
        if removed == self.removed {
            return;
        }
        let now = self.records.now();
        let room = PART_TASKS - part.figures.len();
        let alive = self.alive.keys().filter(|key| !self.records.has(**key));
        let gone: Vec<Key> = alive.take(room).copied().collect();
        if gone.len() < room {
            self.removed = removed;
        }
        for key in gone {
            if let Some(figures) = self.alive.remove(&key) {
                part.figures.push((key, Figures { ended: Some(now), ..figures }));
            }
        }
    }
}
