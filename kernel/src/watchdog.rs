//! A watchdog that reports a long step while the step lasts, even if the step never ends.
//!
//! A kernel cannot report its current step, because that step has the kernel's thread. So each
//! kernel shows its step in a [`Pulse`], and one thread of the process looks at every pulse now and
//! then. A step is long when two looks, at least the kernel's limit apart, find the same step. The
//! kernel pays a few stores per step, and reads no clock.
//!
//! ```text
//!   kernel: step_begins ──▶ task, place, step ──▶ look: which step, and since which look?
//!           step_is_over ─▶ step
//!           sleeps, is_back ──▶ is_asleep ──────▶ park, if all kernels are asleep
//!
//!            (1)           (2)            (3)
//!   (none) ───────▶ rests ───────▶ looks ───────▶ parked
//!                    ▲ ▲             │ (4)           │ (5)
//!                    │ └─────────────┘               │
//!                    └───────────────────────────────┘
//! ```
//!
//! (1) [`watch`], if the process has no such thread yet. (2) [`Watchdog::next_look`], after
//! [`State::look_every`]. (3) [`Watchdog::park`], if all kernels are asleep and every long step's
//! end is reported: an idle process is not woken. (4) Otherwise. (5) [`Watchdog::unpark`], called
//! by the first [`Pulse::is_back`] or by [`watch`]. The rest before the look bounds the price of a
//! kernel that sleeps often: at most one wake-up of the thread per look.
//!
//! A step is first seen at most one look after its begin. The report comes at the first look that
//! is at least the limit after that one. So no report is earlier than the limit, or later than two
//! looks after the limit.
//!
//! With peers, the thread also finds a kernel that is late while another one is idle
//! (`watchdog/late.rs`).
//!
//! # No report mixes two steps
//!
//! The fields of a pulse are separate atomics. [`Pulse::current`] reads `step`, then `task` and
//! `place`. A report takes these from the first look at a step `n`. A report also needs the later
//! look to read the same number `n`.
//!
//! * The first read acquires the release store of `n`. So `task` and `place` are those of step `n`,
//!   or of a later one.
//! * Suppose that one of them is of a later step. Its release store comes after the store that
//!   ended step `n`, and the first look acquires it. So no later read of `step` gives `n`: no
//!   number is used twice. Such a mix is never reported.
//!
//! The name is read in the later look, in words that are stored and loaded like `task` and `place`.
//! So [`Pulse::report`] reads `step` once more after that, and drops the report if the step is
//! over. On x86 each of these stores is a plain one.
//!
//! # No wake-up is lost
//!
//! A kernel that comes back stores `is_asleep` and then loads `is_parked`. A watchdog that parks
//! stores `is_parked` and then loads each `is_asleep`. All four are sequentially consistent, so at
//! least one side sees the other's store. A watchdog that sees the store does not park. A kernel
//! that does takes the lock, which the watchdog holds until it waits, and notifies. If the kernel
//! finds `is_parked` cleared by another kernel, that kernel has notified the watchdog.
//!
//! # Forks
//!
//! A forked child has no watchdog thread. Its inherited kernels go on unwatched, and its next
//! [`watch`] starts a thread. The thread never holds a lock while it reports, rests or is parked.
//! Only a fork in the microsecond of a look finds the list locked for ever.

use std::iter;
use std::mem;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::process;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::{
    Home, KernelId, LongStep, LongStepStage, Peers, PlaceCell, TaskId, show_long_step,
};

use crate::threads::{
    AtomicBool, AtomicU64, Builder, Condvar, Instant, Mutex, MutexGuard, Ordering, sleep,
};

use crate::watchdog::late::{Batch, FoundStep, LateReport, REPORTED_LATENESS, is_report_due};

mod late;
#[cfg(test)]
mod tests;

/// The number of looks in the smallest limit: a report is late by half of the limit at most.
const LOOKS_PER_LIMIT: u32 = 4;

/// The shortest rest between two looks. A look takes less than a microsecond per kernel, and a
/// thread's wake-up a few microseconds: two hundred looks a second are not measurable.
const LOOK_EVERY_LEAST: Duration = Duration::from_millis(5);

/// The longest rest between two looks. A new kernel waits this long for its first look if the
/// limits of all other kernels are large.
const LOOK_EVERY_MOST: Duration = Duration::from_secs(1);

/// The shortest limit: a length of zero cannot be doubled.
const LIMIT_LEAST: Duration = Duration::from_nanos(1);

/// The bytes of a task's name that are reported.
const NAME_BYTES: usize = 48;

/// A step that a kernel is in.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CurrentStep {
    /// The number of the step. No two steps of a kernel have the same number.
    pub number: u64,
    /// The task.
    pub task: TaskId,
    /// The first 48 bytes of the task's name; empty if it has none.
    pub name: Box<str>,
    /// The place where the task was spawned.
    pub spawned_at: &'static Location<'static>,
    /// The time since the watchdog has found the step; zero if it has not found the step yet, or
    /// does not look at the kernel. With the default limit of a long step, the step has lasted up
    /// to 50 ms longer.
    pub lasts: Duration,
}

/// The value of [`Pulse::step`] between two steps. No step of a kernel has this number.
const NO_STEP: u64 = u64::MAX;

/// Takes a lock whose holder runs no user code, so the state behind a poisoned lock is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel with peers.
type Member = (Arc<Home>, Peers);

/// The part of a kernel that the watchdog looks at. Only the kernel's thread writes here.
pub(crate) struct Pulse {
    kernel: KernelId,
    /// The number of the current step, or [`NO_STEP`].
    step: AtomicU64,
    /// The task that is stepped.
    task: AtomicU64,
    /// The place where that task was spawned.
    place: PlaceCell,
    /// Set while the kernel blocks in its driver, and while its owner has left it.
    is_asleep: AtomicBool,
    /// The kernel, as one among its peers, from its first [batch](late) on.
    member: OnceLock<Member>,
    name: ShownName,
    limit: Duration,
    watchdog: &'static Watchdog,
}

impl Pulse {
    /// The pulse of a kernel that is asleep, has this limit, and is not watched yet.
    pub(crate) fn new(kernel: KernelId, limit: Duration) -> Arc<Self> {
        Self::of(&WATCHDOG, kernel, limit)
    }

    fn of(watchdog: &'static Watchdog, kernel: KernelId, limit: Duration) -> Arc<Self> {
        Arc::new(Self {
            kernel,
            step: AtomicU64::new(NO_STEP),
            task: AtomicU64::new(0),
            place: PlaceCell::default(),
            is_asleep: AtomicBool::new(true),
            member: OnceLock::new(),
            name: ShownName::default(),
            limit: limit.max(LIMIT_LEAST),
            watchdog,
        })
    }

    /// Notes that a step begins. The step before is over, and no step of this kernel had this
    /// number.
    #[inline]
    pub(crate) fn step_begins(&self, step: u64, task: u64, spawned_at: &'static Location<'static>) {
        debug_assert_eq!(self.step.load(Ordering::Relaxed), NO_STEP, "the step before is over");
        // `current` and `report` rely on this order.
        self.task.store(task, Ordering::Release);
        self.place.set(spawned_at);
        self.step.store(step, Ordering::Release);
    }

    /// Notes that the step is over.
    #[inline]
    pub(crate) fn step_is_over(&self) {
        self.step.store(NO_STEP, Ordering::Relaxed);
    }

    /// Shows the name of a task, before each step of a task that has one.
    #[inline(never)]
    pub(crate) fn show_name(&self, task: u64, name: &str) {
        debug_assert_eq!(self.step.load(Ordering::Relaxed), NO_STEP, "the step before is over");
        self.name.set(task, name);
    }

    /// Notes that the kernel is about to block in its driver, or that its owner leaves it.
    #[inline]
    pub(crate) fn sleeps(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
    }

    /// Notes that the kernel no longer blocks, or that its owner is back.
    #[inline]
    pub(crate) fn is_back(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
        if self.watchdog.is_parked.load(Ordering::SeqCst) {
            self.watchdog.unpark();
        }
    }

    /// Notes that the kernel has peers. Further calls do nothing.
    #[inline]
    pub(crate) fn joins(&self, home: &Arc<Home>, peers: &Peers) {
        self.member.get_or_init(|| (home.clone(), peers.clone()));
    }

    /// The current batch of a kernel with peers, by the moment from which the kernel is late with
    /// it. `None` while the kernel has nothing to do, or was left by its owner.
    fn current_batch(&self) -> Option<Ticks> {
        let (home, _) = self.member.get()?;
        Some(home.late_from()).filter(|moment| ![Ticks::ZERO, Ticks::MAX].contains(moment))
    }

    /// The current step, if there is one. Only its number is certain: the step may be over, and its
    /// task and place those of a later step.
    fn current(&self) -> Option<Step> {
        let number = self.step.load(Ordering::Acquire);
        let task = self.task.load(Ordering::Acquire);
        let place = self.place.get()?;
        (number != NO_STEP).then_some(Step { number, task, place })
    }

    /// Whether the kernel blocks in its driver, or its owner has left it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::Relaxed)
    }

    /// The step that the kernel is in, from any thread.
    pub(crate) fn current_step(self: &Arc<Self>) -> Option<CurrentStep> {
        let step = self.current()?;
        let since = lock(&self.watchdog.state).since(self, &step);
        let lasts = since.map(|since| Instant::now().saturating_duration_since(since));
        let LongStep { number, task, name, spawned_at, took: lasts, .. } =
            self.report(&step, lasts.unwrap_or_default())?;
        Some(CurrentStep { number, task, name, spawned_at, lasts })
    }

    /// A report on a step that an earlier look has found. `None` if the step is over by now.
    fn report(&self, step: &Step, took: Duration) -> Option<LongStep> {
        let &Step { number, task, place: spawned_at } = step;
        let (kernel, name, task) = (self.kernel, self.name.of(task), TaskId(task));
        let stage = LongStepStage::Lasts;
        let report = LongStep { kernel, number, task, name, spawned_at, took, stage };
        (self.step.load(Ordering::Relaxed) == number).then_some(report)
    }
}

/// The name of the named task that was stepped last, cut to [`NAME_BYTES`].
#[derive(Default)]
struct ShownName {
    task: AtomicU64,
    /// The bytes of the name, and zeros.
    words: [AtomicU64; NAME_BYTES / 8],
}

impl ShownName {
    fn set(&self, task: u64, name: &str) {
        let mut bytes = [0; NAME_BYTES];
        let mut end = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        self.task.store(task, Ordering::Release);
        for (word, bytes) in self.words.iter().zip(bytes.chunks_exact(size_of::<u64>())) {
            let bytes = bytes.try_into().expect("a chunk has the size that it was asked for");
            word.store(u64::from_le_bytes(bytes), Ordering::Release);
        }
    }

    /// The name of a task; empty if the task has none. Names of tasks that are stepped meanwhile
    /// may mix in.
    fn of(&self, task: u64) -> Box<str> {
        if self.task.load(Ordering::Acquire) != task {
            return Box::default();
        }
        let words = self.words.iter().map(|word| word.load(Ordering::Acquire).to_le_bytes());
        let bytes: Vec<u8> = words.flatten().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into()
    }
}

/// A step of a kernel, as one look finds it.
struct Step {
    number: u64,
    task: u64,
    /// The place where the task was spawned.
    place: &'static Location<'static>,
}

/// A long step, and whether the log says so.
#[derive(Clone)]
struct Report {
    step: LongStep,
    is_logged: bool,
}

impl Report {
    /// Shows the step to the watchers, and logs it.
    fn emit(&self) {
        let LongStep { kernel, task, name, spawned_at, took, stage, .. } = &self.step;
        let more = show_long_step(&self.step);
        if !self.is_logged {
            return;
        }
        let name = Some(&**name).filter(|name| !name.is_empty());
        match stage {
            LongStepStage::Over => tracing::warn!(
                %kernel,
                %task,
                name,
                %spawned_at,
                ?took,
                "a long step is over"
            ),
            LongStepStage::Found => tracing::warn!(
                %kernel,
                %task,
                name,
                %spawned_at,
                ?took,
                "a step takes long: the kernel's other tasks have to wait{}",
                more.concat()
            ),
            _ => tracing::warn!(
                %kernel,
                %task,
                name,
                %spawned_at,
                ?took,
                "a step takes long: the kernel's other tasks have to wait"
            ),
        }
    }
}

/// A step that at least one look has found.
struct Seen {
    step: Step,
    /// The time of the first look that found the step.
    since: Instant,
    /// The length at which the step is reported next.
    due: Duration,
    /// The step as the last look has found it, if it is long.
    report: Option<LongStep>,
}

/// A kernel on the list.
struct Entry {
    pulse: Arc<Pulse>,
    seen: Option<Seen>,
    batch: Option<Batch>,
    /// The guard was dropped, and only the end of a long step is left to report.
    is_unwatched: bool,
}

impl Entry {
    /// Whether a long step was reported, and its end was not.
    fn has_unreported_end(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.report.is_some())
    }

    /// Whether there is nothing to look at before the kernel comes back.
    fn is_idle(&self) -> bool {
        self.pulse.is_asleep.load(Ordering::SeqCst) && !self.has_unreported_end()
    }

    fn look(&mut self, now: Instant) -> Option<Report> {
        let Self { pulse, seen, is_unwatched, .. } = self;
        let current = if *is_unwatched { None } else { pulse.current() };
        match (seen, current) {
            (Some(seen), Some(current)) if seen.step.number == current.number => {
                let took = now.saturating_duration_since(seen.since);
                let is_logged = took >= seen.due;
                let is_known = seen.report.is_some();
                if !is_logged && !is_known {
                    return None;
                }
                let mut step = pulse.report(&seen.step, took)?;
                if is_logged {
                    let mut doubled = iter::successors(Some(seen.due), |due| due.checked_mul(2));
                    seen.due = doubled.find(|due| *due > took).unwrap_or(Duration::MAX);
                }
                seen.report = Some(step.clone());
                if !is_known {
                    step.stage = LongStepStage::Found;
                }
                Some(Report { step, is_logged })
            }
            (seen, current) => {
                let due = pulse.limit;
                let found = current.map(|step| Seen { step, since: now, due, report: None });
                let before = mem::replace(seen, found)?;
                let took = now.saturating_duration_since(before.since);
                let step = LongStep { took, stage: LongStepStage::Over, ..before.report? };
                Some(Report { step, is_logged: true })
            }
        }
    }

    /// Looks at the batch of a kernel with peers, after [`look`](Self::look).
    fn look_at_batch(&mut self, now: Instant) {
        let late_from = self.pulse.current_batch().filter(|_| !self.is_unwatched);
        let Some(late_from) = late_from else {
            self.batch = None;
            return;
        };
        let batch = self.batch.take().filter(|batch| batch.late_from == late_from);
        let batch = self.batch.insert(batch.unwrap_or_else(|| Batch::new(late_from, now)));
        let Some(Seen { step, since, .. }) = &self.seen else { return };
        let took = now.saturating_duration_since(*since);
        if let Some(LongStep { task, name, spawned_at, took, .. }) = self.pulse.report(step, took) {
            batch.add(FoundStep { task: task.0, name, spawned_at, took });
        }
    }

    /// The kernel and its peers, and how late it is, if that is worth a report.
    fn lateness(&self, now: Instant) -> Option<(&Batch, Duration, &Member)> {
        let batch = self.batch.as_ref()?;
        Some((batch, batch.lateness(now)?, self.pulse.member.get()?))
    }
}

/// The list of kernels, and the thread that looks at them.
struct Watchdog {
    state: Mutex<State>,
    /// Set while the thread waits for `wake`. Changes only under the lock.
    is_parked: AtomicBool,
    wake: Condvar,
}

struct State {
    entries: Vec<Entry>,
    /// The process that the thread was started in; a fork has another number.
    thread_of: Option<u32>,
    /// The time of the last report on a late kernel.
    reported_late: Option<Instant>,
}

impl State {
    fn is_idle(&self) -> bool {
        self.entries.iter().all(Entry::is_idle)
    }

    /// The time of the first look that has found this step of a kernel, if there was one.
    fn since(&self, pulse: &Arc<Pulse>, step: &Step) -> Option<Instant> {
        let entry = self.entries.iter().find(|entry| Arc::ptr_eq(&entry.pulse, pulse))?;
        let seen = entry.seen.as_ref().filter(|seen| seen.step.number == step.number)?;
        Some(seen.since)
    }

    /// The length of the rest between two looks.
    fn look_every(&self) -> Duration {
        let smallest = self.entries.iter().map(|entry| entry.pulse.limit).min();
        let has_peers = self.entries.iter().any(|entry| entry.pulse.member.get().is_some());
        let smallest = smallest.into_iter().chain(has_peers.then_some(REPORTED_LATENESS)).min();
        let part = smallest.map_or(LOOK_EVERY_MOST, |limit| limit / LOOKS_PER_LIMIT);
        part.clamp(LOOK_EVERY_LEAST, LOOK_EVERY_MOST)
    }

    /// Looks at all kernels; returns the reports that are due.
    fn look(&mut self, now: Instant) -> Vec<Report> {
        let reports = self.entries.iter_mut().filter_map(|entry| entry.look(now)).collect();
        self.entries.retain(|entry| !entry.is_unwatched);
        reports
    }

    /// Looks at the batches of all kernels, after [`look`](Self::look) at their steps; returns the
    /// report that is due.
    fn look_for_late(&mut self, now: Instant) -> Option<LateReport> {
        self.entries.iter_mut().for_each(|entry| entry.look_at_batch(now));
        if !is_report_due(self.reported_late, now) {
            return None;
        }
        let report = self.entries.iter().find_map(|entry| {
            let (batch, late, (home, peers)) = entry.lateness(now)?;
            let (idle, longest) = (peers.idle()?, batch.longest().cloned());
            Some(LateReport { kernel: home.id(), late, idle, longest })
        })?;
        self.reported_late = Some(now);
        Some(report)
    }
}

static WATCHDOG: Watchdog = Watchdog::new();

impl Watchdog {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State { entries: Vec::new(), thread_of: None, reported_late: None }),
            is_parked: AtomicBool::new(false),
            wake: Condvar::new(),
        }
    }

    /// Starts the thread, if this process has none. Without the thread nothing is reported.
    fn start(&'static self) {
        let mut state = lock(&self.state);
        let process = process::id();
        if state.thread_of == Some(process) {
            return;
        }
        if state.thread_of.take().is_some() {
            // This is a fork: the kernels of other threads did not come along.
            state.entries.clear();
        }
        // Linux shows fifteen bytes of a name.
        if Builder::new().name("pikake-watchdog".into()).spawn(|| self.work()).is_ok() {
            state.thread_of = Some(process);
        }
    }

    /// The loop of the thread.
    fn work(&self) {
        loop {
            let (long, late) = self.next_look();
            for report in long {
                catch(|| report.emit());
            }
            if let Some(report) = late {
                catch(|| report.emit());
            }
        }
    }

    /// Waits until a look is due, and looks.
    fn next_look(&self) -> (Vec<Report>, Option<LateReport>) {
        let look_every = self.park(lock(&self.state)).look_every();
        sleep(look_every);
        let mut state = lock(&self.state);
        let now = Instant::now();
        (state.look(now), state.look_for_late(now))
    }

    /// Waits while all kernels are asleep.
    fn park<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if !state.is_idle() {
            return state;
        }
        self.is_parked.store(true, Ordering::SeqCst);
        // A kernel that has come back meanwhile may have missed the flag.
        if !state.is_idle() {
            self.is_parked.store(false, Ordering::Relaxed);
        }
        while self.is_parked.load(Ordering::Relaxed) {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    #[cold]
    fn unpark(&self) {
        let _state = lock(&self.state);
        self.is_parked.store(false, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Puts a kernel on the list, and unparks the thread: a kernel that is awake may not call
    /// [`Pulse::is_back`] for long.
    fn add(pulse: &Arc<Pulse>) -> Watched {
        let entry = Entry { pulse: pulse.clone(), seen: None, batch: None, is_unwatched: false };
        lock(&pulse.watchdog.state).entries.push(entry);
        pulse.watchdog.unpark();
        Watched(pulse.clone())
    }
}

/// Calls a closure of the watchdog that logs. A subscriber may panic.
fn catch(log: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(log)) {
        // The panic hook has reported it, and the drop of the payload might panic, too.
        mem::forget(panic);
    }
}

/// Makes the process' watchdog look at a kernel while the guard lives.
pub(crate) fn watch(pulse: &Arc<Pulse>) -> Watched {
    pulse.watchdog.start();
    Watchdog::add(pulse)
}

/// The watch of a kernel, which the drop ends.
#[must_use = "the drop ends the watch of the kernel"]
pub(crate) struct Watched(Arc<Pulse>);

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = lock(&self.0.watchdog.state);
        let is_this = |entry: &Entry| !entry.is_unwatched && Arc::ptr_eq(&entry.pulse, &self.0);
        let Some(index) = state.entries.iter().position(is_this) else { return };
        if state.entries[index].has_unreported_end() {
            state.entries[index].is_unwatched = true;
        } else {
            state.entries.swap_remove(index);
        }
    }
}
