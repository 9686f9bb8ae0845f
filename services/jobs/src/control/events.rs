//! The events of a worker, in Celery's form: its own go one at a time, those of its jobs in lists.
//!
//! Events of jobs are made only while somebody has asked for them. They are written as JSON at
//! once, into a buffer that the worker's control task sends: a job never waits for its events.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use pikake_sync::Event;
use pikake_traps::wall_time;
use serde::Serialize;
use serde_json::Value;

use crate::broker::bus::{Notice, Topic};
use crate::message::{Message, Outcome, OutcomeState};
use crate::wire::failure::Failure;
use crate::wire::reason::cut;

/// The size of a buffer that is sent at once, in bytes.
const FULL: usize = 64 << 10;
/// The size beyond which events are dropped, as while the broker cannot be reached.
const TOO_FULL: usize = 4 << 20;
/// How many bytes of a value or a traceback an event has.
const LONGEST_TEXT: usize = 1_024;

/// How long events of jobs wait for more of them.
pub(crate) const FLUSH_EVERY: Duration = Duration::from_millis(250);

/// The events of one worker.
#[derive(Debug)]
pub(crate) struct Events {
    /// `"hostname":…,"utcoffset":…,"pid":…,"clock":`, the same in all events.
    head: String,
    hostname: String,
    /// Whether events of jobs are wanted.
    is_on: Cell<bool>,
    clock: Cell<u64>,
    /// The begin of a JSON list, without its end.
    buffer: RefCell<Vec<u8>>,
    /// Set when the buffer has events.
    pub(crate) has_some: Event,
    /// Set when the buffer is to be sent at once.
    pub(crate) is_full: Event,
}

impl Events {
    pub(crate) fn new(hostname: &str, is_on: bool) -> Self {
        let name = Value::from(hostname);
        let pid = std::process::id();
        Self {
            head: format!(r#""hostname":{name},"utcoffset":0.0,"pid":{pid},"clock":"#),
            hostname: hostname.to_owned(),
            is_on: Cell::new(is_on),
            clock: Cell::new(0),
            buffer: RefCell::default(),
            has_some: Event::new(),
            is_full: Event::new(),
        }
    }

    /// Whether events of jobs are wanted.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Turns events of jobs on or off, and returns whether they were on.
    pub(crate) fn turn(&self, on: bool) -> bool {
        self.is_on.replace(on)
    }

    /// The next value of the clock.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.set(self.clock.get().wrapping_add(1));
        self.clock.get()
    }

    /// Sets the clock past that of another worker.
    pub(crate) fn adjust(&self, other: u64) {
        // A clock near the end would overflow there; that of a hostile sender is not followed.
        if other < u64::MAX / 2 {
            self.clock.set(self.clock.get().max(other) + 1);
        }
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock.get()
    }

    fn begin(&self, kind: &str, out: &mut Vec<u8>) {
        let since = wall_time().duration_since(UNIX_EPOCH).unwrap_or_default();
        for part in [r#"{"type":""#, kind, r#"","#, &self.head] {
            out.extend_from_slice(part.as_bytes());
        }
        // Writing into a vector cannot fail. Whole numbers: those with a point take ten times as
        // long.
        let (clock, seconds, micros) = (self.tick(), since.as_secs(), since.subsec_micros());
        let _ = write!(out, r#"{clock},"timestamp":{seconds}.{micros:06}"#);
    }

    /// Adds the event of a job.
    fn add(&self, kind: &str, id: &str, more: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.len() > TOO_FULL {
            return;
        }
        let separator = if buffer.is_empty() { b'[' } else { b',' };
        buffer.push(separator);
        self.begin(kind, &mut buffer);
        field(&mut buffer, "uuid", id);
        more(&mut buffer);
        buffer.push(b'}');
        self.has_some.set();
        if buffer.len() > FULL {
            self.is_full.set();
        }
    }

    /// A job has arrived.
    pub(crate) fn received(&self, message: &Message) {
        let Some(id) = message.job() else { return };
        let headers = &message.headers;
        let text = |name: &str| headers.get(name).and_then(Value::as_str);
        self.add("task-received", id, |out| {
            field(out, "name", text("task").unwrap_or_default());
            field(out, "args", text("argsrepr").unwrap_or("()"));
            field(out, "kwargs", text("kwargsrepr").unwrap_or("{}"));
            field(out, "root_id", text("root_id").unwrap_or(id));
            field(out, "parent_id", &text("parent_id"));
            field(out, "retries", &headers.get("retries").and_then(Value::as_u64).unwrap_or(0));
            field(out, "eta", &text("eta"));
            field(out, "expires", &text("expires"));
        });
    }

    /// A job has begun.
    pub(crate) fn started(&self, id: &str) {
        self.add("task-started", id, |_| {});
    }

    /// A job has ended, or its run is to be retried.
    pub(crate) fn ended(&self, id: &str, outcome: &Outcome, runtime: f64, was_running: bool) {
        match outcome.state {
            OutcomeState::Success => self.add("task-succeeded", id, |out| {
                field(out, "result", &*python(&outcome.result));
                field(out, "runtime", &runtime);
            }),
            OutcomeState::Retry => self.failed("task-retried", id, outcome),
            OutcomeState::Failure => self.failed("task-failed", id, outcome),
            OutcomeState::Revoked => self.add("task-revoked", id, |out| {
                let why = Failure::from_outcome(outcome.clone()).message;
                field(out, "terminated", &was_running);
                field(out, "signum", &was_running.then_some(15));
                field(out, "expired", &(why == "expired"));
            }),
            OutcomeState::Started | OutcomeState::Progress => {}
        }
    }

    fn failed(&self, kind: &str, id: &str, outcome: &Outcome) {
        let failure = Failure::from_outcome(outcome.clone());
        let message = python(&Value::from(&*failure.message));
        self.add(kind, id, |out| {
            field(out, "exception", &*format!("{}({message})", failure.kind));
            let traceback = failure.traceback.as_deref().unwrap_or_default();
            field(out, "traceback", cut(traceback, LONGEST_TEXT));
        });
    }

    /// A message is no job that could run here, and is moved to the dead.
    pub(crate) fn rejected(&self, id: &str) {
        self.add("task-rejected", id, |_| {});
    }

    /// The events of jobs since the last call, as one message.
    pub(crate) fn take(&self) -> Option<Notice> {
        let mut body = self.buffer.take();
        self.has_some.clear();
        self.is_full.clear();
        if body.is_empty() {
            return None;
        }
        body.push(b']');
        Some(self.notice("task.multi", body))
    }

    /// An event of the worker: online, heartbeat or offline.
    pub(crate) fn worker(&self, what: &str, active: usize, processed: u64) -> Notice {
        let mut body = Vec::new();
        self.begin(&format!("worker-{what}"), &mut body);
        field(&mut body, "freq", &2.0);
        field(&mut body, "active", &active);
        field(&mut body, "processed", &processed);
        field(&mut body, "loadavg", &load_average());
        field(&mut body, "sw_ident", "pikake");
        field(&mut body, "sw_ver", env!("CARGO_PKG_VERSION"));
        field(&mut body, "sw_sys", "Linux");
        body.push(b'}');
        self.notice(&format!("worker.{what}"), body)
    }

    fn notice(&self, key: &str, body: Vec<u8>) -> Notice {
        Notice::new(Topic::Events, key, body).header("hostname", self.hostname.as_str())
    }
}

fn field<T: Serialize + ?Sized>(out: &mut Vec<u8>, name: &str, value: &T) {
    for part in [r#",""#, name, r#"":"#] {
        out.extend_from_slice(part.as_bytes());
    }
    let _ = serde_json::to_writer(out, value);
}

/// The load of the machine over 1, 5 and 15 minutes.
pub(crate) fn load_average() -> [f64; 3] {
    // A simulated world has no machine.
    let text = pikake_traps::system().and_then(|()| std::fs::read_to_string("/proc/loadavg"));
    let text = text.unwrap_or_default();
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0.0));
    [(); 3].map(|()| numbers.next().unwrap_or(0.0))
}

/// A value as Python writes it, truncated.
pub(crate) fn python(value: &Value) -> String {
    let mut text = String::new();
    write_python(value, &mut text);
    if text.len() > LONGEST_TEXT {
        text.truncate(cut(&text, LONGEST_TEXT).len());
        text.push('…');
    }
    text
}

fn write_python(value: &Value, out: &mut String) {
    use std::fmt::Write as _;
    if out.len() > LONGEST_TEXT {
        return;
    }
    let _ = match value {
        Value::Null => write!(out, "None"),
        Value::Bool(true) => write!(out, "True"),
        Value::Bool(false) => write!(out, "False"),
        Value::Number(number) => write!(out, "{number}"),
        Value::String(text) => {
            let text = cut(text, LONGEST_TEXT).replace('\\', "\\\\").replace('\n', "\\n");
            match text.contains('\'') && !text.contains('"') {
                true => write!(out, "\"{text}\""),
                false => write!(out, "'{}'", text.replace('\'', "\\'")),
            }
        }
        Value::Array(values) => {
            out.push('[');
            for (number, value) in values.iter().enumerate() {
                out.push_str(if number == 0 { "" } else { ", " });
                write_python(value, out);
            }
            write!(out, "]")
        }
        Value::Object(values) => {
            out.push('{');
            for (number, (name, value)) in values.iter().enumerate() {
                out.push_str(if number == 0 { "" } else { ", " });
                write_python(&Value::from(name.as_str()), out);
                out.push_str(": ");
                write_python(value, out);
            }
            write!(out, "}}")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_written_as_in_python() {
        let value = json!({"a": [1, 2.5, null, true, false, "it's", "x\ny", "both ' and \""]});
        let text = r#"{'a': [1, 2.5, None, True, False, "it's", 'x\ny', 'both \' and "']}"#;
        assert_eq!(python(&value), text);
        assert!(python(&json!(vec!["x"; 100_000])).len() <= LONGEST_TEXT + 4);
    }
}
