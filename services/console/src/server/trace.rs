//! The events of the flight recorders, as they are or of the next time.
//!
//! A recorder keeps some thousand events, which a busy kernel makes in a millisecond. So the
//! console reads the new ones at short intervals, keeps them in memory, and sends them in the end:
//! a slow client loses no events.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{self, KernelView, StepProfile};
use pikake_traps::{Exit, TaskId, sleep};

use super::Server;
use super::answers::{Sink, Trouble, failed, ping};
use crate::model::{Event, TaskKey, TaskName, What};
use crate::observed::{list, nanoseconds, shown};
use crate::protocol::Part;

/// The events of all kernels that are kept, some 25 MB: a thousand each second for eight minutes.
const EVENTS_KEPT: usize = 500_000;

/// The pause between two readings of the recorders.
const READ_EVERY: Duration = Duration::from_millis(5);

/// The pause if a kernel made more than [`MANY`] events meanwhile. A reading takes less.
const READ_SOON: Duration = Duration::from_micros(100);

/// A part of what a recorder keeps.
const MANY: usize = 512;

/// The events and names in a frame, which has room for more as a rule.
const IN_FRAME: usize = 1_000;

/// Gives the events of the recorders, or with a length those of the time of that length from now
/// on, with times of steps.
pub(super) async fn trace(
    server: &Server,
    length: Option<Duration>,
    to: &impl Sink,
) -> Result<(), Trouble> {
    let kernels = ping(server).await;
    let mut records: Vec<Record> = kernels
        .iter()
        .map(|(kernel, shown)| Record::of(kernel.clone(), shown.stale.is_none()))
        .collect();
    match length {
        None => {
            for record in &mut records {
                record.read(EVENTS_KEPT);
            }
        }
        Some(length) => record_for(server, &mut records, length).await?,
    }
    for record in &mut records {
        record.guess_names();
    }
    for (record, (_, shown)) in records.iter_mut().zip(kernels) {
        to.part(Part::Kernel(shown)).await?;
        record.look_up_names().await;
        record.send(server.began, to).await?;
    }
    Ok(())
}

/// Times steps, and keeps the events of a time.
async fn record_for(
    server: &Server,
    records: &mut [Record],
    length: Duration,
) -> Result<(), Trouble> {
    for record in &mut *records {
        record.look_up_all_names().await;
        record.begin();
    }
    let _timing = server.times.begin(records.iter().map(|record| record.kernel.clone()));
    let began = Instant::now();
    let mut room = EVENTS_KEPT;
    loop {
        let left = length.saturating_sub(began.elapsed());
        let mut most = 0;
        for record in &mut *records {
            let read = record.read(room);
            room -= read.kept;
            most = most.max(read.seen);
        }
        if left.is_zero() {
            return Ok(());
        }
        let pause = if most > MANY { READ_SOON } else { READ_EVERY };
        sleep(pause.min(left)).await.map_err(failed)?;
    }
}

/// The events of one kernel.
struct Record {
    kernel: KernelView,
    /// Whether the kernel has answered, as far as is known.
    answers: bool,
    /// The number of the next event.
    next: u64,
    events: Vec<inspect::Event>,
    lost: u64,
    counts_lost: bool,
    names: BTreeMap<TaskId, (Box<str>, &'static Location<'static>)>,
    /// Tells the names of tasks that are spawned, and end, during the trace.
    profile: Option<StepProfile>,
}

/// The numbers of events of one reading.
struct Read {
    seen: usize,
    kept: usize,
}

impl Record {
    fn of(kernel: KernelView, answers: bool) -> Self {
        let (events, names, counts_lost) = (Vec::new(), BTreeMap::new(), false);
        Self { kernel, answers, next: 0, events, lost: 0, counts_lost, names, profile: None }
    }

    /// Leaves out the events so far. Those that are lost from now on are counted.
    fn begin(&mut self) {
        self.counts_lost = true;
        self.next = self.kernel.events_from(u64::MAX).next;
        self.profile = self.kernel.profile();
    }

    /// Reads the new events, and keeps as many as there is room for.
    fn read(&mut self, room: usize) -> Read {
        let page = self.kernel.events_from(self.next);
        self.next = page.next;
        let seen = page.events.len();
        let kept = seen.min(room);
        if self.counts_lost {
            self.lost += page.lost;
        }
        self.lost += (seen - kept) as u64;
        for event in &page.events {
            if let inspect::What::Spawned { place } | inspect::What::Ended { place, .. } =
                event.what
            {
                if kept > 0 {
                    self.names.entry(event.task).or_insert_with(|| (Box::default(), place));
                }
            }
        }
        // The rate of the clock is measured better as time passes, which moves later moments.
        let last = self.events.last().map(|event| event.at).unwrap_or_default();
        let in_order = |event: inspect::Event| inspect::Event { at: event.at.max(last), ..event };
        self.events.extend(page.events.into_iter().take(kept).map(in_order));
        Read { seen, kept }
    }

    /// Looks up the names of the tasks that live, if the kernel answers.
    async fn look_up_all_names(&mut self) {
        let mut next = Some(0).filter(|_| self.answers);
        while let Some(index) = next {
            let Ok(page) = list(&self.kernel, index).await else {
                self.answers = false;
                return;
            };
            for task in page.tasks {
                let (name, spawned_at) = task.name();
                self.names.insert(task.id, (name.into(), spawned_at));
            }
            next = page.next;
        }
    }

    /// Looks up the names of tasks with events that were not there before.
    async fn look_up_names(&mut self) {
        let named = |task: &TaskId| self.names.get(task).is_some_and(|(name, _)| !name.is_empty());
        if self.events.iter().any(|event| !named(&event.task)) {
            self.look_up_all_names().await;
        }
    }

    /// Names the tasks that have ended since their spawn like all others of their place, if those
    /// have one name.
    fn guess_names(&mut self) {
        let mut names = BTreeMap::<&Location<'_>, Option<Box<str>>>::new();
        for row in self.profile.take().map(StepProfile::finish).unwrap_or_default() {
            let name = Some(row.name).filter(|_| !names.contains_key(row.spawned_at));
            names.insert(row.spawned_at, name);
        }
        for (name, spawned_at) in self.names.values_mut() {
            if let (true, Some(Some(known))) = (name.is_empty(), names.get(spawned_at)) {
                name.clone_from(known);
            }
        }
    }

    async fn send(&mut self, began: Instant, to: &impl Sink) -> Result<(), Trouble> {
        let kernel = self.kernel.id().number();
        let tasks: BTreeSet<TaskId> = self.events.iter().map(|event| event.task).collect();
        let name = |task: &TaskId| {
            let (name, spawned_at) = self.names.get(task)?;
            let id = TaskKey { kernel, task: task.0 };
            let (name, spawned_at) = (shown(name), spawned_at.to_string());
            Some(TaskName { id, name, spawned_at })
        };
        let names: Vec<TaskName> = tasks.iter().filter_map(name).collect();
        for names in names.chunks(IN_FRAME) {
            to.part(Part::Names(names.to_vec())).await?;
        }
        if self.lost > 0 {
            to.part(Part::Lost(kernel, self.lost)).await?;
        }
        let since = self.kernel.recorded_since().unwrap_or(began);
        // A kernel may have recorded steps before the console started.
        let (after, before) =
            (since.saturating_duration_since(began), began.saturating_duration_since(since));
        for events in self.events.chunks(IN_FRAME) {
            let event = |event: &inspect::Event| Event {
                at: nanoseconds((event.at + after).saturating_sub(before)),
                task: TaskKey { kernel, task: event.task.0 },
                what: what(event.what),
            };
            to.part(Part::Events(events.iter().map(event).collect())).await?;
        }
        Ok(())
    }
}

/// How a task ended, in words.
pub(super) fn exit_name(exit: Exit) -> &'static str {
    match exit {
        Exit::Returned => "returned",
        Exit::Panicked => "panicked",
        Exit::Dropped => "dropped",
    }
}

fn what(what: inspect::What) -> What {
    match what {
        inspect::What::Stepped { took, wait } => What::Stepped {
            took: took.map(nanoseconds),
            trap: wait.map(|(trap, _)| trap.name().to_owned()),
            place: wait.map(|(_, place)| place.to_string()),
        },
        inspect::What::Ended { took, exit, .. } => {
            What::Ended { took: took.map(nanoseconds), exit: exit_name(exit).to_owned() }
        }
        // What further events there may be, they are no steps.
        _ => What::Spawned,
    }
}
