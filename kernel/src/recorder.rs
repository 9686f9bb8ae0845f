//! The flight recorder of a kernel: its last events, and the figures of its tasks.
//!
//! The kernel writes events to a [`Ring`] of fixed size, and any thread reads them, also while the
//! kernel is stuck in a step. The kernel never waits for a reader, and overwrites the oldest event.
//!
//! # No event mixes two
//!
//! The kernel writes event `n` to slot `n` modulo [`EVENTS`], and then stores `n + 1` in
//! [`Ring::head`]. Each store is a release store, and each load an acquire load. A reader loads the
//! head, then slots, and then the head again.
//!
//! * The first load of the head acquires all stores of the events before this head.
//! * Suppose that a slot has a part of a later event `m`, written by then or not whole. The kernel
//!   had stored `m` in the head before it wrote this part. So the second load of the head gives `m`
//!   at least, and the reader drops the event `m - EVENTS` and all before.
//!
//! On x86 each of these stores is a plain one.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pikake_time::{Rate, Ticks};
use pikake_traps::figures::Times;
use pikake_traps::inspect::TaskFigures;
use pikake_traps::{Exit, PlaceCell, TaskId, TaskRef, TrapKind};

use crate::profile::{Profiles, StepRow};
use crate::threads::{AtomicU64, Ordering};

#[cfg(test)]
mod tests;

/// The number of events that a recorder keeps: a busy kernel makes as many in a millisecond, and
/// they take 128 KiB. A power of two.
#[cfg(not(pikake_shuttle))]
pub(crate) const EVENTS: usize = 4096;
/// So few that the model checker overwrites them.
#[cfg(pikake_shuttle)]
pub(crate) const EVENTS: usize = 4;

/// The number of events of a task in the report of its crash.
const EVENTS_IN_REPORT: usize = 8;

/// An event of a kernel's flight recorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time since the kernel records steps, by the kernel's clock. Of a step that was timed:
    /// the end of the step. Otherwise by the last reading of the clock before.
    pub at: Duration,
    /// The task.
    pub task: TaskId,
    /// What happened.
    pub what: What,
}

/// What happened, in an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// The task was spawned.
    Spawned {
        /// The place of the spawn.
        place: &'static Location<'static>,
    },
    /// The task was stepped, and waits or is ready again.
    Stepped {
        /// The length of the step, if it was timed.
        took: Option<Duration>,
        /// The wait that was polled last and is pending, and the place of its await.
        wait: Option<(TrapKind, &'static Location<'static>)>,
    },
    /// The task has ended.
    Ended {
        /// The length of the last step, if it was timed.
        took: Option<Duration>,
        /// The way in which the task ended.
        exit: Exit,
        /// The place of the spawn.
        place: &'static Location<'static>,
    },
}

/// What happened, as a slot has it.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Code {
    Spawned,
    Stepped,
    Returned,
    Panicked,
    Dropped,
}

impl Code {
    const ALL: [Self; 5] =
        [Self::Spawned, Self::Stepped, Self::Returned, Self::Panicked, Self::Dropped];

    fn of(exit: Exit) -> Self {
        match exit {
            Exit::Returned => Self::Returned,
            Exit::Panicked => Self::Panicked,
            Exit::Dropped => Self::Dropped,
        }
    }
}

/// [`Slot::what`]: the [`Code`], the number of the trap plus one, and the length of the step in
/// ticks plus one. Each zero stands for none.
const KIND_SHIFT: u32 = 8;
const TOOK_SHIFT: u32 = 16;

/// Packs a length. A length of more than 2^48 ticks, some hours at the least, is cut.
#[inline]
fn pack_took(took: Option<u64>) -> u64 {
    took.map_or(0, |ticks| (ticks + 1).min(u64::MAX >> TOOK_SHIFT) << TOOK_SHIFT)
}

/// An event. A slot has half a cache line.
#[derive(Default)]
struct Slot {
    task: AtomicU64,
    at: AtomicU64,
    what: AtomicU64,
    /// The place of the wait, or of the spawn.
    place: PlaceCell,
}

/// Some events of a kernel's flight recorder, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// The number of the event after these, where the next page begins.
    pub next: u64,
    /// The number of events before these that were overwritten.
    pub lost: u64,
}

/// The events of a kernel, and its profiles. Only the kernel's thread writes events.
pub(crate) struct Ring {
    /// The number of events so far.
    head: AtomicU64,
    slots: Box<[Slot; EVENTS]>,
    /// The reading of the clock when the recording began.
    began: Ticks,
    /// The same moment for other threads.
    began_at: Instant,
    /// The ticks of the kernel's clock per second, as measured so far.
    hz: AtomicU64,
    profiles: Profiles,
}

impl Ring {
    pub(crate) fn new(began: Ticks, rate: Rate) -> Arc<Self> {
        let slots: Vec<Slot> = (0..EVENTS).map(|_| Slot::default()).collect();
        let Ok(slots) = slots.into_boxed_slice().try_into() else {
            unreachable!("there are as many slots as events")
        };
        let (head, hz) = (AtomicU64::new(0), AtomicU64::new(rate.hz()));
        let (began_at, profiles) = (Instant::now(), Profiles::default());
        Arc::new(Self { head, slots, began, began_at, hz, profiles })
    }

    pub(crate) fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_hz(self.hz.load(Ordering::Relaxed))
    }

    /// The moment when the recording began.
    pub(crate) fn began_at(&self) -> Instant {
        self.began_at
    }

    #[inline(always)]
    fn push(&self, task: TaskId, at: Ticks, what: u64, place: &'static Location<'static>) {
        let head = self.head.load(Ordering::Relaxed);
        let slot = &self.slots[head as usize % EVENTS];
        // `read` relies on this order.
        slot.task.store(task.0, Ordering::Release);
        slot.at.store(at.get(), Ordering::Release);
        slot.what.store(what, Ordering::Release);
        slot.place.set(place);
        self.head.store(head + 1, Ordering::Release);
    }

    /// The number of events so far. From any thread.
    pub(crate) fn count(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    /// The last events, at most `limit`, the oldest first. From any thread.
    pub(crate) fn read(&self, limit: usize) -> Vec<Event> {
        let head = self.head.load(Ordering::Acquire);
        let mut events = self.read_from(head.saturating_sub(limit as u64)).events;
        // The kernel may have written further events since the load of the head.
        events.drain(..events.len().saturating_sub(limit));
        events
    }

    /// The events from a number on. From any thread.
    pub(crate) fn read_from(&self, number: u64) -> EventPage {
        let head = self.head.load(Ordering::Acquire);
        let number = number.min(head);
        let first = number.max(head.saturating_sub(EVENTS as u64));
        let events: Vec<_> = (first..head).map(|number| (number, self.read_slot(number))).collect();
        // The event of this number may be in the making.
        let making = self.head.load(Ordering::Acquire);
        let whole = events.into_iter().filter(|(number, _)| number + EVENTS as u64 > making);
        let events: Vec<Event> = whole.filter_map(|(_, event)| event).collect();
        let lost = head - number - events.len() as u64;
        EventPage { events, next: head, lost }
    }

    /// The event with this number, or one of a later number, or a mix of both.
    fn read_slot(&self, number: u64) -> Option<Event> {
        let rate = self.rate();
        let slot = &self.slots[number as usize % EVENTS];
        let task = TaskId(slot.task.load(Ordering::Acquire));
        let at = Ticks::new(slot.at.load(Ordering::Acquire)).since(self.began);
        let what = slot.what.load(Ordering::Acquire);
        let place = slot.place.get()?;
        let took = (what >> TOOK_SHIFT).checked_sub(1).map(|ticks| rate.duration_floor(ticks));
        let kind = TrapKind::from_number(u32::from((what >> KIND_SHIFT) as u8));
        let wait = kind.map(|kind| (kind, place));
        let ended = |exit| What::Ended { took, exit, place };
        let what = match Code::ALL.get(usize::from(what as u8))? {
            Code::Spawned => What::Spawned { place },
            Code::Stepped => What::Stepped { took, wait },
            Code::Returned => ended(Exit::Returned),
            Code::Panicked => ended(Exit::Panicked),
            Code::Dropped => ended(Exit::Dropped),
        };
        Some(Event { at: rate.duration_floor(at), task, what })
    }
}

/// The figures of the task with an index, in ticks.
#[derive(Clone, Copy, Default)]
struct Figures {
    steps: u64,
    busy: u64,
    longest: u64,
    /// The reading of the clock after the last step, or at the spawn.
    since: Ticks,
}

impl Figures {
    /// Adds the length of a step, if it was timed.
    #[inline(always)]
    fn add(&mut self, took: Option<u64>) {
        if let Some(took) = took {
            self.busy += took;
            self.longest = self.longest.max(took);
        }
    }
}

/// A profile that a kernel adds its steps to, from
/// [`KernelView::profile`](crate::inspect::KernelView::profile).
///
/// The kernel adds steps only while it [times](crate::inspect::time_steps) them. The drop of this
/// value ends the profile.
pub struct StepProfile {
    ring: Arc<Ring>,
    number: u64,
}

impl StepProfile {
    pub(crate) fn begin(ring: Arc<Ring>) -> Self {
        let number = ring.profiles().begin();
        Self { ring, number }
    }

    /// Ends the profile.
    pub fn finish(self) -> Vec<StepRow> {
        let steps = self.ring.profiles().end(self.number);
        steps.map(|steps| steps.into_rows(self.ring.rate())).unwrap_or_default()
    }
}

impl Drop for StepProfile {
    fn drop(&mut self) {
        self.ring.profiles().end(self.number);
    }
}

impl fmt::Debug for StepProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepProfile").finish_non_exhaustive()
    }
}

/// The recorder of a kernel, on the kernel's thread.
pub(crate) struct Recorder {
    ring: Arc<Ring>,
    /// The figures of each task, by the task's index.
    tasks: RefCell<Vec<Figures>>,
    /// How late timers fired.
    lateness: Times,
    /// Also steps after which the task is ready again are noted.
    notes_all_steps: Cell<bool>,
}

impl Recorder {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        let (tasks, lateness) = (RefCell::default(), Times::default());
        Self { ring, tasks, lateness, notes_all_steps: Cell::new(false) }
    }

    pub(crate) fn note_all_steps(&self) {
        self.notes_all_steps.set(true);
    }

    pub(crate) fn notes_all_steps(&self) -> bool {
        self.notes_all_steps.get()
    }

    pub(crate) fn spawned(&self, task: &TaskRef, at: Ticks) {
        self.change_figures(task, |figures| *figures = Figures { since: at, ..Figures::default() });
        self.ring.push(task.id(), at, Code::Spawned as u64, task.spawned_at());
        self.ring.profiles.spawned(task);
    }

    /// Notes a step, which may have ended the task. `took` is the length of a step that was timed,
    /// in ticks. A look is no event: the task waits as before.
    #[inline(always)]
    pub(crate) fn stepped(&self, task: &TaskRef, at: Ticks, took: Option<u64>) {
        if let Some(took) = took {
            let wait = if task.is_ended() { None } else { task.last_wait() };
            self.ring.profiles.stepped(task, took, wait.map(|(kind, _)| kind));
        }
        if task.is_ended() {
            let exit = task.exit().unwrap_or(Exit::Dropped);
            return self.ended(task, exit, at, took);
        }
        if task.was_looked_at() {
            return self.looked(task, took);
        }
        self.change_figures(task, |figures| {
            figures.steps += 1;
            figures.since = at;
            figures.add(took);
        });
        let (kind, place) = task.last_wait_parts();
        let what = Code::Stepped as u64 | u64::from(kind) << KIND_SHIFT | pack_took(took);
        self.ring.push(task.id(), at, what, place);
    }

    /// Notes a step that was but a look.
    #[cold]
    fn looked(&self, task: &TaskRef, took: Option<u64>) {
        self.change_figures(task, |figures| figures.add(took));
    }

    /// Notes the end of a task.
    #[inline(never)]
    pub(crate) fn ended(&self, task: &TaskRef, exit: Exit, at: Ticks, took: Option<u64>) {
        let what = Code::of(exit) as u64 | pack_took(took);
        self.ring.push(task.id(), at, what, task.spawned_at());
    }

    #[inline(always)]
    fn change_figures(&self, task: &TaskRef, change: impl FnOnce(&mut Figures)) {
        let index = task.index() as usize;
        let tasks = &mut *self.tasks.borrow_mut();
        if index >= tasks.len() {
            self.add_figures(tasks, index);
        }
        if let Some(figures) = tasks.get_mut(index) {
            change(figures);
        }
    }

    /// Adds figures for tasks up to an index. Those tasks may be older than the recorder.
    #[cold]
    #[inline(never)]
    fn add_figures(&self, tasks: &mut Vec<Figures>, index: usize) {
        tasks.resize(index + 1, Figures { since: self.ring.began, ..Figures::default() });
    }

    /// The figures of a task that has not ended.
    pub(crate) fn figures(&self, task: &TaskRef, now: Ticks, rate: Rate) -> TaskFigures {
        let tasks = self.tasks.borrow();
        let unseen = Figures { since: self.ring.began, ..Figures::default() };
        let figures = tasks.get(task.index() as usize).copied().unwrap_or(unseen);
        TaskFigures {
            steps: figures.steps,
            busy: rate.duration_floor(figures.busy),
            longest: rate.duration_floor(figures.longest),
            since: rate.duration_floor(now.since(figures.since)),
        }
    }

    /// Notes how late a timer has fired, in ticks.
    pub(crate) fn timer_fired(&self, late: u64, rate: Rate) {
        self.lateness.note(rate.duration_floor(late));
    }

    /// The numbers of timers by lateness, without zeros at the end.
    pub(crate) fn lateness(&self) -> Vec<u64> {
        self.lateness.counts()
    }

    /// Notes the rate of the clock, which is measured better as time passes.
    #[inline]
    pub(crate) fn note_rate(&self, rate: Rate) {
        self.ring.hz.store(rate.hz(), Ordering::Relaxed);
    }

    /// The last events of a task in words.
    pub(crate) fn last_events(&self, task: TaskId) -> String {
        let mut events = self.ring.read(EVENTS);
        events.retain(|event| event.task == task);
        let skipped = events.len().saturating_sub(EVENTS_IN_REPORT);
        let texts = events[skipped..].iter().map(|Event { at, what, .. }| format!("{at:?} {what}"));
        texts.collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawned { place } => write!(f, "spawned at {place}"),
            Self::Stepped { wait: Some((trap, place)), .. } => write!(f, "{trap} at {place}"),
            Self::Stepped { wait: None, .. } => f.write_str("stepped"),
            Self::Ended { exit: Exit::Returned, .. } => f.write_str("returned"),
            Self::Ended { exit: Exit::Panicked, .. } => f.write_str("panicked"),
            Self::Ended { exit: Exit::Dropped, .. } => f.write_str("dropped"),
        }
    }
}
