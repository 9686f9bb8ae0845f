//! The events of a flight recorder as a file for <https://ui.perfetto.dev> and `chrome://tracing`.
//!
//! The file is JSON in the *Trace Event Format*. The program is the file's process, and each kernel
//! a thread with the steps of its tasks: complete events (`X`) if the steps were timed, instants
//! (`i`) if they were not. Each task has an asynchronous track (`b`, `e`), which is named like the
//! task and has the task's waits. A wait reaches from the end of a step to the begin of the next
//! one, so the time in the ready queue is part of it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::model::{Event, Kernel, TaskKey, TaskName, What};

/// Writes events as a trace while they come.
///
/// # Examples
///
/// ```
/// use pikake::console::model::{Event, TaskKey, What};
/// use pikake::console::trace::TraceWriter;
///
/// let task = TaskKey { kernel: 1, task: 17 };
/// let mut trace = TraceWriter::new(Vec::new(), 4711, "my_server")?;
/// trace.name(task, "connection");
/// trace.event(&Event { at: 1_000, task, what: What::Spawned })?;
/// let file = String::from_utf8(trace.finish()?).unwrap();
/// assert!(file.contains("connection"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TraceWriter<W> {
    to: W,
    pid: u32,
    has_events: bool,
    names: BTreeMap<TaskKey, String>,
    tasks: BTreeMap<TaskKey, Track>,
    /// The greatest time so far.
    end: u64,
}

/// The track of a task that is open.
#[derive(Debug)]
struct Track {
    /// Its name, which its end repeats.
    name: String,
    /// The wait in it that is open.
    wait: Option<String>,
    /// The time of the last mark in it. A rate that is measured better meanwhile makes later times
    /// some nanoseconds earlier, and no mark is before the last one.
    since: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins the trace of a process.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn new(to: W, pid: u32, program: &str) -> io::Result<Self> {
        let (names, tasks) = (BTreeMap::new(), BTreeMap::new());
        let mut trace = Self { to, pid, has_events: false, names, tasks, end: 0 };
        trace.to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        trace.write("M", "process_name", &format!(r#","args":{{"name":{}}}"#, quoted(program)))?;
        Ok(trace)
    }

    /// Names the thread of a kernel.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn kernel(&mut self, kernel: &Kernel) -> io::Result<()> {
        let Kernel { id, thread, .. } = kernel;
        let name = match thread.is_empty() {
            true => format!("kernel {id}"),
            false => format!("kernel {id} ({thread})"),
        };
        let rest = format!(r#","tid":{id},"args":{{"name":{}}}"#, quoted(&name));
        self.write("M", "thread_name", &rest)?;
        self.write(
            "M",
            "thread_sort_index",
            &format!(r#","tid":{id},"args":{{"sort_index":{id}}}"#),
        )
    }

    /// Names a task. A later name is for the task's later events.
    pub fn name(&mut self, task: TaskKey, name: &str) {
        if !name.is_empty() {
            self.names.insert(task, name.to_owned());
        }
    }

    /// Names tasks, those without a name by the place of their spawn.
    pub fn names(&mut self, names: &[TaskName]) {
        for TaskName { id, name, spawned_at } in names {
            match name.as_str() {
                "" => self.name(*id, &format!("spawned at {spawned_at}")),
                name => self.name(*id, name),
            }
        }
    }

    /// Writes an event. Those of a kernel come in order, the oldest first.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { at, task, what } = event;
        let task = *task;
        let since = self.tasks.get(&task).map_or(0, |track| track.since);
        let at = since.max(*at);
        self.end = self.end.max(at);
        match what {
            What::Spawned => self.open(task, at),
            What::Stepped { took, trap, place } => {
                let begin = since.max(at.saturating_sub(took.unwrap_or(0)));
                self.close_wait(task, begin)?;
                self.step(task, begin, *took, &[("trap", trap), ("place", place)])?;
                let wait = match (trap, place) {
                    (Some(trap), Some(place)) => format!("{trap} at {place}"),
                    (Some(trap), None) => trap.clone(),
                    (None, _) => return Ok(()),
                };
                self.mark("b", task, at, &wait)?;
                self.tasks.entry(task).and_modify(|track| {
                    track.wait = Some(wait);
                    track.since = at;
                });
                Ok(())
            }
            What::Ended { took, exit } => {
                let begin = since.max(at.saturating_sub(took.unwrap_or(0)));
                self.close_wait(task, begin)?;
                self.step(task, begin, *took, &[("exit", &Some(exit.clone()))])?;
                self.close(task, at)
            }
        }
    }

    /// Ends the trace, with the tracks of the tasks that live on.
    ///
    /// # Errors
    ///
    /// That of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        let tasks: Vec<TaskKey> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.close(task, self.end)?;
        }
        self.to.write_all(b"\n]}\n")?;
        self.to.flush()?;
        Ok(self.to)
    }

    /// A task's name, or number.
    fn name_of(&self, task: TaskKey) -> String {
        self.names.get(&task).cloned().unwrap_or_else(|| format!("task {task}"))
    }

    fn open(&mut self, task: TaskKey, at: u64) -> io::Result<()> {
        if self.tasks.contains_key(&task) {
            return Ok(());
        }
        let name = self.name_of(task);
        self.mark("b", task, at, &name)?;
        self.tasks.insert(task, Track { name, wait: None, since: at });
        Ok(())
    }

    /// Ends a task's wait, if there is one, and opens the track of a task that is older than the
    /// trace.
    fn close_wait(&mut self, task: TaskKey, at: u64) -> io::Result<()> {
        self.open(task, at)?;
        let wait = self.tasks.get_mut(&task).and_then(|track| track.wait.take());
        wait.map_or(Ok(()), |wait| self.mark("e", task, at, &wait))
    }

    fn close(&mut self, task: TaskKey, at: u64) -> io::Result<()> {
        self.close_wait(task, at)?;
        let track = self.tasks.remove(&task);
        track.map_or(Ok(()), |track| self.mark("e", task, at, &track.name))
    }

    /// Writes the begin or the end of something in a task's track, which is one of the process
    /// (`local`).
    fn mark(&mut self, phase: &str, task: TaskKey, at: u64, name: &str) -> io::Result<()> {
        let kernel = task.kernel;
        let at = micros(at);
        let rest = format!(r#","cat":"task","id2":{{"local":"{task}"}},"tid":{kernel},"ts":{at}"#);
        self.write(phase, name, &rest)
    }

    /// Writes a step, with what came after it.
    fn step(
        &mut self,
        task: TaskKey,
        begin: u64,
        took: Option<u64>,
        then: &[(&str, &Option<String>)],
    ) -> io::Result<()> {
        let length = match took {
            Some(took) => format!(r#""dur":{}"#, micros(took)),
            None => r#""s":"t""#.to_owned(),
        };
        let mut args = format!(r#""task":"{task}""#);
        for (key, value) in then {
            if let Some(value) = value {
                args += &format!(r#","{key}":{}"#, quoted(value));
            }
        }
        let (kernel, begin) = (task.kernel, micros(begin));
        let rest =
            format!(r#","cat":"step","tid":{kernel},"ts":{begin},{length},"args":{{{args}}}"#);
        self.write(if took.is_some() { "X" } else { "i" }, &self.name_of(task), &rest)
    }

    fn write(&mut self, phase: &str, name: &str, rest: &str) -> io::Result<()> {
        let comma = if self.has_events { "," } else { "" };
        self.has_events = true;
        let (name, pid) = (quoted(name), self.pid);
        write!(self.to, "{comma}\n{{\"ph\":\"{phase}\",\"name\":{name},\"pid\":{pid}{rest}}}")
    }
}

/// A length in microseconds, the unit of the format, without rounding.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1_000, nanos % 1_000)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
