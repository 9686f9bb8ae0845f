//! Instructions per operation, by valgrind: the same on every run and machine, but for a few.

use std::env;
use std::process::{Command, Stdio};

use crate::load;

/// How a program is run so that its instructions are counted.
const CALLGRIND: [&str; 3] = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Their servers stand still under valgrind, in io_uring_enter(2).
const ON_IO_URING: [&str; 3] = ["monoio", "compio", "glommio"];

/// The same for servers, in case one stands still.
const CALLGRIND_FOR_A_WHILE: [&str; 6] =
    ["timeout", "--signal=KILL", "30", CALLGRIND[0], CALLGRIND[1], CALLGRIND[2]];

/// Instructions per operation of a workload: the difference between two runs of different length,
/// so that whatever is done once, as starting the runtime, does not count. `None` where the runtime
/// has no such workload, or does not run under valgrind.
pub fn slope(
    workload: &str,
    runtime: &str,
    size: usize,
    (short, long): (usize, usize),
) -> Option<f64> {
    let run = |rounds| instructions(workload, runtime, size, rounds);
    Some((run(long)? - run(short)?) / (size * (long - short)) as f64)
}

fn instructions(workload: &str, runtime: &str, size: usize, rounds: usize) -> Option<f64> {
    if load::is_load(workload) {
        if ON_IO_URING.contains(&runtime) {
            return None;
        }
        // The warm-up is a tenth, so it adds to the slope.
        let loaded = load::run(workload, runtime, size, rounds, &CALLGRIND_FOR_A_WHILE)?;
        return collected(&loaded.errors).map(|count| count / load::PASSES);
    }
    let [valgrind, arguments @ ..] = CALLGRIND;
    let output = Command::new(valgrind)
        .args(arguments)
        .arg(env::current_exe().expect("this program has a path"))
        .args(["one", workload, runtime, &size.to_string(), &rounds.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("valgrind is installed");
    let report = output.status.success().then_some(output.stderr)?;
    collected(&String::from_utf8_lossy(&report))
}

/// The number in valgrind's report.
fn collected(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}
