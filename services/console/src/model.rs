//! What a console tells of a process: kernels, tasks, waits, steps. All lengths of time are in
//! nanoseconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a task in its process: that of its kernel and its own, written `1.17`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskKey {
    /// The number of the kernel.
    pub kernel: u32,
    /// The number of the task in its kernel.
    pub task: u64,
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kernel, self.task)
    }
}

impl FromStr for TaskKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(kernel, task)| {
            Some(Self { kernel: kernel.parse().ok()?, task: task.parse().ok()? })
        });
        parts.ok_or_else(|| format!("`{text}` is no task: write KERNEL.TASK, as `1.17`"))
    }
}

impl TryFrom<String> for TaskKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TaskKey> for String {
    fn from(key: TaskKey) -> Self {
        key.to_string()
    }
}

/// A process, as it introduces itself to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Process {
    /// The number of the process.
    pub pid: u32,
    /// The file name of its program.
    pub program: String,
    /// The version of pikake in it.
    pub pikake: String,
    /// The version of the protocol: [`protocol::VERSION`](crate::protocol::VERSION).
    pub protocol: u32,
    /// The time since the console started.
    pub age: u64,
}

/// A kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// The number of the kernel.
    pub id: u32,
    /// The name of the thread.
    pub thread: String,
    /// The number of the thread in the system.
    pub tid: Option<u32>,
    /// The kernel did not answer, since it is in this step. What is told of its tasks is then from
    /// the last look.
    pub stuck: Option<Step>,
    /// The age of the last look at its tasks, if the kernel did not answer. `None`: what is told is
    /// current.
    pub stale: Option<u64>,
}

/// A step that lasts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The task.
    pub task: TaskKey,
    /// The name of the task; empty if it has none.
    pub name: String,
    /// The place where the task was spawned, as `src/main.rs:12:5`.
    pub spawned_at: String,
    /// The time that the step has lasted at least.
    pub lasts: u64,
}

/// What a task does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The task was never stepped.
    New,
    /// The task is ready for its next step.
    Ready,
    /// The task is being stepped.
    Running,
    /// The task waits.
    Waiting,
}

/// A task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The number of the task.
    pub id: TaskKey,
    /// The name of the task, and what tells it from those of the same name, as the peer of a
    /// connection; empty if it has neither.
    pub name: String,
    /// The task that spawned this one, which may have ended since.
    pub parent: Option<TaskKey>,
    /// What the task does.
    pub state: State,
    /// The time since the task's last step, or since its spawn.
    pub since: Option<u64>,
    /// The number of its steps since the console looks.
    pub steps: u64,
    /// The time of its steps while steps were timed.
    pub busy: u64,
    /// The longest of these steps.
    pub longest: u64,
    /// The place where the task was spawned.
    pub spawned_at: String,
    /// The name of the future's type.
    pub future: String,
    /// The size of the future in bytes.
    pub bytes: u64,
    /// The reason for which the task was asked to end.
    pub cancelled: Option<String>,
    /// The place that caught the interruption, and the waits since. `None` until a wait has
    /// returned the interruption.
    pub goes_on: Option<GoesOn>,
    /// The waits of the task. A request for tasks without waits gives the last one only, without
    /// what it is for.
    pub waits: Vec<Wait>,
}

/// A task that caught the cancel that asked it to end, and has not ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GoesOn {
    /// The time since the task was asked to end.
    pub asked: u64,
    /// The place of the await that returned the interruption.
    pub caught_at: String,
    /// The number of waits that the task has begun since, outside of shields.
    pub waits: u64,
}

/// A wait of a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// The name of the trap, as `park`.
    pub trap: String,
    /// The place of the await.
    pub place: String,
    /// What the task waits for, in words: `mutex `accounts`, held by task 3`.
    pub about: Option<String>,
    /// The tasks that can end the wait, as far as they are known: the holder of a lock, the task
    /// that is joined.
    pub owners: Vec<TaskKey>,
    /// The scopes around the wait, the innermost first.
    pub scopes: Vec<Scope>,
}

/// A scope around a wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scope {
    /// The time that is left; negative if the deadline has passed. `None` for a shield.
    pub left: Option<i64>,
    /// The place of the call that set the deadline; `None` for a shield.
    pub set_at: Option<String>,
}

/// Who waits for whom, among the tasks of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    /// Each edge leads from a task that waits to a task that can end the wait.
    pub edges: Vec<Edge>,
    /// The tasks of each cycle, in order: a deadlock. At most the first thousand of them.
    pub deadlocks: Vec<Vec<TaskKey>>,
    /// For each cycle of more tasks: its first task, and the number of the tasks that follow those
    /// in `deadlocks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<(TaskKey, u64)>,
    /// Tasks with a wait that only another future of the same task can end, while that future is
    /// not polled.
    pub unpolled: Vec<TaskKey>,
}

/// A task waits for another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// The task that waits.
    pub from: TaskKey,
    /// The task that can end the wait.
    pub to: TaskKey,
    /// The trap.
    pub trap: String,
    /// The place of the await.
    pub place: String,
    /// What the task waits for.
    pub about: Option<String>,
}

/// The figures of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelStats {
    /// The number of the kernel.
    pub kernel: u32,
    /// The number of tasks.
    pub tasks: u64,
    /// The number of ready tasks.
    pub ready: u64,
    /// The number of tasks that were spawned.
    pub spawned: u64,
    /// The bytes of the futures of all tasks, as their types have it, without what the futures
    /// point to.
    pub future_bytes: u64,
    /// The number of sleeps and deadlines in the heap.
    pub timers: u64,
    /// The number of waiters in queues.
    pub waiters: u64,
    /// The number of sockets.
    pub sockets: u64,
    /// The number of helper threads that run.
    pub threads: u64,
    /// The number of helper threads that have nothing to do.
    pub idle_threads: u64,
    /// The number of closures that wait for a helper thread.
    pub queued_closures: u64,
    /// The number of steps.
    pub steps: u64,
    /// The number of polls of the driver.
    pub polls: u64,
    /// The number of wakes and calls from other threads.
    pub messages: u64,
    /// The longest step while steps were timed.
    pub longest_step: u64,
    /// How late *timers* fired: element `n` counts those that were late by less than 2^n
    /// microseconds and by at least half of that.
    pub lateness: Vec<u64>,
    /// How late *tasks* are stepped, and the offers; `None` in a kernel without peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeerStats>,
}

/// The figures of a kernel beside the other kernels of its program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerStats {
    /// How late the kernel is: the tasks that are ready may have waited for this long.
    pub late: u64,
    /// The most that the kernel was late in the last minute, or in up to two.
    pub late_max: u64,
    /// The number of times that the kernel offered work to the others.
    pub offers_made: u64,
    /// The number of the others' offers that the kernel has taken.
    pub offers_taken: u64,
}

/// The figures of a process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessStats {
    /// The bytes of memory that the process has in RAM.
    pub resident_bytes: Option<u64>,
    /// The number of open descriptors.
    pub descriptors: Option<u64>,
    /// The largest number of descriptors that the process may open.
    pub descriptor_limit: Option<u64>,
    /// The number of threads.
    pub threads: Option<u64>,
    /// The processor time spent in the program.
    pub user_time: u64,
    /// The processor time spent in the system for it.
    pub system_time: u64,
    /// The number of page faults that needed the disk.
    pub major_faults: u64,
    /// The number of times that a thread waited of its own accord.
    pub voluntary_switches: u64,
    /// The number of times that the system took the processor away.
    pub involuntary_switches: u64,
}

/// The figures of a lock, or of alike ones: those of the same kind and name, or made at the same
/// place. A wait counts when it ends with the lock, and a hold while others wait.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lock {
    /// The number of the kernel.
    pub kernel: u32,
    /// The kind, with the name or the place where the lock was made: ``mutex `stock` ``.
    pub lock: String,
    /// The waits by length: element `n` counts those of less than 2^n microseconds and of at least
    /// half of that.
    pub waits: Vec<u64>,
    /// The sum of all waits.
    pub waited: u64,
    /// The longest wait.
    pub longest_wait: u64,
    /// The holds by length, as the waits.
    pub holds: Vec<u64>,
    /// The longest hold.
    pub longest_hold: u64,
    /// The task of the longest hold in words, and the place of its call. `None`: not known.
    pub longest_holder: Option<(String, String)>,
}

/// A group of tasks, spawned at one place, that only grows: perhaps a leak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Growing {
    /// The oldest of the tasks.
    pub first: TaskKey,
    /// Its name; empty if it has none.
    pub name: String,
    /// The place where the tasks were spawned.
    pub spawned_at: String,
    /// The number of the tasks.
    pub count: u64,
    /// By how much the number has grown in the time `over`, without ever falling.
    pub grown: u64,
    /// The time of the looks.
    pub over: u64,
    /// The wait of the oldest task.
    pub wait: Option<Wait>,
}

/// A task that waits for what only ended tasks could give, such as a lock that an ended task never
/// gave back. Only a cancel ends such a wait.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// The task that waits.
    pub task: TaskKey,
    /// The name of the task; empty if it has none.
    pub name: String,
    /// The place where the task was spawned.
    pub spawned_at: String,
    /// The wait.
    pub wait: Wait,
}

/// What a task in events is called.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskName {
    /// The number of the task.
    pub id: TaskKey,
    /// The name of the task; empty if it has none, or if the task has ended since.
    pub name: String,
    /// The place where the task was spawned.
    pub spawned_at: String,
}

/// An event of the flight recorder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The time since the console started. Of a step: its end. Unless steps were timed: of the last
    /// reading of the clock before.
    pub at: u64,
    /// The task.
    pub task: TaskKey,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened, in an event of the flight recorder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    /// The task was spawned.
    Spawned,
    /// The task was stepped, and waits after that, or is ready again.
    Stepped {
        /// The length of the step, if steps were timed.
        took: Option<u64>,
        /// The trap of the wait that was polled last.
        trap: Option<String>,
        /// The place of that wait.
        place: Option<String>,
    },
    /// The task has ended.
    Ended {
        /// The length of the last step, if steps were timed.
        took: Option<u64>,
        /// `returned`, `panicked` or `dropped`.
        exit: String,
    },
}

/// The profile of the tasks that have the same name and place of spawn.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProfileRow {
    /// The name of the tasks; empty if they have none.
    pub name: String,
    /// The place where they were spawned.
    pub spawned_at: String,
    /// The number of tasks that were spawned meanwhile.
    pub spawned: u64,
    /// The number of steps.
    pub steps: u64,
    /// The time of these steps.
    pub busy: u64,
    /// The longest of them.
    pub longest: u64,
    /// The number of waits that followed steps, by trap.
    pub waits: Vec<(String, u64)>,
}

/// Stacks of a process by samples: of its processor time, and of the time that steps were blocked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    /// The number of samples a second of processor time.
    pub frequency: u32,
    /// Each stack with the number of its samples of processor time.
    pub stacks: Vec<Stack>,
    /// The reason why there are no samples.
    #[serde(default)]
    pub none: Option<String>,
    /// The stacks in which steps were blocked: the kernel's thread slept in the system.
    #[serde(default)]
    pub blocked: Vec<BlockedSteps>,
    /// The programs and libraries that the addresses of the stacks are in.
    #[serde(default)]
    pub modules: Vec<Module>,
}

/// A stack in which steps of the same task were blocked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BlockedSteps {
    /// The name of the task; empty if it has none.
    pub name: String,
    /// The place where the task was spawned.
    pub spawned_at: String,
    /// The time that the steps were blocked so.
    pub time: u64,
    /// The stack of the kernel's thread, with the number of samples.
    pub stack: Stack,
}

/// A program or a library that a process has in its memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Module {
    /// The path of the file, as the process sees it.
    pub path: String,
    /// The build id, in hexadecimal digits, if the file has one.
    pub build_id: Option<String>,
    /// The address where the module begins.
    pub begin: u64,
    /// The first address behind the module.
    pub end: u64,
    /// The difference between an address in the process and that in the file.
    pub bias: u64,
}

/// A stack of a thread.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stack {
    /// The name of the thread.
    pub thread: String,
    /// The functions, the outermost first, as `name (file:line)`. If there are addresses: the
    /// address in the file and the name of the file, as `0x1a2b (file)`.
    pub frames: Vec<String>,
    /// The number of samples.
    pub count: u64,
    /// The addresses of the instructions in the process, the outermost first. A caller's is in its
    /// call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<u64>,
}

/// A kernel that is in one step for too long, or was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Blocked {
    /// The kernel.
    pub kernel: u32,
    /// The step.
    pub step: Step,
    /// The stack of the thread, if it could be read.
    pub stack: Option<Stack>,
    /// The reason why there is no stack.
    #[serde(default)]
    pub no_stack: Option<String>,
    /// What the thread does, by the system: `running`, or `sleeps in` and the function of the
    /// system's kernel.
    #[serde(default)]
    pub thread: Option<String>,
    /// The programs and libraries that the addresses of the stack are in.
    #[serde(default)]
    pub modules: Vec<Module>,
    /// The time since the step was over. `None`: the kernel is in the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ago: Option<u64>,
}
