//! The price of the flight recorder, and of timing each step: a loop of yields on kernels that are
//! the same otherwise. See the README.

use std::time::Instant;

use pikake::traps::inspect::{record_current_kernel, record_waits_of_current_kernel, time_steps};
use pikake::{Kernel, yield_now};

const MODES: [&str; 4] = ["plain", "filed", "recorded", "timed"];

/// How often each kernel is measured, in turn with the others.
const REPETITIONS: usize = 101;

/// The least number of steps of all tasks together in one measurement: about a millisecond, so that
/// in most of them the system does not give the processor to others.
const STEPS: usize = 50_000;

/// The least number of steps of each task.
const ROUNDS: usize = 8;

/// A kernel that does what the name of the mode says.
fn kernel(mode: &str) -> Kernel {
    let kernel = Kernel::new().expect("a kernel");
    let set = kernel.enter(|| match mode {
        "filed" => record_waits_of_current_kernel(),
        "recorded" => record_current_kernel(),
        "timed" => {
            record_current_kernel();
            time_steps(true);
        }
        _ => {}
    });
    set.expect("no kernel runs on this thread");
    kernel
}

/// Makes `tasks` tasks yield so often that there are `steps` steps, and returns the nanoseconds of
/// a step.
fn measure(kernel: &Kernel, tasks: usize, steps: usize) -> f64 {
    let rounds = steps / tasks;
    kernel.run(async {
        let begin = Instant::now();
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                pikake::spawn(async move {
                    for _ in 0..rounds {
                        yield_now().await.expect("no task is interrupted");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        begin.elapsed().as_nanos() as f64 / steps as f64
    })
}

/// The least of several times: other work on the machine only adds to a time.
fn least(times: Vec<f64>) -> f64 {
    times.into_iter().fold(f64::INFINITY, f64::min)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, steps] = &arguments[..] {
        // For callgrind.
        let steps = steps.parse().expect("a number of steps");
        measure(&kernel(mode), 100, steps);
        return;
    }
    println!("tasks\t{}\tnanoseconds of a step", MODES.join("\t"));
    for tasks in [1, 100, 1_000, 10_000] {
        let kernels = MODES.map(kernel);
        let mut times = [const { Vec::new() }; MODES.len()];
        for _ in 0..REPETITIONS {
            for (kernel, times) in kernels.iter().zip(&mut times) {
                times.push(measure(kernel, tasks, STEPS.max(ROUNDS * tasks)));
            }
        }
        let [plain, filed, recorded, timed] = times.map(least);
        println!("{tasks}\t{plain:.1}\t{filed:.1}\t{recorded:.1}\t{timed:.1}");
    }
}
