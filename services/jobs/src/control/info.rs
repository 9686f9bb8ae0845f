//! What workers tell of themselves and their jobs, read from Celery's form.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::control::command::seconds;
use crate::wire::reason::cut;

/// How many bytes of a job's arguments are shown.
const LONGEST_ARGUMENTS: usize = 1_024;

/// A worker. Times are serialized as seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The name.
    pub name: String,
    /// When the worker began; `None` if it has not answered.
    #[serde(serialize_with = "maybe_seconds")]
    pub since: Option<SystemTime>,
    /// When the worker last sent a heartbeat, or else answered.
    #[serde(serialize_with = "as_seconds")]
    pub heartbeat: SystemTime,
    /// How many jobs run at a time at most; `None` if the worker has not answered.
    pub concurrency: Option<u64>,
    /// How many jobs run.
    pub running: u64,
    /// How many runs of jobs have ended since the worker began.
    pub processed: u64,
    /// The process.
    pub pid: Option<u64>,
    /// The queues that the worker takes messages from, paused ones included.
    pub queues: Vec<String>,
    /// The paused queues that the worker knows.
    pub paused: Vec<String>,
    /// The runs of each job that have ended since the worker began, by the job's name; `None` if
    /// the worker does not say, as Celery's.
    pub jobs: Option<BTreeMap<String, EndedRuns>>,
}

impl WorkerInfo {
    pub(crate) fn unanswered(name: &str, at: SystemTime, running: u64, processed: u64) -> Self {
        Self {
            name: name.to_owned(),
            since: None,
            heartbeat: at,
            concurrency: None,
            running,
            processed,
            pid: None,
            queues: Vec::new(),
            paused: Vec::new(),
            jobs: None,
        }
    }

    pub(crate) fn set_answers(
        &mut self,
        stats: &Value,
        active: &Value,
        queues: &Value,
        now: SystemTime,
    ) {
        let uptime = stats["uptime"].as_u64().map(Duration::from_secs);
        self.since = uptime.and_then(|uptime| now.checked_sub(uptime));
        self.concurrency = stats["pool"]["max-concurrency"].as_u64();
        self.pid = stats["pid"].as_u64();
        if let Some(total) = stats["total"].as_object() {
            let counts = total.values().filter_map(Value::as_u64);
            self.processed = counts.fold(0, u64::saturating_add);
        }
        if let Some(active) = active.as_array() {
            self.running = active.len() as u64;
        }
        let named = |queue: &Value| queue["name"].as_str().map(str::to_owned);
        self.queues = queues.as_array().into_iter().flatten().filter_map(named).collect();
        let paused = stats["paused"].as_array().into_iter().flatten();
        self.paused = paused.filter_map(Value::as_str).map(str::to_owned).collect();
        self.jobs = BTreeMap::deserialize(&stats["jobs"]).ok();
    }
}

/// The runs of a job that have ended since its worker began.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EndedRuns {
    /// Runs that returned a value.
    pub succeeded: u64,
    /// Runs that failed for good, and messages that were moved to the dead.
    pub failed: u64,
    /// Runs that failed and are retried.
    pub retried: u64,
    /// Jobs that were cancelled or had expired.
    pub revoked: u64,
    /// The number of run times of each length: element `n` counts those of less than 2^n
    /// microseconds, and of at least half of that. Zeros at the end are left out.
    pub run_times: Vec<u64>,
    /// The longest run time in seconds.
    pub longest: f64,
}

/// The state of a job that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum JobState {
    /// The job runs.
    Running,
    /// The job waits for the end of another one.
    Reserved,
    /// The job waits for its time.
    Scheduled,
}

impl JobState {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "active" => Self::Running,
            "scheduled" => Self::Scheduled,
            _ => Self::Reserved,
        }
    }
}

/// A job that a worker holds. Times are serialized as seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id.
    pub id: String,
    /// The job's name.
    pub name: String,
    /// The arguments, for people: `1, "x", times=2`, truncated.
    pub arguments: String,
    /// The queue of the message.
    pub queue: String,
    /// The worker that holds the job.
    pub worker: String,
    /// The state.
    pub state: JobState,
    /// When the job began, or when its time comes.
    #[serde(serialize_with = "maybe_seconds")]
    pub since: Option<SystemTime>,
    /// What the job has last told of its [progress](crate::CurrentJob::progress). A long value is a
    /// text, truncated.
    pub progress: Option<Value>,
}

impl JobInfo {
    /// Reads an element of a worker's list; `None` if it is no job.
    pub(crate) fn read(worker: &str, state: JobState, told: &Value) -> Option<Self> {
        let (job, eta) = match told.get("request") {
            Some(job) => (job, told["eta"].as_str().and_then(crate::wire::instant::read)),
            None => (told, None),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let begun = job["time_start"].as_f64().and_then(|at| Duration::try_from_secs_f64(at).ok());
        let begun = begun.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at));
        Some(Self {
            id: job["id"].as_str()?.to_owned(),
            name: text(&job["name"]),
            arguments: arguments(&job["args"], &job["kwargs"]),
            queue: text(&job["delivery_info"]["routing_key"]),
            worker: worker.to_owned(),
            state,
            since: eta.or(begun),
            progress: job.get("progress").filter(|progress| !progress.is_null()).cloned(),
        })
    }
}

/// The arguments of a job for people.
fn arguments(args: &Value, kwargs: &Value) -> String {
    let mut parts = Vec::new();
    match args {
        Value::Array(args) => parts.extend(args.iter().map(Value::to_string)),
        Value::String(text) => parts.push(text.clone()),
        _ => {}
    }
    match kwargs {
        Value::Object(kwargs) => {
            parts.extend(kwargs.iter().map(|(name, value)| format!("{name}={value}")));
        }
        Value::String(text) if text != "{}" => parts.push(text.clone()),
        _ => {}
    }
    let mut text = parts.join(", ");
    if text.len() > LONGEST_ARGUMENTS {
        text.truncate(cut(&text, LONGEST_ARGUMENTS).len());
        text.push('…');
    }
    text
}

/// The answer of a worker to a command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Answer {
    /// The worker's name.
    pub worker: String,
    /// What the worker says, mostly `{"ok": text}`; or the text of its error.
    pub result: Result<Value, String>,
}

/// An event of a worker or a job, as Celery's workers and those of this library send it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ControlEvent {
    /// The kind: `worker-heartbeat`, `task-started`.
    pub kind: String,
    /// The worker.
    pub worker: String,
    /// The job's id, if it is an event of a job.
    pub job: Option<String>,
    /// When it happened, by the worker's clock, in seconds since 1970.
    pub at: f64,
    /// The other fields: `name`, `args`, `result`, `exception`, `runtime`.
    pub fields: Map<String, Value>,
}

impl ControlEvent {
    /// An event, for tests of programs.
    pub fn new(
        kind: impl Into<String>,
        worker: impl Into<String>,
        job: Option<String>,
        at: f64,
        fields: Map<String, Value>,
    ) -> Self {
        Self { kind: kind.into(), worker: worker.into(), job, at, fields }
    }

    pub(crate) fn read(event: Value) -> Option<Self> {
        let Value::Object(mut fields) = event else { return None };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let (kind, worker, job) = (text("type")?, text("hostname")?, text("uuid"));
        let at = fields.remove("timestamp").and_then(|at| at.as_f64()).unwrap_or(0.0);
        Some(Self { kind, worker, job, at, fields })
    }
}

fn as_seconds<S: Serializer>(moment: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(seconds(*moment))
}

fn maybe_seconds<S: Serializer>(
    moment: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    moment.map(seconds).serialize(serializer)
}
