//! Profiles of a kernel's steps: the steps of all tasks that have the same name and place of spawn,
//! in one row.
//!
//! The kernel adds each step that it times to every profile, under a lock that the thread of a
//! console takes at the begin and at the end of its profile only. So a profile has every step,
//! however many there are. Each row is found by the task's index, and looked up by name and place
//! at the task's first step.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::PoisonError;
use std::time::Duration;

use pikake_time::Rate;
use pikake_traps::{TaskId, TaskRef, TrapKind};

use crate::threads::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The number of rows of a profile by name. Tasks with further names share a row by their place: a
/// program may give each task a name of its own.
const NAMED_ROWS: usize = 1024;

/// The steps of the tasks with the same name and place of spawn, in a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StepRow {
    /// The name of the tasks. Empty if they have none, or if the profile has too many names.
    pub name: Box<str>,
    /// The place where the tasks were spawned.
    pub spawned_at: &'static Location<'static>,
    /// The number of tasks that were spawned meanwhile.
    pub spawned: u64,
    /// The number of steps.
    pub steps: u64,
    /// The time of the steps.
    pub busy: Duration,
    /// The longest step.
    pub longest: Duration,
    /// The number of steps after which the task waited, by the trap that was polled last.
    pub waits: Vec<(TrapKind, u64)>,
}

/// The profiles of a kernel that have not ended.
#[derive(Default)]
pub(crate) struct Profiles {
    /// Whether there are any, without the lock.
    are_wanted: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    begun: u64,
    profiles: Vec<(u64, Steps)>,
}

impl Profiles {
    fn lock(&self) -> MutexGuard<'_, List> {
        // No code that can panic half-way runs under the lock.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) -> u64 {
        let mut list = self.lock();
        list.begun += 1;
        let number = list.begun;
        list.profiles.push((number, Steps::default()));
        self.are_wanted.store(true, Ordering::Relaxed);
        number
    }

    pub(crate) fn end(&self, number: u64) -> Option<Steps> {
        let mut list = self.lock();
        let index = list.profiles.iter().position(|(other, _)| *other == number)?;
        let (_, steps) = list.profiles.swap_remove(index);
        self.are_wanted.store(!list.profiles.is_empty(), Ordering::Relaxed);
        Some(steps)
    }

    #[inline]
    pub(crate) fn spawned(&self, task: &TaskRef) {
        if self.are_wanted.load(Ordering::Relaxed) {
            self.change_rows(task, |row| row.spawned += 1);
        }
    }

    /// Adds a step, and the trap of the wait that followed it.
    #[inline]
    pub(crate) fn stepped(&self, task: &TaskRef, took: u64, wait: Option<TrapKind>) {
        if self.are_wanted.load(Ordering::Relaxed) {
            self.change_rows(task, |row| row.add_step(took, wait));
        }
    }

    #[inline(never)]
    fn change_rows(&self, task: &TaskRef, change: impl Fn(&mut Row)) {
        for (_, steps) in &mut self.lock().profiles {
            change(steps.row_of(task));
        }
    }
}

/// The steps of one profile.
#[derive(Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
    by_name: HashMap<(Box<str>, &'static Location<'static>), usize>,
    /// The row of each task by the task's index. Another task may have the index later.
    by_task: Vec<(TaskId, usize)>,
}

impl Steps {
    fn row_of(&mut self, task: &TaskRef) -> &mut Row {
        let (id, index) = (task.id(), task.index() as usize);
        let row = match self.by_task.get(index) {
            Some((known, row)) if *known == id => *row,
            _ => self.look_up(task),
        };
        &mut self.rows[row]
    }

    #[cold]
    fn look_up(&mut self, task: &TaskRef) -> usize {
        let (name, spawned_at) = (task.name(), task.spawned_at());
        let name = if self.rows.len() < NAMED_ROWS { name } else { "" };
        let rows = &mut self.rows;
        let row = *self.by_name.entry((name.into(), spawned_at)).or_insert_with(|| {
            rows.push(Row::new(name, spawned_at));
            rows.len() - 1
        });
        let index = task.index() as usize;
        if index >= self.by_task.len() {
            // No task has this id and steps: ids begin at one.
            self.by_task.resize(index + 1, (TaskId(0), 0));
        }
        self.by_task[index] = (task.id(), row);
        row
    }

    pub(crate) fn into_rows(self, rate: Rate) -> Vec<StepRow> {
        self.rows.into_iter().map(|row| row.finish(rate)).collect()
    }
}

/// A row, in ticks.
struct Row {
    name: Box<str>,
    spawned_at: &'static Location<'static>,
    spawned: u64,
    steps: u64,
    busy: u64,
    longest: u64,
    /// A program waits for few kinds of things in one task.
    waits: Vec<(TrapKind, u64)>,
}

impl Row {
    fn new(name: &str, spawned_at: &'static Location<'static>) -> Self {
        let (spawned, steps, busy, longest, waits) = (0, 0, 0, 0, Vec::new());
        Self { name: name.into(), spawned_at, spawned, steps, busy, longest, waits }
    }

    fn add_step(&mut self, took: u64, wait: Option<TrapKind>) {
        self.steps += 1;
        self.busy += took;
        self.longest = self.longest.max(took);
        let Some(kind) = wait else { return };
        match self.waits.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => self.waits.push((kind, 1)),
        }
    }

    fn finish(self, rate: Rate) -> StepRow {
        let Self { name, spawned_at, spawned, steps, busy, longest, mut waits } = self;
        waits.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.name().cmp(b.name())));
        let (busy, longest) = (rate.duration_floor(busy), rate.duration_floor(longest));
        StepRow { name, spawned_at, spawned, steps, busy, longest, waits }
    }
}
