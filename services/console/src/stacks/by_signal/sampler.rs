//! Samples of stacks for a profile, taken by a thread of the console.
//!
//! * *Of processor time*, of all threads: the system sends SIGPROF to a thread that uses the
//!   processor.
//! * *Of the time that steps are blocked*: every hundredth of a second, the sampler looks at each
//!   kernel. If the kernel is in the same step as at the look before, and its thread sleeps in the
//!   system, the stack of that thread counts for the time between the two looks. The thread gets a
//!   signal for its stack, unless it has not run since the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::Location;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pikake_kernel::inspect::{CurrentStep, KernelView};

use super::handler::{Sampling, stack_of};
use super::modules::{Modules, frames};
use super::name_of_thread;
use crate::model::{BlockedSteps, Module, Samples, Stack};
use crate::observed::{nanoseconds, shown};
use crate::stacks::{NoStack, state_of};

/// The number of samples a second of processor time: no multiple of the usual frequencies of
/// programs.
const FREQUENCY: u32 = 99;

/// The time between two looks.
const TICK: Duration = Duration::from_millis(10);

/// The looks after which a thread that has not run gets another signal.
const SAME_STACK: u32 = 10;

/// The stacks in a part of an answer: the frame of the part has room for them.
const IN_PART: usize = 20;

/// The name of the thread.
const THREAD: &str = "pikake-profile";

/// The thread and its stack, the outermost address first.
type Key = (u32, Vec<u64>);

/// Samples of stacks, which are taken until this is dropped.
pub(crate) struct Sampler {
    /// Its drop ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<Taken>,
}

impl Sampler {
    /// Begins to take samples of the process, and of the steps of these kernels.
    pub(crate) fn start(kernels: Vec<KernelView>) -> Result<Self, NoStack> {
        let sampling = Sampling::begin(FREQUENCY)?;
        let (stop, stopped) = channel();
        let work = move || {
            let mut taken = Taken::default();
            let mut watched: Vec<Watched> = kernels.into_iter().filter_map(Watched::of).collect();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                sampling.read(|tid, stack| taken.add(tid, stack));
                watched.iter_mut().for_each(|kernel| kernel.look(&mut taken));
            }
            sampling.read(|tid, stack| taken.add(tid, stack));
            taken
        };
        let thread = thread::Builder::new().name(THREAD.into()).spawn(work);
        let thread = thread.map_err(|error| format!("there is no thread for it: {error}"))?;
        Ok(Self { stop, thread })
    }

    /// Ends the sampling. Each item is one part of the answer, since a frame has no room for all.
    pub(crate) fn finish(self) -> Result<impl Iterator<Item = Samples> + Send, NoStack> {
        let Self { stop, thread } = self;
        drop(stop);
        let taken = thread.join().map_err(|_| "the thread of the samples has panicked")?;
        let modules = Modules::read()?.of(&taken.addresses());
        Ok(taken.into_parts(modules))
    }
}

/// The samples so far.
#[derive(Default)]
struct Taken {
    threads: BTreeMap<u32, String>,
    stacks: BTreeMap<Key, u64>,
    blocked: BTreeMap<(Box<str>, &'static Location<'static>, Key), (u64, Duration)>,
}

impl Taken {
    /// Notes the name of a thread, which may have ended at the end of the profile.
    fn add_thread(&mut self, tid: u32) {
        let name = || name_of_thread(tid).unwrap_or_else(|_| tid.to_string());
        self.threads.entry(tid).or_insert_with(name);
    }

    fn add(&mut self, tid: u32, stack: Vec<u64>) {
        self.add_thread(tid);
        *self.stacks.entry((tid, stack)).or_default() += 1;
    }

    fn add_blocked(&mut self, step: &CurrentStep, key: Key, time: Duration) {
        self.add_thread(key.0);
        let (count, all) =
            self.blocked.entry((step.name.clone(), step.spawned_at, key)).or_default();
        *count += 1;
        *all += time;
    }

    fn addresses(&self) -> BTreeSet<u64> {
        let of_blocked = self.blocked.keys().flat_map(|(.., (_, stack))| stack);
        self.stacks.keys().flat_map(|(_, stack)| stack).chain(of_blocked).copied().collect()
    }

    fn into_parts(self, modules: Vec<Module>) -> impl Iterator<Item = Samples> + Send {
        let Self { threads, stacks, blocked } = self;
        let mut stacks = stacks.into_iter();
        let mut blocked = blocked.into_iter();
        let mut is_first = true;
        std::iter::from_fn(move || {
            let stack = |(tid, addresses): Key, count| Stack {
                thread: threads.get(&tid).cloned().unwrap_or_default(),
                frames: frames(&modules, &addresses),
                count,
                addresses,
            };
            let some: Vec<Stack> =
                stacks.by_ref().take(IN_PART).map(|(key, count)| stack(key, count)).collect();
            let left = IN_PART - some.len();
            let of_step =
                |((name, spawned_at, key), (count, time)): ((Box<str>, &Location<'_>, Key), _)| {
                    BlockedSteps {
                        name: shown(&name),
                        spawned_at: spawned_at.to_string(),
                        time: nanoseconds(time),
                        stack: stack(key, count),
                    }
                };
            let blocked: Vec<BlockedSteps> = blocked.by_ref().take(left).map(of_step).collect();
            let of_first = std::mem::take(&mut is_first);
            let is_there = of_first || !some.is_empty() || !blocked.is_empty();
            is_there.then(|| Samples {
                frequency: FREQUENCY,
                stacks: some,
                none: None,
                blocked,
                modules: if of_first { modules.clone() } else { Vec::new() },
            })
        })
    }
}

/// A kernel, as the last look has seen it.
struct Watched {
    kernel: KernelView,
    tid: u32,
    /// The number of the kernel's step.
    step: Option<u64>,
    at: Instant,
    stack: Option<Asleep>,
}

/// The stack of a thread that sleeps.
struct Asleep {
    stack: Vec<u64>,
    /// The times that the thread had run by then.
    runs: Option<u64>,
    looks: u32,
}

impl Watched {
    fn of(kernel: KernelView) -> Option<Self> {
        let tid = kernel.tid()?;
        Some(Self { kernel, tid, step: None, at: Instant::now(), stack: None })
    }

    fn look(&mut self, taken: &mut Taken) {
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.at, now));
        let step = self.kernel.current_step();
        let number = step.as_ref().map(|step| step.number);
        let before = std::mem::replace(&mut self.step, number);
        let step = step.filter(|step| before == Some(step.number));
        let Some(step) = step.filter(|_| is_asleep(self.tid)) else {
            self.stack = None;
            return;
        };
        let runs = runs_of(self.tid);
        let known = self
            .stack
            .take()
            .filter(|it| runs.is_some() && it.runs == runs && it.looks < SAME_STACK);
        let asleep = known.or_else(|| {
            let stack = stack_of(self.tid).ok()?;
            // The stack may be that of a later step.
            let is_same = self.kernel.current_step().is_some_and(|it| it.number == step.number);
            is_same.then(|| Asleep { stack, runs: runs_of(self.tid), looks: 0 })
        });
        self.stack = asleep.map(|it| Asleep { looks: it.looks + 1, ..it });
        if let Some(it) = &self.stack {
            taken.add_blocked(&step, (self.tid, it.stack.clone()), since);
        }
    }
}

/// Whether a thread waits for something of the system.
fn is_asleep(tid: u32) -> bool {
    matches!(state_of(tid), Some('S' | 'D'))
}

/// The number of times that the system has let a thread run, if it counts them.
fn runs_of(tid: u32) -> Option<u64> {
    let counts = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    counts.split_whitespace().nth(2)?.parse().ok()
}
