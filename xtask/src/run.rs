//! Other programs: run with a limit, and ended when this one is told to end.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::Result;
use crate::group::{Group, LOOK};

/// How long a group may take to end after SIGTERM.
pub(crate) const ENDS: Duration = Duration::from_secs(10);

/// So long before its limit a program that has not ended is listed.
const BEFORE: Duration = Duration::from_secs(5);

/// What is known of threads; a test's thread has the name of the test.
const LISTING: [&str; 4] = ["-eLo", "pid,etimes,comm,wchan:24,args", "--sort=etimes", "--cols=180"];

fn flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

/// From now on, a signal to end is noted instead of ending this program, which has others to end
/// first.
pub(crate) fn watch_signals() {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, flag().clone()).expect("these signals may be handled");
    }
}

/// Whether this program is to end.
pub(crate) fn is_told_to_end() -> bool {
    flag().load(Ordering::Relaxed)
}

/// What cargo tells this program of its package. Build scripts that look at these variables would
/// run again, and all that depends on them be built anew, whenever cargo is called by hand.
const OF_PACKAGE: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// Cargo in the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(xtask::root()).args(arguments);
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if OF_PACKAGE.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Result {
    within(None, command)
}

/// Runs a program to its end, and ends it after a limit. Shortly before, all threads are listed.
pub(crate) fn within(limit: Option<Duration>, command: &mut Command) -> Result {
    let group = Group::start(command.stdin(Stdio::null()))?;
    wait(group, limit, &name(command))
}

/// A program and its arguments.
pub(crate) fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Waits for a program that has been started, as [`within`].
pub(crate) fn wait(mut group: Group, limit: Option<Duration>, name: &str) -> Result {
    let since = Instant::now();
    let mut is_listed = false;
    loop {
        if let Some(status) = group.status()? {
            return match status.success() {
                true => Ok(()),
                false => Err(format!("{name}: {status}").into()),
            };
        }
        if is_told_to_end() {
            group.end(ENDS);
            return Err(format!("interrupted: {name}").into());
        }
        if let Some(limit) = limit {
            let is_soon = limit.checked_sub(BEFORE).is_some_and(|before| since.elapsed() >= before);
            if is_soon && !is_listed {
                is_listed = true;
                eprintln!("error: not over within {} s: {name}", limit.as_secs());
                // Where there is no such program, there is no listing.
                drop(Command::new("ps").args(LISTING).status());
            }
            if since.elapsed() >= limit {
                group.end(ENDS);
                return Err(format!("not over within {} s: {name}", limit.as_secs()).into());
            }
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn failed_program_is_named() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh -c exit 3: exit status: 3");
        let error = run(&mut Command::new("no-such-program")).unwrap_err();
        assert!(error.to_string().starts_with("no-such-program: No such file"), "{error}");
    }

    /// The output ends when the last process that holds it has ended.
    #[test]
    fn program_over_its_limit_ends_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut group = Group::start(&mut command).unwrap();
        let mut output = group.child().stdout.take().unwrap();
        let error = wait(group, Some(Duration::from_secs(1)), &name(&command)).unwrap_err();
        assert_eq!(error.to_string(), "not over within 1 s: sh -c sleep 1000 & wait");
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }
}
