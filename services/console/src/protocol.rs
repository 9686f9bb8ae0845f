//! The protocol between a process with a console and its clients.
//!
//! The connection is a stream of *frames* in both directions. A frame is the length of its text in
//! bytes, as four bytes with the most significant one first, and the text: one JSON object in
//! UTF-8. No text is longer than [`FRAME_LIMIT`]. The process begins with a frame that introduces
//! it, a [`Process`](crate::model::Process). The client checks that its field `protocol` is
//! [`VERSION`], and sends frames with a [`Request`] each, one at a time. The process answers a
//! request by any number of [`Part`]s, of which [`Part::Done`] or [`Part::Failed`] is the last.
//! After a malformed frame the process answers [`Part::Failed`] and closes the connection.
//!
//! A new version may add fields to the answers, and clients ignore fields that they do not know.
//! Any other change changes the [`VERSION`].

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::model::{
    Blocked, Ended, Event, Graph, Growing, Kernel, KernelStats, Lock, ProcessStats, ProfileRow,
    Samples, Task, TaskKey, TaskName,
};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The greatest length of a frame's text in bytes.
pub const FRAME_LIMIT: usize = 1 << 20;

/// What a client asks for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The kernels: [`Part::Kernel`] of each.
    Kernels,
    /// The tasks: for each kernel [`Part::Kernel`] and then [`Part::Tasks`]. Answers `ps`, `tree`
    /// and `top`.
    Tasks {
        /// Also all waits, with what each one is for, and the scopes around it. Each task is then
        /// polled once more.
        #[serde(default)]
        waits: bool,
    },
    /// One task with all its waits: [`Part::Tasks`]. Answers `where`.
    Task {
        /// The task.
        task: TaskKey,
    },
    /// As `Tasks` with waits, and then [`Part::Graph`]. Answers `waits`.
    Waits,
    /// The figures: [`Part::Process`] and [`Part::Stats`] of each kernel.
    Stats,
    /// Asks a task to end, and waits a moment for that: [`Part::Ended`].
    Cancel {
        /// The task.
        task: TaskKey,
        /// The reason that the task sees.
        #[serde(default)]
        reason: String,
    },
    /// Drops a task's future: [`Part::Ended`].
    Abort {
        /// The task.
        task: TaskKey,
    },
    /// The last events, the oldest first: [`Part::Events`].
    Trace {
        /// Times steps for so long first, an hour at most, and gives the events of that time.
        #[serde(default)]
        seconds: Option<f64>,
    },
    /// The profile of the next time: [`Part::Profile`] and [`Part::Samples`].
    Profile {
        /// The length of that time: 60 seconds at most.
        seconds: f64,
    },
    /// The kernels that are in one step for too long: [`Part::Blocked`].
    Blocked,
    /// The last long steps that are over, the latest first: [`Part::Blocked`]. A process of a
    /// version before refuses this.
    LongSteps,
    /// The figures of the locks that tasks waited for: [`Part::Locks`] of each kernel. A process of
    /// a version before refuses this.
    Locks,
    /// Leaks of tasks: for each kernel [`Part::Kernel`], [`Part::Growing`] and
    /// [`Part::WaitsForEnded`]. The answer takes some seconds if the process is young. A process of
    /// a version before refuses this.
    Leaks,
    /// Times steps until the connection ends, so that tasks have `busy` and `longest`.
    Time,
}

/// A part of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "part", content = "is", rename_all = "lowercase")]
pub enum Part {
    /// A kernel.
    Kernel(Kernel),
    /// Some tasks of one kernel.
    Tasks(Vec<Task>),
    /// Who waits for whom.
    Graph(Graph),
    /// Groups of tasks that only grow.
    Growing(Vec<Growing>),
    /// Tasks that wait for what only ended tasks could give.
    WaitsForEnded(Vec<Ended>),
    /// The figures of the locks of one kernel.
    Locks(Vec<Lock>),
    /// The figures of the process.
    Process(ProcessStats),
    /// The figures of a kernel.
    Stats(KernelStats),
    /// What became of a task that was asked to end, in words. `true`: the task has ended.
    Ended(bool, String),
    /// What tasks in the later events are called.
    Names(Vec<TaskName>),
    /// Events of the kernel with this number that are not there, and how many: the kernel made more
    /// than the console could read, or keep.
    Lost(u32, u64),
    /// Some events of one kernel, the oldest first.
    Events(Vec<Event>),
    /// Some rows of the profile.
    Profile(Vec<ProfileRow>),
    /// Stacks by samples.
    Samples(Samples),
    /// A kernel that is in one step for too long, or was.
    Blocked(Blocked),
    /// The answer is complete.
    Done,
    /// The request failed, for this reason.
    Failed(String),
}

/// Writes a value as one frame.
///
/// # Errors
///
/// That of the writer. [`InvalidInput`](io::ErrorKind::InvalidInput) if the text is longer than
/// [`FRAME_LIMIT`].
pub fn write_frame<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    to.write_all(&frame(value)?)?;
    to.flush()
}

/// The bytes of a value's frame.
///
/// # Errors
///
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if the text is longer than [`FRAME_LIMIT`].
pub fn frame<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut bytes, value)?;
    let length = bytes.len() - size_of::<u32>();
    if length > FRAME_LIMIT {
        let text = format!("a frame of {length} bytes; the limit is {FRAME_LIMIT}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    bytes[..size_of::<u32>()].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(bytes)
}

/// The length of a frame's text by its first four bytes.
///
/// # Errors
///
/// [`InvalidData`](io::ErrorKind::InvalidData) if it is above [`FRAME_LIMIT`].
pub fn text_length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(head) as usize;
    if length > FRAME_LIMIT {
        let text = format!("a frame of {length} bytes; the limit is {FRAME_LIMIT}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(length)
}

/// Reads one frame. `None` at the end of the stream.
///
/// # Errors
///
/// That of the reader; [`InvalidData`](io::ErrorKind::InvalidData) for a malformed frame, and
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) for one that is cut off.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    let mut read = 0;
    while read < head.len() {
        match from.read(&mut head[read..]) {
            Ok(0) if read == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut text = vec![0; text_length(head)?];
    from.read_exact(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
