//! The jobs that workers tell of: by their events the last ones one by one, and figures for each
//! second; and the runs of each job since a worker began.
//!
//! Workers of this library count the runs of their jobs themselves. Those of Celery do not tell the
//! times and outcomes, so their events are counted, which come while a page is open.
//!
//! Events may be lost, come twice, and come late; texts in them are of any length. A [`History`] is
//! bounded in each of its parts, and the oldest goes first.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pikake::jobs::{ControlEvent, EndedRuns};
use serde::Serialize;
use serde_json::Value;

/// How many jobs are kept.
const MOST_JOBS: usize = 10_000;
/// How many seconds have figures.
const SECONDS: usize = 300;
/// How many names of jobs have figures, those of each Celery worker apart.
const MOST_NAMES: usize = 1_000;
/// How many workers' own counts are kept, with those of workers that have ended.
const MOST_WORKERS: usize = 1_000;
/// How many bytes of a text are kept.
const LONGEST_TEXT: usize = 2_048;
/// Classes of lengths of time: class `n` has those below 2^n microseconds, the last one all others.
const CLASSES: usize = 32;

/// A job as its events have told of it. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct SeenJob {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) worker: String,
    /// `received`, `started`, `succeeded`, `failed`, `retried`, `revoked` or `rejected`.
    pub(crate) state: String,
    pub(crate) retries: u64,
    pub(crate) received: Option<f64>,
    pub(crate) started: Option<f64>,
    pub(crate) ended: Option<f64>,
    /// How long the last run took, in seconds.
    pub(crate) runtime: Option<f64>,
    /// The value, or why the job failed.
    pub(crate) result: Option<String>,
    pub(crate) traceback: Option<String>,
}

/// The figures of a second, or of a name.
#[derive(Debug, Clone, Default, PartialEq)]
struct Figures {
    succeeded: u64,
    failed: u64,
    retried: u64,
    revoked: u64,
    runtimes: Runtimes,
}

/// Run times by class.
#[derive(Debug, Clone, Default, PartialEq)]
struct Runtimes {
    counts: [u32; CLASSES],
    longest: f64,
}

impl Runtimes {
    fn note(&mut self, seconds: f64) {
        let micros = (seconds.max(0.0) * 1e6) as u64;
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        let count = &mut self.counts[class.min(CLASSES - 1)];
        *count = count.saturating_add(1);
        self.longest = self.longest.max(seconds);
    }

    /// Adds what a worker has counted in the same classes.
    fn add(&mut self, counts: &[u64], longest: f64) {
        for (class, more) in counts.iter().enumerate() {
            let count = &mut self.counts[class.min(CLASSES - 1)];
            *count = count.saturating_add(u32::try_from(*more).unwrap_or(u32::MAX));
        }
        self.longest = self.longest.max(longest);
    }

    /// An upper bound in seconds of the share's run times, at most twice too high; `None` if there
    /// were none.
    fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let rank = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        let class = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            *count > 0 && seen >= rank
        })?;
        let bound = (1_u64 << class) as f64 / 1e6;
        Some(bound.min(self.longest))
    }
}

/// The figures of a second for the page.
#[derive(Debug, Serialize)]
pub(crate) struct Second {
    at: u64,
    succeeded: u64,
    failed: u64,
    retried: u64,
    p50: Option<f64>,
    p99: Option<f64>,
}

/// The figures of a job's name for the page.
#[derive(Debug, Serialize)]
pub(crate) struct OfName {
    name: String,
    succeeded: u64,
    failed: u64,
    retried: u64,
    revoked: u64,
    p50: Option<f64>,
    p99: Option<f64>,
    longest: f64,
}

/// Which jobs are wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Filter {
    /// A state; empty: all.
    pub(crate) state: String,
    /// A text in the id, the name, the arguments, the worker or the result; empty: all.
    pub(crate) text: String,
}

/// What events have told.
#[derive(Debug, Default)]
pub(crate) struct History {
    jobs: HashMap<String, SeenJob>,
    /// The ids of `jobs`, the oldest first.
    order: VecDeque<String>,
    /// By the second of the event.
    seconds: BTreeMap<u64, Figures>,
    /// By the worker and the name of the job, from events.
    names: BTreeMap<(String, String), Figures>,
    /// The own counts of workers, by worker.
    counted: BTreeMap<String, OwnCounts>,
}

/// The runs that a worker has counted, by the job's name.
type OwnCounts = BTreeMap<String, EndedRuns>;

impl History {
    /// Takes in what workers have counted. The counts of workers that have ended stay.
    pub(crate) fn set_counts(&mut self, counts: Vec<(String, OwnCounts)>) {
        if self.counted.len() + counts.len() > MOST_WORKERS {
            self.counted.clear();
        }
        self.counted.extend(counts);
    }

    /// Takes in an event. `now` is the time here, which a worker's clock need not have.
    pub(crate) fn add(&mut self, event: &ControlEvent, now: f64) {
        let Some(state) = event.kind.strip_prefix("task-") else { return };
        let Some(id) = event.job.as_deref().filter(|id| id.len() <= LONGEST_TEXT) else { return };
        let text = |name: &str| event.fields.get(name).map(text_of);
        let number = |name: &str| event.fields.get(name).and_then(Value::as_f64);
        let job = self.job(id);
        let is_late = job.ended.is_some()
            && matches!(state, "received" | "started" | "sent")
            && job.ended.is_some_and(|ended| event.at <= ended);
        // The sender of a job is no worker.
        if state != "sent" {
            job.worker = shortened(&event.worker);
        }
        for (kept, name) in [(&mut job.name, "name"), (&mut job.arguments, "args")] {
            if let Some(told) = text(name) {
                *kept = told;
            }
        }
        if let Some(kwargs) = text("kwargs").filter(|kwargs| kwargs != "{}" && !kwargs.is_empty()) {
            job.arguments = shortened(&format!("{} {kwargs}", job.arguments));
        }
        if let Some(retries) = event.fields.get("retries").and_then(Value::as_u64) {
            job.retries = retries;
        }
        match state {
            "received" => job.received = Some(event.at),
            "started" => job.started = Some(event.at),
            _ => {}
        }
        if is_late || state == "sent" {
            return;
        }
        job.state = shortened(state);
        if matches!(state, "received" | "started") {
            job.ended = None;
            return;
        }
        job.ended = Some(event.at);
        job.result = text("result").or_else(|| text("exception"));
        job.traceback = text("traceback");
        let runtime = number("runtime").or_else(|| Some(event.at - job.started?));
        job.runtime = runtime.filter(|runtime| runtime.is_finite() && *runtime >= 0.0);
        let (name, runtime) = ((job.worker.clone(), job.name.clone()), job.runtime);
        self.count(name, state, runtime, now);
    }

    fn job(&mut self, id: &str) -> &mut SeenJob {
        if !self.jobs.contains_key(id) {
            if self.order.len() == MOST_JOBS
                && let Some(oldest) = self.order.pop_front()
            {
                self.jobs.remove(&oldest);
            }
            self.order.push_back(id.to_owned());
        }
        self.jobs
            .entry(id.to_owned())
            .or_insert_with(|| SeenJob { id: id.to_owned(), ..SeenJob::default() })
    }

    fn count(&mut self, name: (String, String), state: &str, runtime: Option<f64>, now: f64) {
        let second = now as u64;
        let has_room = self.names.len() < MOST_NAMES || self.names.contains_key(&name);
        // Without a name, an event was lost.
        let of_name = match has_room && !name.1.is_empty() {
            true => Some(self.names.entry(name).or_default()),
            false => None,
        };
        let of_second = self.seconds.entry(second).or_default();
        for figures in [Some(of_second), of_name].into_iter().flatten() {
            match state {
                "succeeded" => figures.succeeded += 1,
                "failed" | "rejected" => figures.failed += 1,
                "retried" => figures.retried += 1,
                "revoked" => figures.revoked += 1,
                _ => {}
            }
            if let Some(runtime) = runtime {
                figures.runtimes.note(runtime);
            }
        }
        let first = second.saturating_sub(SECONDS as u64);
        self.seconds = self.seconds.split_off(&first);
    }

    /// The figures of the last seconds, without those in which no job ended.
    pub(crate) fn seconds(&self) -> Vec<Second> {
        let of_second = |(at, figures): (&u64, &Figures)| Second {
            at: *at,
            succeeded: figures.succeeded,
            failed: figures.failed,
            retried: figures.retried,
            p50: figures.runtimes.quantile(0.5),
            p99: figures.runtimes.quantile(0.99),
        };
        self.seconds.iter().map(of_second).collect()
    }

    pub(crate) fn names(&self) -> Vec<OfName> {
        let mut names = BTreeMap::<&str, Figures>::new();
        for ((worker, name), figures) in &self.names {
            if !self.counted.contains_key(worker) {
                let sum = names.entry(name).or_default();
                let run_times = figures.runtimes.counts.map(u64::from);
                sum.succeeded += figures.succeeded;
                sum.failed += figures.failed;
                sum.retried += figures.retried;
                sum.revoked += figures.revoked;
                sum.runtimes.add(&run_times, figures.runtimes.longest);
            }
        }
        for (name, runs) in self.counted.values().flatten() {
            let sum = names.entry(name).or_default();
            sum.succeeded = sum.succeeded.saturating_add(runs.succeeded);
            sum.failed = sum.failed.saturating_add(runs.failed);
            sum.retried = sum.retried.saturating_add(runs.retried);
            sum.revoked = sum.revoked.saturating_add(runs.revoked);
            sum.runtimes.add(&runs.run_times, runs.longest);
        }
        let of_name = |(name, figures): (&str, Figures)| OfName {
            name: shortened(name),
            succeeded: figures.succeeded,
            failed: figures.failed,
            retried: figures.retried,
            revoked: figures.revoked,
            p50: figures.runtimes.quantile(0.5),
            p99: figures.runtimes.quantile(0.99),
            longest: figures.runtimes.longest,
        };
        names.into_iter().take(MOST_NAMES).map(of_name).collect()
    }

    pub(crate) fn find(&self, id: &str) -> Option<&SeenJob> {
        self.jobs.get(id)
    }

    /// The newest jobs that the filter admits, `limit` at most, and how many it admits in all.
    pub(crate) fn filtered(&self, filter: &Filter, limit: usize) -> (Vec<&SeenJob>, usize) {
        let mut count = 0;
        let mut found = Vec::new();
        for job in self.order.iter().rev().filter_map(|id| self.jobs.get(id)) {
            if filter.admits(job) {
                count += 1;
                if found.len() < limit {
                    found.push(job);
                }
            }
        }
        (found, count)
    }
}

impl Filter {
    fn admits(&self, job: &SeenJob) -> bool {
        let result = job.result.as_deref().unwrap_or_default();
        let texts = [&*job.id, &*job.name, &*job.arguments, &*job.worker, result];
        (self.state.is_empty() || self.state == job.state)
            && (self.text.is_empty() || texts.iter().any(|text| text.contains(&self.text)))
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text),
        Value::Null => String::new(),
        value => shortened(&value.to_string()),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().find(|(at, letter)| at + letter.len_utf8() > LONGEST_TEXT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use pikake::jobs::ControlEvent;
    use serde_json::{Map, json};

    use super::*;

    fn add(history: &mut History, kind: &str, id: &str, at: f64, fields: Value) {
        let fields = fields.as_object().cloned().unwrap_or_else(Map::new);
        let event = ControlEvent::new(kind, "one@pk", Some(id.to_owned()), at, fields);
        history.add(&event, at);
    }

    fn run(history: &mut History, id: &str, at: f64, runtime: f64) {
        let name = json!({"name": "add", "args": "(1, 2)", "kwargs": "{}"});
        add(history, "task-received", id, at, name);
        add(history, "task-started", id, at, Value::Null);
        let end = json!({"result": "3", "runtime": runtime});
        add(history, "task-succeeded", id, at + runtime, end);
    }

    #[test]
    fn events_make_a_job() {
        let mut history = History::default();
        run(&mut history, "a", 10.0, 0.5);
        let job = history.find("a").unwrap();
        assert_eq!((&*job.name, &*job.arguments, &*job.state), ("add", "(1, 2)", "succeeded"));
        assert_eq!((job.started, job.ended, job.runtime), (Some(10.0), Some(10.5), Some(0.5)));
        assert_eq!(job.result.as_deref(), Some("3"));
        // An event that comes late changes no state.
        add(&mut history, "task-started", "a", 10.0, Value::Null);
        assert_eq!(history.find("a").unwrap().state, "succeeded");
        // A second run does.
        add(&mut history, "task-started", "a", 20.0, Value::Null);
        assert_eq!(history.find("a").unwrap().state, "started");
        // Events of workers are none of jobs.
        add(&mut history, "worker-heartbeat", "b", 20.0, Value::Null);
        assert_eq!(history.find("b"), None);
    }

    #[test]
    fn history_is_bounded() {
        let mut history = History::default();
        for number in 0..MOST_JOBS + 10 {
            run(&mut history, &number.to_string(), number as f64, 0.001);
        }
        let (newest, count) = history.filtered(&Filter::default(), 2);
        let ids: Vec<_> = newest.iter().map(|job| &*job.id).collect();
        assert_eq!((ids, count), (vec!["10009", "10008"], MOST_JOBS));
        assert_eq!(history.find("9"), None);
        assert!(history.seconds().len() <= SECONDS + 1);
        let long = json!({ "name": "ä".repeat(10 * LONGEST_TEXT) });
        add(&mut history, "task-received", "long", 1.0, long);
        assert!(history.find("long").unwrap().name.len() <= LONGEST_TEXT + "…".len());
        for number in 0..2 * MOST_NAMES {
            let end = json!({ "name": number.to_string() });
            add(&mut history, "task-failed", &format!("n{number}"), 1.0, end);
        }
        assert_eq!(history.names().len(), MOST_NAMES);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut runtimes = Runtimes::default();
        assert_eq!(runtimes.quantile(0.5), None);
        for _ in 0..99 {
            runtimes.note(0.001);
        }
        runtimes.note(60.0);
        assert_eq!(runtimes.quantile(0.5), Some(0.001_024));
        assert_eq!(runtimes.quantile(1.0), Some(60.0));
        runtimes.note(f64::INFINITY);
        assert_eq!(runtimes.counts[CLASSES - 1], 1);
    }

    #[test]
    fn own_counts_of_a_worker_replace_its_events() {
        let mut history = History::default();
        run(&mut history, "a", 10.0, 0.5);
        let names = |history: &History| {
            let names = history.names().into_iter();
            let of_name = |it: OfName| (it.name, it.succeeded, it.failed, it.p50, it.longest);
            names.map(of_name).collect::<Vec<_>>()
        };
        assert_eq!(names(&history), [("add".to_owned(), 1, 0, Some(0.5), 0.5)]);
        let counts = |runs: Value| serde_json::from_value::<OwnCounts>(runs).unwrap();
        // 36 runs of 1 to 2 ms, the longest of 1.5 ms.
        let mut run_times = vec![0; 11];
        run_times.push(36);
        let runs = json!({"succeeded": 30, "failed": 6, "run_times": run_times, "longest": 0.0015});
        let one = counts(json!({ "add": runs }));
        history.set_counts(vec![("one@pk".to_owned(), one)]);
        assert_eq!(names(&history), [("add".to_owned(), 30, 6, Some(0.0015), 0.0015)]);
        // Another worker is added, and a field of a later version is no error.
        let other = counts(json!({"add": {"succeeded": 2, "new": 1}, "sum": {"failed": 1}}));
        history.set_counts(vec![("two@pk".to_owned(), other)]);
        let sum = ("sum".to_owned(), 0, 1, None, 0.0);
        assert_eq!(names(&history), [("add".to_owned(), 32, 6, Some(0.0015), 0.0015), sum]);
    }

    #[test]
    fn filters_admit_states_and_texts() {
        let mut history = History::default();
        run(&mut history, "a", 10.0, 0.5);
        add(&mut history, "task-failed", "b", 11.0, json!({"name": "pay", "exception": "no luck"}));
        let count = |state: &str, text: &str| {
            let filter = Filter { state: state.to_owned(), text: text.to_owned() };
            history.filtered(&filter, 0).1
        };
        let counts = [count("", ""), count("failed", ""), count("", "luck"), count("failed", "3")];
        assert_eq!(counts, [2, 1, 1, 0]);
    }
}
