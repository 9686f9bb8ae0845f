//! The last long steps of the process's kernels, with the stacks of their threads.
//!
//! A step that blocks now and then is over when somebody looks. So the thread of the watchdog,
//! which finds it, keeps its stack.

use std::collections::VecDeque;
use std::process;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use pikake_kernel::inspect::kernels;
use pikake_traps::trigger::{Kind, fire};
use pikake_traps::{LongStep, LongStepStage, watch_long_steps};

use crate::model::{Blocked, Stack, Step, TaskKey};
use crate::observed::nanoseconds;
use crate::stacks::{self, NoStack};
use crate::text::{duration, of_task};
use crate::threads::look_at_thread;

/// The number of long steps that are kept.
const KEPT: usize = 16;

/// The functions in a line of the log.
const FUNCTIONS: usize = 8;

/// The least time between two lines with functions: their names are read from the program's file.
const NAMES_EVERY: Duration = Duration::from_secs(1);

/// A long step.
struct Kept {
    step: LongStep,
    stack: Result<Stack, NoStack>,
    /// The state of the thread in words, by the system.
    thread: Option<String>,
    ended: Option<Instant>,
}

#[derive(Default)]
struct Steps {
    kept: VecDeque<Kept>,
    named: Option<Instant>,
}

static STEPS: Mutex<Steps> = Mutex::new(Steps { kept: VecDeque::new(), named: None });

fn lock() -> MutexGuard<'static, Steps> {
    // No statement leaves a value that is half changed.
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps long steps from now on.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| watch_long_steps(see));
}

/// Sees a long step. Returns what the log says of one that was found.
fn see(step: &LongStep) -> Option<String> {
    match step.stage {
        LongStepStage::Found => Some(add(step.clone())),
        LongStepStage::Over => {
            let mut steps = lock();
            let is_this = |kept: &&mut Kept| {
                (kept.step.kernel, kept.step.number) == (step.kernel, step.number)
            };
            if let Some(kept) = steps.kept.iter_mut().rev().find(is_this) {
                kept.step.took = step.took;
                kept.ended = Some(Instant::now());
            }
            None
        }
        _ => None,
    }
}

/// Keeps a step that was found, and returns the words for the log.
fn add(step: LongStep) -> String {
    let (stack, thread) = look(&step);
    let now = Instant::now();
    let mut steps = lock();
    let is_due = steps.named.is_none_or(|before| now.duration_since(before) >= NAMES_EVERY);
    if is_due && stack.is_ok() {
        steps.named = Some(now);
    }
    if steps.kept.len() == KEPT {
        steps.kept.pop_front();
    }
    let words = in_words(&step);
    steps.kept.push_back(Kept { step, stack: stack.clone(), thread, ended: None });
    drop(steps);
    let functions = match stack {
        Ok(stack) if is_due => {
            let frames = stacks::names_in_process(&stack);
            let functions: Vec<&str> = of_task(&frames).take(FUNCTIONS).collect();
            format!("; in {}", functions.join(", called by "))
        }
        _ => String::new(),
    };
    fire(Kind::LongStep, || format!("{words}{functions}"));
    format!("{functions}; `pikake blocked {}` shows the stack", process::id())
}

/// The step for a recording.
fn in_words(step: &LongStep) -> String {
    let name = match &*step.name {
        "" => String::new(),
        name => format!(" `{name}`"),
    };
    let (kernel, task, at) = (step.kernel, step.task, step.spawned_at);
    let took = duration(nanoseconds(step.took));
    format!("task {kernel}.{task}{name}, spawned at {at}, is in one step for {took}")
}

/// The stack of the thread that is in a step, and what the thread does.
fn look(step: &LongStep) -> (Result<Stack, NoStack>, Option<String>) {
    let kernel = kernels().into_iter().find(|kernel| kernel.id() == step.kernel);
    let Some((kernel, tid)) = kernel.and_then(|kernel| Some((kernel.clone(), kernel.tid()?)))
    else {
        return (Err("the system does not number its threads".into()), None);
    };
    let (thread, stack) = look_at_thread(tid);
    // A stack that was taken after the step is no stack of the step.
    match kernel.current_step() {
        Some(now) if now.number == step.number => (stack, thread),
        _ => (Err("the step was over before its stack was taken".into()), None),
    }
}

/// The last long steps that are over, the latest first.
pub(crate) fn over() -> Vec<Blocked> {
    let steps = lock();
    let over = steps.kept.iter().rev().filter_map(|kept| Some((kept, kept.ended?)));
    over.map(|(kept, ended)| {
        let (kernel, task) = (kept.step.kernel.number(), kept.step.task.0);
        let (stack, no_stack) = match kept.stack.clone() {
            Ok(stack) => (Some(stack), None),
            Err(why) => (None, Some(why)),
        };
        Blocked {
            kernel,
            step: Step {
                task: TaskKey { kernel, task },
                name: kept.step.name.clone().into(),
                spawned_at: kept.step.spawned_at.to_string(),
                lasts: nanoseconds(kept.step.took),
            },
            modules: stack.as_ref().map(stacks::modules_of).unwrap_or_default(),
            stack,
            no_stack,
            thread: kept.thread.clone(),
            ago: Some(nanoseconds(ended.elapsed())),
        }
    })
    .collect()
}
