//! Stacks by the signal SIGPROF.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::{fs, thread, time::Duration};

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use nix::time::ClockId;
use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder, Symbol};

use crate::model::{Samples, Stack};
use crate::observed::shown;
use crate::stacks::NoStack;

/// The number of samples a second of processor time: no multiple of the usual frequencies of
/// programs.
const FREQUENCY: c_int = 99;

/// The libraries whose code is never interrupted for a stack: the unwinder itself, which is not
/// made for that, and code whose description is wrong on some systems.
const NEVER_IN: [&str; 2] = ["libgcc", "vdso"];

/// The descriptors that a stack needs: for pprof's file, for the program's with the names, and for
/// those of `/proc`.
const DESCRIPTORS: usize = 4;

/// The samples of a stack that a thread is asked for, before the thread counts as one that takes no
/// signals.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIES: usize = 10;

/// The time from a signal to the look whether there is a sample.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRY: Duration = Duration::from_millis(20);

/// Samples of the stacks of all threads, by the processor time that they use.
pub(crate) struct Sampler(ProfilerGuard<'static>);

impl Sampler {
    /// Begins to take samples. Blocks, the first time for as long as the program's names take to be
    /// read.
    pub(crate) fn start() -> Result<Self, NoStack> {
        start(FREQUENCY).map(Self)
    }

    /// Ends the sampling. Blocks while the names of functions are looked up.
    pub(crate) fn finish(self) -> Result<Samples, NoStack> {
        let stacks = stacks(&self.0)?;
        Ok(Samples { frequency: FREQUENCY as u32, stacks, none: None })
    }
}

/// Begins to take samples. One user of the handler at a time.
fn start(frequency: c_int) -> Result<ProfilerGuard<'static>, NoStack> {
    // Once pprof has failed for want of a file, it fails for the rest of the process's life.
    let files: Result<Vec<File>, _> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    files.map_err(|error| format!("no descriptor is left for it: {error}"))?;
    let builder = ProfilerGuardBuilder::default().frequency(frequency).blocklist(&NEVER_IN);
    builder.build().map_err(|error| match error {
        pprof::Error::Running => "another profile is being made".into(),
        error => error.to_string(),
    })
}

/// The samples so far, each stack once.
fn stacks(guard: &ProfilerGuard<'_>) -> Result<Vec<Stack>, NoStack> {
    let report = guard.report().build().map_err(|error| error.to_string())?;
    let mut stacks: BTreeMap<(String, Vec<String>), u64> = BTreeMap::new();
    for (stack, count) in &report.data {
        let key = (stack.thread_name_or_id(), frames(stack));
        *stacks.entry(key).or_default() += u64::try_from(*count).unwrap_or_default();
    }
    let stack = |((thread, frames), count)| Stack { thread, frames, count };
    Ok(stacks.into_iter().map(stack).collect())
}

/// The functions of a stack, the outermost first, without those of the handler.
fn frames(stack: &Frames) -> Vec<String> {
    let frames = stack.frames.iter().flatten().filter(|symbol| !is_of_handler(symbol));
    let mut frames: Vec<String> = frames.map(frame).collect();
    frames.reverse();
    frames
}

/// Whether a function is one of those that take the sample.
fn is_of_handler(symbol: &Symbol) -> bool {
    let name = symbol.name();
    name.starts_with("backtrace::") || name.contains("pprof::backtrace::")
}

/// A function as `name (file:line)`.
fn frame(symbol: &Symbol) -> String {
    let name = shown(&symbol.name());
    match (&symbol.filename, symbol.lineno) {
        (Some(file), Some(line)) => format!("{name} ({}:{line})", short(&file.to_string_lossy())),
        (Some(file), None) => format!("{name} ({})", short(&file.to_string_lossy())),
        (None, _) => name,
    }
}

/// The path of a source file, without the part that says where on the building machine a library
/// was.
fn short(path: &str) -> &str {
    let after = |text: &str, marks: usize| {
        let at = path.find(text)? + text.len();
        path[at..].splitn(marks + 1, '/').nth(marks)
    };
    // `…/registry/src/REGISTRY/CRATE/…` and `/rustc/COMMIT/library/…`.
    after("/registry/src/", 1).or_else(|| after("/rustc/", 1)).unwrap_or(path)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn of_thread(tid: u32) -> Result<Stack, NoStack> {
    // So few samples of processor time that none comes meanwhile, as a rule.
    let guard = start(1)?;
    let name = fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
        .map_err(|error| format!("the thread cannot be looked at: {error}"))?;
    let thread_id = tid.try_into().map_err(|_| "the system numbers threads otherwise")?;
    let notify = SigevNotify::SigevThreadId { signal: Signal::SIGPROF, thread_id, si_value: 0 };
    let timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify));
    let mut timer = timer.map_err(|error| format!("the thread gets no signal: {error}"))?;
    let at_once = Expiration::OneShot(Duration::from_nanos(1).into());
    for _ in 0..TRIES {
        let set = timer.set(at_once, TimerSetTimeFlags::empty());
        set.map_err(|error| format!("the thread gets no signal: {error}"))?;
        thread::sleep(TRY);
        let found = stacks(&guard)?.into_iter().find(|stack| stack.thread == name.trim_end());
        if let Some(stack) = found {
            return Ok(Stack { count: 1, ..stack });
        }
    }
    Err("the thread took no signal".into())
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn paths_are_shown_without_the_building_machine() {
        let cases = [
            ("src/main.rs", "src/main.rs"),
            ("/home/me/app/src/main.rs", "/home/me/app/src/main.rs"),
            (
                "/home/me/.cargo/registry/src/index-1/slab-0.4.12/src/lib.rs",
                "slab-0.4.12/src/lib.rs",
            ),
            ("/rustc/0123/library/std/src/thread.rs", "library/std/src/thread.rs"),
            ("/rustc/", "/rustc/"),
        ];
        for (path, shown) in cases {
            assert_eq!(short(path), shown);
        }
    }
}
