//! The format of the files of a recording.
//!
//! A file begins with [`MAGIC`] and the [`VERSION`] as four bytes with the least significant one
//! first. Then come *frames*: the length of the content, a CRC-32 of it, four bytes each in the
//! same order, and the content. The first content is the [`Header`] as JSON. Each other one is a
//! [`Frame`] in the encoding of postcard, which has no names of fields. So any change of the types
//! below changes the version.
//!
//! Texts, as names and places, are in a table that belongs to the file. A frame has the texts that
//! it adds to the table, and refers to all texts by their numbers. So a file can be read without
//! the others of its recording.

use std::collections::HashMap;
use std::panic::Location;

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::model::{Edge, GoesOn, Graph, Scope, State, Task, TaskKey, Wait, What};

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 8] = *b"PIKAKE\0R";

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The bytes before the content of a frame.
pub(crate) const HEAD: usize = 8;

/// The bytes before the first frame.
pub(crate) const PREFIX: usize = MAGIC.len() + size_of::<u32>();

/// The beginning of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// The version of pikake.
    pub(crate) pikake: String,
    /// The build id of the executable, in hexadecimal digits.
    pub(crate) build_id: Option<String>,
    pub(crate) host: String,
    /// The moment at which the recording began, in nanoseconds since 1970. The same in all files of
    /// the recording.
    pub(crate) run: u64,
    /// The number of the file among those of its process.
    pub(crate) number: u32,
    /// The moment of the file's begin, in nanoseconds since the recording began.
    pub(crate) at: u64,
    /// As `run`, by the clock of the system at the file's begin, which may have been set meanwhile.
    pub(crate) zero: u64,
}

/// A part of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Frame {
    /// In nanoseconds since the recording began.
    pub(crate) at: u64,
    /// The texts that the frame adds to the table.
    pub(crate) texts: Vec<String>,
    pub(crate) body: Body,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Body {
    /// All tasks and figures. `at` is the begin of the look.
    Snapshot(Box<SnapshotRow>),
    /// The events of a kernel. `at` is the time of the reading.
    Events(EventsRow),
    /// Something unusual.
    Trigger(TriggerRow),
    /// Nothing has happened so far.
    Alive,
    /// The recording has ended with its program.
    End,
}

/// The number of a text in the table.
type Text = u32;

/// A task: its kernel and its number there.
type Key = (u32, u64);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotRow {
    /// The length of the look.
    pub(crate) took: u64,
    /// The kernels, the figures of the process, and those of the kernels, as JSON: they are few,
    /// and later versions have more of them.
    kernels: String,
    process: String,
    stats: String,
    tasks: Vec<TaskRow>,
    edges: Vec<(Key, Key, Text, Text, Option<Text>)>,
    deadlocks: Vec<Vec<Key>>,
    left_out: Vec<(Key, u64)>,
    unpolled: Vec<Key>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TaskRow {
    id: Key,
    name: Text,
    parent: Option<Key>,
    state: u8,
    since: Option<u64>,
    steps: u64,
    busy: u64,
    longest: u64,
    spawned_at: Text,
    future: Text,
    bytes: u64,
    cancelled: Option<Text>,
    goes_on: Option<(u64, Text, u64)>,
    waits: Vec<WaitRow>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WaitRow {
    trap: Text,
    place: Text,
    about: Option<Text>,
    owners: Vec<Key>,
    scopes: Vec<(Option<i64>, Option<Text>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventsRow {
    pub(crate) kernel: u32,
    /// The events before these that are not in the recording.
    pub(crate) lost: u64,
    pub(crate) rows: Vec<EventRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventRow {
    /// The time since the event before, or of the first one since the recording began. Negative if
    /// the rate of the clock was measured better meanwhile.
    pub(crate) after: i64,
    pub(crate) task: u64,
    pub(crate) what: WhatRow,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WhatRow {
    /// With the place of the spawn.
    Spawned(Text),
    /// With trap and place of the wait.
    Waits(Text, Text),
    /// Stepped, without a wait that is known.
    Stepped,
    /// The same two, with the length of the step.
    TimedWaits(u64, Text, Text),
    TimedStepped(u64),
    /// With the way in which the task ended, the length of the last step, and the place of the
    /// spawn.
    Ended(Text, Option<u64>, Text),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TriggerRow {
    /// The kind, as `long step`.
    pub(crate) kind: String,
    /// The event in words.
    pub(crate) about: String,
    /// The triggers before this one that were counted only.
    pub(crate) more: u64,
}

/// The table of texts of a file that is being written.
#[derive(Default)]
pub(crate) struct Texts {
    numbers: HashMap<Box<str>, Text>,
    /// The numbers of places by their addresses.
    places: HashMap<usize, Text>,
    /// The texts that the next frame adds.
    new: Vec<String>,
}

impl Texts {
    pub(crate) fn number(&mut self, text: &str) -> Text {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as Text;
        self.numbers.insert(text.into(), number);
        self.new.push(text.to_owned());
        number
    }

    pub(crate) fn place(&mut self, place: &'static Location<'static>) -> Text {
        let address = std::ptr::from_ref(place).addr();
        if let Some(number) = self.places.get(&address) {
            return *number;
        }
        let number = self.number(&place.to_string());
        self.places.insert(address, number);
        number
    }

    /// The texts since the last frame that was written.
    pub(crate) fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Forgets the texts of a frame that was not written: all but the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        let is_kept = |number: Text| (number as usize) < count;
        self.numbers.retain(|_, number| is_kept(*number));
        self.places.retain(|_, number| is_kept(*number));
        self.new.clear();
    }
}

/// A reference to a text that the table does not have, or something else that no writer writes.
#[derive(Debug)]
pub(crate) struct Malformed;

/// The text with a number.
pub(crate) fn text_of(texts: &[String], number: Text) -> Result<&str, Malformed> {
    texts.get(number as usize).map(String::as_str).ok_or(Malformed)
}

fn key(key: TaskKey) -> Key {
    (key.kernel, key.task)
}

fn key_of((kernel, task): Key) -> TaskKey {
    TaskKey { kernel, task }
}

const STATES: [State; 4] = [State::New, State::Ready, State::Running, State::Waiting];

fn json(value: &impl Serialize) -> String {
    // The model has no maps, and so no key that JSON does not have.
    serde_json::to_string(value).unwrap_or_default()
}

impl SnapshotRow {
    /// The tasks, their waits, and the figures in an answer.
    pub(crate) fn of(answer: &Answer, took: u64, texts: &mut Texts) -> Self {
        let none = Graph::default();
        let graph = answer.graph.as_ref().unwrap_or(&none);
        let edge = |edge: &Edge| {
            let about = edge.about.as_ref().map(|about| texts.number(about));
            let (trap, place) = (texts.number(&edge.trap), texts.number(&edge.place));
            (key(edge.from), key(edge.to), trap, place, about)
        };
        let edges = graph.edges.iter().map(edge).collect();
        let keys = |keys: &Vec<TaskKey>| keys.iter().copied().map(key).collect();
        Self {
            took,
            kernels: json(&answer.kernels),
            process: json(&answer.process),
            stats: json(&answer.stats),
            tasks: answer.tasks.iter().map(|task| TaskRow::of(task, texts)).collect(),
            edges,
            deadlocks: graph.deadlocks.iter().map(keys).collect(),
            left_out: graph.left_out.iter().map(|(task, count)| (key(*task), *count)).collect(),
            unpolled: keys(&graph.unpolled),
        }
    }

    pub(crate) fn to_answer(&self, texts: &[String]) -> Result<Answer, Malformed> {
        let keys = |keys: &Vec<Key>| keys.iter().copied().map(key_of).collect();
        let edge = |(from, to, trap, place, about): &(Key, Key, Text, Text, Option<Text>)| {
            Ok(Edge {
                from: key_of(*from),
                to: key_of(*to),
                trap: text_of(texts, *trap)?.to_owned(),
                place: text_of(texts, *place)?.to_owned(),
                about: optional(texts, *about)?,
            })
        };
        let graph = Graph {
            edges: self.edges.iter().map(edge).collect::<Result<_, Malformed>>()?,
            deadlocks: self.deadlocks.iter().map(keys).collect(),
            left_out: self.left_out.iter().map(|(task, count)| (key_of(*task), *count)).collect(),
            unpolled: keys(&self.unpolled),
        };
        let tasks = self.tasks.iter().map(|task| task.to_model(texts));
        Ok(Answer {
            kernels: serde_json::from_str(&self.kernels).map_err(|_| Malformed)?,
            process: serde_json::from_str(&self.process).map_err(|_| Malformed)?,
            stats: serde_json::from_str(&self.stats).map_err(|_| Malformed)?,
            tasks: tasks.collect::<Result<_, Malformed>>()?,
            graph: Some(graph),
            ..Answer::default()
        })
    }
}

fn optional(texts: &[String], number: Option<Text>) -> Result<Option<String>, Malformed> {
    number.map(|number| text_of(texts, number).map(str::to_owned)).transpose()
}

impl TaskRow {
    fn of(task: &Task, texts: &mut Texts) -> Self {
        let goes_on = task.goes_on.as_ref();
        Self {
            id: key(task.id),
            name: texts.number(&task.name),
            parent: task.parent.map(key),
            state: STATES.iter().position(|state| *state == task.state).unwrap_or(0) as u8,
            since: task.since,
            steps: task.steps,
            busy: task.busy,
            longest: task.longest,
            spawned_at: texts.number(&task.spawned_at),
            future: texts.number(&task.future),
            bytes: task.bytes,
            cancelled: task.cancelled.as_ref().map(|reason| texts.number(reason)),
            goes_on: goes_on.map(|it| (it.asked, texts.number(&it.caught_at), it.waits)),
            waits: task.waits.iter().map(|wait| WaitRow::of(wait, texts)).collect(),
        }
    }

    fn to_model(&self, texts: &[String]) -> Result<Task, Malformed> {
        let text = |number| text_of(texts, number).map(str::to_owned);
        let goes_on = |(asked, caught_at, waits): (u64, Text, u64)| {
            Ok(GoesOn { asked, caught_at: text(caught_at)?, waits })
        };
        let waits = self.waits.iter().map(|wait| wait.to_model(texts));
        Ok(Task {
            id: key_of(self.id),
            name: text(self.name)?,
            parent: self.parent.map(key_of),
            state: *STATES.get(usize::from(self.state)).ok_or(Malformed)?,
            since: self.since,
            steps: self.steps,
            busy: self.busy,
            longest: self.longest,
            spawned_at: text(self.spawned_at)?,
            future: text(self.future)?,
            bytes: self.bytes,
            cancelled: optional(texts, self.cancelled)?,
            goes_on: self.goes_on.map(goes_on).transpose()?,
            waits: waits.collect::<Result<_, Malformed>>()?,
        })
    }
}

impl WaitRow {
    fn of(wait: &Wait, texts: &mut Texts) -> Self {
        Self {
            trap: texts.number(&wait.trap),
            place: texts.number(&wait.place),
            about: wait.about.as_ref().map(|about| texts.number(about)),
            owners: wait.owners.iter().copied().map(key).collect(),
            scopes: wait
                .scopes
                .iter()
                .map(|scope| (scope.left, scope.set_at.as_ref().map(|at| texts.number(at))))
                .collect(),
        }
    }

    fn to_model(&self, texts: &[String]) -> Result<Wait, Malformed> {
        let scopes = self
            .scopes
            .iter()
            .map(|(left, set_at)| Ok(Scope { left: *left, set_at: optional(texts, *set_at)? }));
        Ok(Wait {
            trap: text_of(texts, self.trap)?.to_owned(),
            place: text_of(texts, self.place)?.to_owned(),
            about: optional(texts, self.about)?,
            owners: self.owners.iter().copied().map(key_of).collect(),
            scopes: scopes.collect::<Result<_, Malformed>>()?,
        })
    }
}

impl WhatRow {
    /// The event, and the place of the task's spawn if the event has it.
    pub(crate) fn to_model<'a>(
        &self,
        texts: &'a [String],
    ) -> Result<(What, Option<&'a str>), Malformed> {
        let text = |number| text_of(texts, number).map(str::to_owned);
        let stepped = |took, trap, place| What::Stepped { took, trap, place };
        Ok(match *self {
            Self::Spawned(place) => (What::Spawned, Some(text_of(texts, place)?)),
            Self::Waits(trap, place) => {
                (stepped(None, Some(text(trap)?), Some(text(place)?)), None)
            }
            Self::TimedWaits(took, trap, place) => {
                (stepped(Some(took), Some(text(trap)?), Some(text(place)?)), None)
            }
            Self::Stepped => (stepped(None, None, None), None),
            Self::TimedStepped(took) => (stepped(Some(took), None, None), None),
            Self::Ended(exit, took, place) => {
                (What::Ended { took, exit: text(exit)? }, Some(text_of(texts, place)?))
            }
        })
    }
}
