//! The connection to the process, and an answer of it as one JSON object.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pikake::console::client::{Client, ClientError};
use pikake::console::model::{
    Blocked, Event, Graph, Kernel, KernelStats, Process, ProcessStats, ProfileRow, Samples, Task,
};
use pikake::console::protocol::{Part, Request};
use serde::Serialize;

/// The parts of an answer. What was not asked for is empty.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    /// The process, with its age now.
    process: Process,
    kernels: Vec<Kernel>,
    tasks: Vec<Task>,
    graph: Option<Graph>,
    figures: Option<ProcessStats>,
    stats: Vec<KernelStats>,
    ended: Option<Ended>,
    events: Vec<Event>,
    profile: Vec<ProfileRow>,
    samples: Option<Samples>,
    blocked: Vec<Blocked>,
}

/// What became of a task that was asked to end.
#[derive(Debug, Serialize)]
struct Ended {
    has_ended: bool,
    text: String,
}

impl Answer {
    fn new(process: Process, parts: Vec<Part>) -> Self {
        let mut answer = Self {
            process,
            kernels: Vec::new(),
            tasks: Vec::new(),
            graph: None,
            figures: None,
            stats: Vec::new(),
            ended: None,
            events: Vec::new(),
            profile: Vec::new(),
            samples: None,
            blocked: Vec::new(),
        };
        for part in parts {
            match part {
                Part::Kernel(kernel) => answer.kernels.push(kernel),
                Part::Tasks(tasks) => answer.tasks.extend(tasks),
                Part::Graph(graph) => answer.graph = Some(graph),
                Part::Process(figures) => answer.figures = Some(figures),
                Part::Stats(stats) => answer.stats.push(stats),
                Part::Ended(has_ended, text) => answer.ended = Some(Ended { has_ended, text }),
                Part::Events(events) => answer.events.extend(events),
                Part::Profile(rows) => answer.profile.extend(rows),
                Part::Samples(samples) => answer.samples = Some(samples),
                Part::Blocked(blocked) => answer.blocked.push(blocked),
                // The client tells of these otherwise.
                Part::Done | Part::Failed(_) => {}
            }
        }
        answer
    }
}

/// A connection, and when it was made.
#[derive(Debug)]
struct Connected {
    client: Client,
    at: Instant,
}

impl Connected {
    fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let parts = self.client.ask(request)?;
        let mut process = self.client.process().clone();
        let elapsed = u64::try_from(self.at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        process.age = process.age.saturating_add(elapsed);
        Ok(Answer::new(process, parts))
    }
}

/// Connects to the process, and keeps one connection for the next request: a process that has no descriptor left
/// admits no new one.
pub(crate) struct Bridge {
    connect: Box<dyn Fn() -> Result<Client, ClientError> + Send + Sync>,
    kept: Mutex<Option<Connected>>,
}

impl Bridge {
    /// Connects.
    pub(crate) fn new(
        connect: impl Fn() -> Result<Client, ClientError> + Send + Sync + 'static,
    ) -> Result<Self, ClientError> {
        let bridge = Self { connect: Box::new(connect), kept: Mutex::default() };
        bridge.keep(bridge.connect()?);
        Ok(bridge)
    }

    fn connect(&self) -> Result<Connected, ClientError> {
        Ok(Connected { client: (self.connect)()?, at: Instant::now() })
    }

    fn keep(&self, connected: Connected) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected);
    }

    /// Asks the process, which takes as long as it takes: call this function in a helper thread.
    pub(crate) fn ask(&self, request: &Request) -> Result<Answer, ClientError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connected) = kept {
            match connected.ask(request) {
                // The connection was lost meanwhile.
                Err(ClientError::Closed(_) | ClientError::Io(..)) => {}
                answer => {
                    self.keep_unless_broken(connected, &answer);
                    return answer;
                }
            }
        }
        let mut connected = self.connect()?;
        let answer = connected.ask(request);
        self.keep_unless_broken(connected, &answer);
        answer
    }

    fn keep_unless_broken(&self, connected: Connected, answer: &Result<Answer, ClientError>) {
        if matches!(answer, Ok(_) | Err(ClientError::Failed(_))) {
            self.keep(connected);
        }
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").field("kept", &self.kept).finish_non_exhaustive()
    }
}
