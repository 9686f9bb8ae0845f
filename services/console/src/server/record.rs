//! The recording of this process: when there is a snapshot, and which events are written.
//!
//! The page of [`record`](crate::record) says what is promised. One task on the console's thread
//! does all of it. It never waits for a kernel longer than an answer to a client does.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{self, KernelView};
use pikake_traps::trigger::{Kind, Triggers, fire};
use pikake_traps::{Interrupted, TrapKind, future_wait, timeout_after};

use super::Server;
use super::answers::{self, Collected};
use super::trace::exit_name;
use crate::answer::Answer;
use crate::observed::{nanoseconds, shown};
use crate::record::{
    Body, EventRow, EventsRow, SnapshotRow, Texts, TriggerRow, WhatRow, Writer, Written,
};
use crate::text::{counted, duration};

/// The pause between two readings of the recorders while something happens.
const READ_EVERY: Duration = Duration::from_millis(250);

/// The pause while nothing happens, between marks that the process lives, and between snapshots at
/// the least.
const SECOND: Duration = Duration::from_secs(1);

/// The pause between snapshots while nothing happens, or if a snapshot cannot be written.
const MINUTE: Duration = Duration::from_secs(60);

/// A snapshot takes 1 % of the time at most.
const REST: u32 = 100;

/// The pause after a snapshot while a kernel does not answer.
const SILENT: Duration = Duration::from_secs(5);

/// The snapshots take the part `1 / SHARE` of the bound in [`SHARE_TIME`] at most, and so do the
/// events.
const SHARE: u64 = 100;
const SHARE_TIME: Duration = Duration::from_secs(30);

/// The pause between two triggers that are written, at the least: further ones are counted.
const TRIGGER_EVERY: Duration = Duration::from_secs(5);

/// The time in which a program makes its first kernel, and the pause between looks for it.
const BEGINNING: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(10);

/// The part of the pause between snapshots that passes between two triggers at the least.
const TRIGGER_PART: u32 = 4;

/// A timer that is late by this power of two in microseconds, 131 ms, is a trigger.
const LATE_POWER: usize = 17;

/// The events in a record.
const IN_RECORD: usize = 1_000;

/// Records until the kernel of the console is shut down.
pub(super) async fn record(server: Rc<Server>, writer: Writer) {
    let mut recorder = Recorder::new(server, writer);
    let _ = recorder.run().await;
    recorder.finish();
}

/// The events of one kernel.
struct Ring {
    kernel: KernelView,
    /// The number of the next event.
    next: u64,
    /// The events that were lost, or not written, since the last record.
    lost: u64,
    /// The number of timers that were late, at the last snapshot.
    late: Option<u64>,
}

struct Recorder {
    server: Rc<Server>,
    writer: Writer,
    rings: BTreeMap<u32, Ring>,
    triggers: Triggers,
    /// The moment of the next snapshot, if something happens until then.
    next_snapshot: Instant,
    /// The moment of the last attempt to take one.
    last_snapshot: Option<Instant>,
    /// The pause between snapshots.
    pause: Duration,
    /// The moment until when triggers are only counted, and how many were.
    next_trigger: Instant,
    counted: u64,
    /// The bytes that events may take now.
    room: u64,
    room_since: Instant,
    /// Something has happened since the last snapshot.
    is_changed: bool,
    /// The last snapshot could not be written.
    is_refused: bool,
}

impl Recorder {
    fn new(server: Rc<Server>, writer: Writer) -> Self {
        let now = Instant::now();
        Self {
            room: writer.bound() / SHARE,
            server,
            rings: BTreeMap::new(),
            triggers: Triggers::begin(writer.slow()),
            writer,
            next_snapshot: now,
            last_snapshot: None,
            pause: SECOND,
            next_trigger: now,
            counted: 0,
            room_since: now,
            is_changed: true,
            is_refused: false,
        }
    }

    async fn run(&mut self) -> Result<(), Interrupted> {
        loop {
            let is_busy = self.read_events(false);
            self.is_changed |= is_busy;
            self.heed_triggers().await;
            let now = Instant::now();
            let has_passed = |time| self.last_snapshot.is_none_or(|last| now >= last + time);
            let is_due = now >= self.next_snapshot && (self.is_changed || has_passed(MINUTE));
            let is_wanted = self.writer.wants_snapshot() && has_passed(SECOND) && !self.is_refused;
            let has_kernels = !self.rings.is_empty();
            if (is_due || is_wanted) && has_kernels && !self.writer.is_paused() {
                self.snapshot().await;
            }
            if self.writer.last_write().is_none_or(|last| last.elapsed() >= SECOND) {
                let at = self.now();
                self.writer.write(at, |_| Body::Alive);
            }
            let is_beginning = !has_kernels && self.writer.began().elapsed() < BEGINNING;
            let pause = match is_busy {
                _ if is_beginning => SOON,
                true => READ_EVERY,
                false => SECOND,
            };
            let triggers = &self.triggers;
            let trigger = poll_fn(|cx| match triggers.poll(cx.waker()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            if let Ok(Err(interrupted)) = timeout_after(pause, future_wait(trigger)).await {
                return Err(interrupted);
            }
        }
    }

    /// Writes what there is at the end of the program.
    fn finish(&mut self) {
        self.read_events(true);
        let (triggers, more) = self.triggers.take();
        self.counted += more;
        for (kind, about) in triggers {
            self.write_trigger(kind, &about);
        }
        let at = self.now();
        self.writer.write(at, |_| Body::End);
    }

    /// The moment in the recording.
    fn now(&self) -> u64 {
        nanoseconds(self.writer.began().elapsed())
    }

    /// Reads the new events of all kernels, and writes them: all of them, or as many as there is
    /// room for. Returns whether there were any, or a kernel is in a step.
    fn read_events(&mut self, writes_all: bool) -> bool {
        for kernel in self.server.kernels() {
            let ring = |kernel| Ring { kernel, next: 0, lost: 0, late: None };
            self.rings.entry(kernel.id().number()).or_insert_with(|| ring(kernel));
        }
        let full = self.writer.bound() / SHARE;
        let passed = self.room_since.elapsed();
        let more = u128::from(full) * passed.as_nanos() / SHARE_TIME.as_nanos();
        self.room = full.min(self.room.saturating_add(u64::try_from(more).unwrap_or(full)));
        self.room_since = Instant::now();
        let at = self.now();
        let began = self.writer.began();
        let mut is_busy = false;
        for (number, ring) in &mut self.rings {
            let page = ring.kernel.events_from(ring.next);
            ring.next = page.next;
            ring.lost += page.lost;
            is_busy |= !page.events.is_empty() || !ring.kernel.is_asleep();
            let since = ring.kernel.recorded_since().unwrap_or(began);
            let (after, before) =
                (since.saturating_duration_since(began), began.saturating_duration_since(since));
            for events in page.events.chunks(IN_RECORD) {
                if !writes_all && self.room == 0 {
                    ring.lost += events.len() as u64;
                    continue;
                }
                let written = self.writer.write(at, |texts| {
                    let mut last = 0;
                    let mut row = |event: &inspect::Event| {
                        let moment = nanoseconds((event.at + after).saturating_sub(before));
                        let after = moment.wrapping_sub(last) as i64;
                        last = moment;
                        EventRow { after, task: event.task.0, what: what(event.what, texts) }
                    };
                    let rows = events.iter().map(&mut row).collect();
                    Body::Events(EventsRow { kernel: *number, lost: ring.lost, rows })
                });
                match written {
                    Written::Yes(bytes) => {
                        ring.lost = 0;
                        self.room = self.room.saturating_sub(bytes);
                    }
                    Written::No => ring.lost += events.len() as u64,
                }
            }
        }
        self.rings.retain(|_, ring| !ring.kernel.handle().is_closed());
        is_busy
    }

    /// Writes the first trigger of a time, with all events and a snapshot, and counts others.
    async fn heed_triggers(&mut self) {
        let mut is_written = false;
        let (triggers, more) = self.triggers.take();
        self.counted += more;
        for (kind, about) in triggers {
            if Instant::now() < self.next_trigger || self.writer.is_paused() {
                self.counted += 1;
                continue;
            }
            self.write_trigger(kind, &about);
            self.next_trigger = Instant::now() + TRIGGER_EVERY.max(self.pause / TRIGGER_PART);
            is_written = true;
        }
        if is_written {
            self.read_events(true);
            self.snapshot().await;
        }
    }

    fn write_trigger(&mut self, kind: Kind, about: &str) {
        let row =
            TriggerRow { kind: kind.name().to_owned(), about: shown(about), more: self.counted };
        if self.writer.write(self.now(), |_| Body::Trigger(row.clone())) != Written::No {
            self.counted = 0;
        }
    }

    /// Looks at all tasks, and writes what was seen.
    async fn snapshot(&mut self) {
        self.is_changed = false;
        let at = self.now();
        let began = Instant::now();
        let answer = look(&self.server).await;
        let took = began.elapsed();
        // The time of a look at a kernel that does not answer is that of the wait for it.
        let rest = match answer.kernels.iter().any(|kernel| kernel.stale.is_some()) {
            true => SILENT,
            false => took * REST,
        };
        self.find_late_timers(&answer);
        let row = |texts: &mut Texts| {
            Body::Snapshot(Box::new(SnapshotRow::of(&answer, nanoseconds(took), texts)))
        };
        let written = self.writer.write(at, row);
        self.is_refused = written == Written::No;
        self.pause = match written {
            Written::Yes(bytes) => {
                let share = u128::from(bytes * SHARE) * SHARE_TIME.as_nanos();
                let nanos = share / u128::from(self.writer.bound());
                let by_size = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                SECOND.max(rest).max(by_size)
            }
            Written::No => MINUTE,
        };
        let now = Instant::now();
        self.last_snapshot = Some(now);
        self.next_snapshot = now + self.pause;
    }

    /// Fires a trigger if timers have been late since the last snapshot.
    fn find_late_timers(&mut self, answer: &Answer) {
        for stats in &answer.stats {
            let Some(ring) = self.rings.get_mut(&stats.kernel) else { continue };
            let late = stats.lateness.iter().skip(LATE_POWER + 1).sum();
            let before = ring.late.replace(late);
            let more = before.map_or(late, |before| u64::saturating_sub(late, before));
            if more > 0 {
                let (timers, by) = (counted(more, "timer"), duration(1_000 << LATE_POWER));
                let kernel = stats.kernel;
                fire(Kind::LateTimer, || format!("kernel {kernel}: {timers} late by {by} or more"));
            }
        }
    }
}

/// All tasks with their waits, and the figures.
async fn look(server: &Server) -> Answer {
    let collected = Collected::default();
    // Neither fails: there is no client that may go.
    let _ = answers::waits(server, &collected).await;
    let _ = answers::stats(server, &collected).await;
    let mut answer = collected.into_answer();
    // A kernel that does not answer is among the tasks, and among the figures.
    let mut seen = BTreeSet::new();
    answer.kernels.retain(|kernel| seen.insert(kernel.id));
    answer
}

fn what(what: inspect::What, texts: &mut Texts) -> WhatRow {
    match what {
        inspect::What::Spawned { place } => WhatRow::Spawned(texts.place(place)),
        inspect::What::Stepped { took, wait } => {
            let mut wait_of =
                |(trap, place): (TrapKind, _)| (texts.number(trap.name()), texts.place(place));
            match (took.map(nanoseconds), wait.map(&mut wait_of)) {
                (None, None) => WhatRow::Stepped,
                (None, Some((trap, place))) => WhatRow::Waits(trap, place),
                (Some(took), None) => WhatRow::TimedStepped(took),
                (Some(took), Some((trap, place))) => WhatRow::TimedWaits(took, trap, place),
            }
        }
        inspect::What::Ended { took, exit, place } => {
            let exit = texts.number(exit_name(exit));
            WhatRow::Ended(exit, took.map(nanoseconds), texts.place(place))
        }
        // What further events there may be, they are no steps.
        _ => WhatRow::Stepped,
    }
}
