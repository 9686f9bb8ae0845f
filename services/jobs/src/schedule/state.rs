//! The state of all schedules: which there are, when each was sent last, which are paused. No
//! waits, no clock.
//!
//! The state is one message in the broker. Its version tells which of two messages is the later
//! one. Two leaders at a moment may both write; what they agree on is the last moment of each
//! schedule, of which the later one counts.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::signature::{self, Signature};
use crate::schedule::cron::{Cron, next_of_interval, zone};
use crate::schedule::{Missed, Schedule};
use crate::unique::{Unique, UntilWhen};

/// How old a moment may be that is on time nevertheless: its leader may have to be replaced.
const TOLERANCE: Duration = Duration::from_secs(60);

/// How many missed moments are sent at most.
const MOST_MISSED: usize = 1_000;

/// When the jobs of a schedule are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum When {
    Every { interval: Duration },
    Cron { cron: String, zone: String },
}

impl When {
    /// The first moment after another one, of a schedule that was first seen at `since`.
    fn next(&self, since: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every { interval } => next_of_interval(since, *interval, after),
            Self::Cron { cron, zone: name } => {
                cron.parse::<Cron>().ok()?.next(after, &zone(name).ok()?)
            }
        }
    }
}

/// The call of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) job: String,
    /// Arguments that cannot be written as JSON are an error of each sending.
    args: Result<Value, String>,
    kwargs: Result<Value, String>,
    queue: Option<String>,
    expires: Option<Duration>,
    limits: [Option<Duration>; 2],
    max_retries: Option<u32>,
    priority: u8,
    ignore_result: bool,
    #[serde(default)]
    headers: Map<String, Value>,
    /// The countdown of each job, or the time before which none runs.
    #[serde(default)]
    not_before: signature::When,
    #[serde(default)]
    unique: Option<UniqueTask>,
}

/// The lock of a unique job: for the same key each time, since the arguments are the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct UniqueTask {
    key: String,
    length: Duration,
    until: UntilWhen,
}

impl Task {
    pub(crate) fn of(signature: Signature) -> Self {
        let value = |text: Result<String, String>| {
            serde_json::from_str(&text?).map_err(|error| error.to_string())
        };
        let unique = signature.unique_key();
        Self {
            unique: unique.map(|(Unique { length, until, .. }, key)| UniqueTask {
                key,
                length,
                until,
            }),
            job: signature.name,
            args: value(signature.args),
            kwargs: value(signature.kwargs),
            queue: signature.queue,
            expires: signature.expires,
            limits: signature.limits,
            max_retries: signature.max_retries,
            priority: signature.priority,
            ignore_result: signature.ignore_result,
            headers: signature.headers,
            not_before: signature.when,
        }
    }

    pub(crate) fn signature(&self, id: Option<String>) -> Signature {
        let text = |value: &Result<Value, String>| value.clone().map(|value| value.to_string());
        let unique = self.unique.as_ref().map(|UniqueTask { key, length, until }| {
            (Unique::new(*length).until(*until), Some(key.clone()))
        });
        Signature {
            unique,
            kwargs: text(&self.kwargs),
            queue: self.queue.clone(),
            expires: self.expires,
            limits: self.limits,
            max_retries: self.max_retries,
            priority: self.priority,
            ignore_result: self.ignore_result,
            headers: self.headers.clone(),
            when: self.not_before,
            id,
            ..Signature::new(self.job.clone(), text(&self.args))
        }
    }
}

/// One schedule in the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    when: When,
    missed: Missed,
    task: Task,
    /// Whether the schedule was added at run time, and not by the program.
    is_added: bool,
    is_paused: bool,
    /// When a leader first saw the schedule.
    since: Timestamp,
    /// The last moment that was sent or skipped.
    last: Timestamp,
    /// When a job was last sent.
    sent: Option<Timestamp>,
    missed_count: u64,
}

impl Entry {
    fn next(&self) -> Option<Timestamp> {
        self.when.next(self.since, self.last)
    }
}

/// The state of all schedules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) version: u64,
    entries: BTreeMap<String, Entry>,
}

/// A job that is due.
#[derive(Debug, PartialEq)]
pub(crate) struct DueJob {
    pub(crate) name: String,
    pub(crate) moment: Timestamp,
    pub(crate) task: Task,
    /// How many missed moments this job stands for.
    missed: u64,
}

impl DueJob {
    /// The id of the job: the same for all that send it for this moment.
    pub(crate) fn id(&self) -> String {
        format!("{}@{}", self.name, self.moment)
    }
}

impl State {
    /// Takes over what another message has. Of two states of one version, this one counts: it may
    /// have changed since it was written.
    pub(crate) fn merge(&mut self, other: Self) {
        let (old, mut new) = match other.version > self.version {
            true => (std::mem::take(self), other),
            false => (other, std::mem::take(self)),
        };
        for (name, entry) in &mut new.entries {
            if let Some(old) = old.entries.get(name) {
                entry.last = entry.last.max(old.last);
                entry.sent = entry.sent.max(old.sent);
            }
        }
        *self = new;
    }

    /// Has exactly these schedules of the program, beside those that were added at run time.
    pub(crate) fn set_program(&mut self, schedules: &[Schedule], now: Timestamp) {
        let names: Vec<&str> = schedules.iter().map(|schedule| &*schedule.name).collect();
        self.entries.retain(|name, entry| {
            let stays = entry.is_added || names.contains(&&**name);
            if !stays {
                tracing::warn!(
                    schedule = name,
                    "this program does not have the schedule, which is removed: programs that have schedules of their \
                     own need default queues of their own"
                );
            }
            stays
        });
        for schedule in schedules {
            self.put(schedule.clone(), false, now);
        }
    }

    /// Adds a schedule, or changes the one of its name, which goes on from its last moment.
    pub(crate) fn put(&mut self, schedule: Schedule, is_added: bool, now: Timestamp) {
        let Schedule { name, when, missed, task } = schedule;
        match self.entries.get_mut(&name) {
            Some(entry) => {
                (entry.when, entry.missed, entry.task) = (when, missed, task);
                entry.is_added = is_added;
            }
            None => {
                let entry = Entry {
                    when,
                    missed,
                    task,
                    is_added,
                    is_paused: false,
                    since: now,
                    last: now,
                    sent: None,
                    missed_count: 0,
                };
                self.entries.insert(name, entry);
            }
        }
    }

    /// Removes a schedule that was added at run time.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), String> {
        match self.entries.get(name) {
            None => Err(unknown(name)),
            Some(entry) if !entry.is_added => Err(format!(
                "schedule `{name}` is of the program, which would add it again: pause it instead"
            )),
            Some(_) => {
                self.entries.remove(name);
                Ok(())
            }
        }
    }

    /// Pauses a schedule, or has it go on: from now, without the moments that have passed.
    pub(crate) fn pause(
        &mut self,
        name: &str,
        is_paused: bool,
        now: Timestamp,
    ) -> Result<(), String> {
        let entry = self.entries.get_mut(name).ok_or_else(|| unknown(name))?;
        if entry.is_paused && !is_paused {
            entry.last = entry.last.max(now);
        }
        entry.is_paused = is_paused;
        Ok(())
    }

    pub(crate) fn task(&self, name: &str) -> Result<&Task, String> {
        self.entries.get(name).map(|entry| &entry.task).ok_or_else(|| unknown(name))
    }

    /// The jobs to be sent now. The moments that are skipped count as sent.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<DueJob> {
        let mut due = Vec::new();
        for (name, entry) in &mut self.entries {
            if entry.is_paused {
                continue;
            }
            entry.set_back(now);
            let moments = entry.passed(now);
            let Some(last) = moments.last().copied() else { continue };
            let age = now.duration_since(last);
            let is_late = age > jiff::SignedDuration::try_from(TOLERANCE).unwrap_or_default();
            let sent = match entry.missed {
                Missed::RunAll => MOST_MISSED.min(moments.len()),
                Missed::Skip if is_late => 0,
                Missed::RunOnce | Missed::Skip => 1,
            };
            let missed = moments.len() as u64 - u64::from(!is_late);
            if missed > 0 {
                tracing::warn!(schedule = name, missed, sent, "a schedule has missed moments");
            }
            if sent == 0 {
                entry.last = last;
                entry.missed_count += missed;
            }
            let (skipped, sent) = moments.split_at(moments.len() - sent);
            due.extend(sent.iter().enumerate().map(|(place, moment)| DueJob {
                name: name.clone(),
                moment: *moment,
                task: entry.task.clone(),
                // Counted when the job is sent: until then the moments stay due.
                missed: if place == 0 { skipped.len() as u64 } else { 0 }
                    + u64::from(is_late || *moment != last),
            }));
        }
        due
    }

    /// The moment of a job is over, and the job was sent or could not be.
    pub(crate) fn passed(&mut self, due: &DueJob, was_sent: bool, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&due.name) {
            entry.last = entry.last.max(due.moment);
            if was_sent {
                entry.sent = Some(now);
            }
            entry.missed_count += due.missed;
        }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Option<SystemTime> {
        let running = self.entries.values().filter(|entry| !entry.is_paused);
        running.filter_map(Entry::next).min().map(Into::into)
    }

    pub(crate) fn list(&self) -> Vec<ScheduleInfo> {
        let entries = self.entries.iter();
        entries.map(|(name, entry)| ScheduleInfo::of(name, entry)).collect()
    }
}

impl Entry {
    /// Counts an interval anew if the clock was set back: it would not end for as long.
    fn set_back(&mut self, now: Timestamp) {
        let When::Every { interval } = self.when else { return };
        let ahead = |next: Timestamp| next.as_nanosecond() - now.as_nanosecond();
        if self.next().is_some_and(|next| ahead(next) > interval.as_nanos() as i128) {
            (self.since, self.last) = (now, now);
        }
    }

    /// The moments since the last one. If these are more than [`MOST_MISSED`], only the last of
    /// them, about so many: a schedule that was away for years is not walked through.
    fn passed(&self, now: Timestamp) -> Vec<Timestamp> {
        let mut moments = Vec::new();
        let mut at = self.last;
        while let Some(moment) = self.when.next(self.since, at).filter(|moment| *moment <= now) {
            at = moment;
            moments.push(moment);
            if moments.len() == MOST_MISSED {
                let span = at.duration_since(self.last);
                let later = now.checked_sub(span).unwrap_or(at);
                if later > at {
                    moments.clear();
                    at = later;
                }
            }
        }
        moments
    }
}

fn unknown(name: &str) -> String {
    format!("there is no schedule `{name}`")
}

/// A schedule, as it is listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// The name.
    pub name: String,
    /// When jobs are sent, such as `every 10s` or `0 7 * * MON-FRI (Europe/Berlin)`.
    pub when: String,
    /// The name of the job.
    pub job: String,
    /// The arguments, as JSON.
    pub args: Value,
    /// What becomes of missed moments.
    pub missed: Missed,
    /// Whether the schedule was added at run time, and may be removed.
    pub is_added: bool,
    /// Whether the schedule is paused.
    pub is_paused: bool,
    /// When a job was last sent.
    pub last: Option<SystemTime>,
    /// When the next job is due; `None` while the schedule is paused.
    pub next: Option<SystemTime>,
    /// How many moments were missed so far.
    pub missed_count: u64,
}

impl ScheduleInfo {
    fn of(name: &str, entry: &Entry) -> Self {
        Self {
            name: name.to_owned(),
            when: match &entry.when {
                When::Every { interval } => format!("every {interval:?}"),
                When::Cron { cron, zone } => format!("{cron} ({zone})"),
            },
            job: entry.task.job.clone(),
            args: entry.task.args.clone().unwrap_or_default(),
            missed: entry.missed,
            is_added: entry.is_added,
            is_paused: entry.is_paused,
            last: entry.sent.map(Into::into),
            next: entry.next().filter(|_| !entry.is_paused).map(Into::into),
            missed_count: entry.missed_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::call::Call;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn every(seconds: u64, missed: Missed) -> Schedule {
        let call = Call::<()>::named("job", ());
        Schedule::every(Duration::from_secs(seconds), call).missed(missed)
    }

    fn state(schedule: Schedule) -> State {
        let mut state = State::default();
        state.set_program(&[schedule], at(1_000));
        state
    }

    /// The moments that are sent at that time.
    fn sent(state: &mut State, now: Timestamp) -> Vec<i64> {
        let due = state.due(now);
        due.iter().for_each(|due| state.passed(due, true, now));
        due.iter().map(|due| due.moment.as_second()).collect()
    }

    #[test]
    fn a_moment_is_sent_once() {
        let mut state = state(every(10, Missed::RunAll));
        assert!(sent(&mut state, at(1_009)).is_empty());
        assert_eq!(sent(&mut state, at(1_010)), [1_010]);
        assert!(sent(&mut state, at(1_019)).is_empty());
        assert_eq!(sent(&mut state, at(1_040)), [1_020, 1_030, 1_040]);
        assert_eq!(state.list()[0].next, Some(at(1_050).into()));
    }

    #[test]
    fn a_moment_that_was_not_sent_stays_due() {
        let mut state = state(every(10, Missed::RunOnce));
        assert_eq!(state.due(at(1_010)), state.due(at(1_010)));
        assert_eq!(sent(&mut state, at(1_010)), [1_010]);
    }

    #[test]
    fn a_moment_is_missed_once() {
        let mut state = state(every(10, Missed::RunAll));
        // Two leaders find them due, and the second one sends them.
        assert_eq!(state.due(at(1_100)).len(), 10);
        assert_eq!(sent(&mut state, at(1_100)).len(), 10);
        assert_eq!(state.list()[0].missed_count, 9);
        let mut state = self::state(every(10, Missed::RunOnce));
        state.due(at(1_195));
        assert_eq!(sent(&mut state, at(1_195)), [1_190]);
        assert_eq!(state.list()[0].missed_count, 18);
        let mut state = self::state(every(100, Missed::Skip));
        assert!(sent(&mut state, at(1_195)).is_empty());
        assert_eq!(state.list()[0].missed_count, 1);
    }

    #[test]
    fn a_clock_set_back_sends_nothing_twice() {
        let mut interval = state(every(10, Missed::RunAll));
        assert_eq!(sent(&mut interval, at(1_010)), [1_010]);
        // To a time after the last moment: the next one stays.
        assert!(sent(&mut interval, at(1_018)).is_empty());
        assert!(sent(&mut interval, at(1_011)).is_empty());
        assert_eq!(interval.list()[0].next, Some(at(1_020).into()));
        // To a time before it: the interval is counted from then on.
        assert!(sent(&mut interval, at(500)).is_empty());
        assert_eq!(sent(&mut interval, at(510)), [510]);
        let call = Call::<()>::named("job", ());
        let mut calendar = state(Schedule::cron("* * * * *", "UTC", call).unwrap());
        assert_eq!(sent(&mut calendar, at(1_020)), [1_020]);
        assert!(sent(&mut calendar, at(600)).is_empty());
        assert!(sent(&mut calendar, at(1_079)).is_empty());
        assert_eq!(sent(&mut calendar, at(1_080)), [1_080]);
    }

    #[test]
    fn a_schedule_away_for_years_sends_a_thousand_at_most() {
        let year = 365 * 24 * 3_600;
        for missed in [Missed::Skip, Missed::RunOnce, Missed::RunAll] {
            let mut state = state(every(1, missed));
            let moments = sent(&mut state, at(1_000 + year));
            let count = match missed {
                Missed::RunAll => MOST_MISSED,
                _ => 1,
            };
            let last = 1_001 + year;
            let expected: Vec<_> = (last - count as i64..last).collect();
            assert_eq!(moments, expected, "{missed:?}");
            assert!(state.list()[0].missed_count >= MOST_MISSED as u64 - 1);
        }
    }

    #[test]
    fn the_later_version_counts_and_the_later_moment() {
        let mut older = state(every(10, Missed::RunAll));
        (older.version, _) = (1, sent(&mut older, at(1_030)));
        let mut newer = state(every(10, Missed::RunAll));
        newer.version = 2;
        newer.pause("job", true, at(1_000)).unwrap();
        for [mut one, other] in [[older.clone(), newer.clone()], [newer, older]] {
            one.merge(other);
            assert_eq!((one.version, one.list()[0].is_paused), (2, true));
            one.entries.get_mut("job").unwrap().is_paused = false;
            assert_eq!(sent(&mut one, at(1_040)), [1_040]);
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let mut state = state(every(10, Missed::Skip));
        let call = Call::<()>::named("other", (1, "a")).expires(Duration::from_secs(5));
        state.put(Schedule::cron("0 7 * * MON", "UTC", call).unwrap(), true, at(2_000));
        sent(&mut state, at(1_010));
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    }
}
