//! The environment variables of a simulation. Each test runs this program again with other
//! variables and checks its output.

use std::time::Duration;

use pikake::sim::Runs;
use pikake::thread::run_in_thread;
use pikake::{random, sleep};

use crate::support::child::{self, child, is_child};

const PROGRAM: &str = "environment::program";
const HANGS: &str = "environment::hangs";

/// A program for a child. Its seed 17 fails.
#[test]
fn program() {
    if !is_child(PROGRAM) {
        return;
    }
    Runs::new("program").seeds(3).run(|sim| {
        let seed = sim.seed();
        println!("seed {seed}");
        sim.client("a", move || async move {
            sleep(Duration::from_millis(random::range(1..1_000_000))).await.unwrap();
            assert_ne!(seed, 17, "this panic is part of the test");
        });
    });
}

/// A program for a child, which hangs in a closure or in a step.
#[test]
fn hangs() {
    const MOMENT: Option<Duration> = Some(Duration::from_millis(300));
    if !is_child(HANGS) {
        return;
    }
    let in_a_closure = std::env::var_os("IN_A_CLOSURE").is_some();
    Runs::new("hangs").seeds(1).run(|sim| {
        sim.hang_after(MOMENT).client("stuck", move || async move {
            sleep(Duration::from_secs(7)).await.unwrap();
            match in_a_closure {
                true => run_in_thread(park_for_ever).await.unwrap(),
                false => park_for_ever(),
            }
        });
    });
}

fn park_for_ever() {
    loop {
        std::thread::park();
    }
}

#[test]
fn hang_report_names_the_closure_or_step() {
    for (variables, what) in [
        (&[("IN_A_CLOSURE", "1")][..], "the closure awaited at sim/tests/sim/environment.rs:"),
        (&[], "the step of task 1 has not"),
    ] {
        let (is_good, printed) = start(HANGS, variables);
        assert!(!is_good, "{printed}");
        for expected in [
            "simulation failed: it hangs. On host `stuck`, ",
            what,
            "seed 0, at 7.",
            "replay:  PIKAKE_SEED=0 cargo test environment::hangs",
        ] {
            assert!(printed.contains(expected), "{expected:?} is not in {printed}");
        }
    }
}

/// Whether the program succeeded, and its output.
fn run(variables: &[(&str, &str)]) -> (bool, String) {
    start(PROGRAM, variables)
}

fn start(program: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let mut child = child(program);
    for variable in ["PIKAKE_SEED", "PIKAKE_RUNS", "PIKAKE_TRACE"] {
        child.env_remove(variable);
    }
    child::run(child.envs(variables.iter().copied()))
}

fn seeds(printed: &str) -> Vec<u64> {
    let seed = |line: &str| line.rsplit_once("seed ")?.1.parse().ok();
    printed.lines().filter_map(seed).collect()
}

#[test]
fn program_sets_the_seed_count_by_default() {
    let (is_good, printed) = run(&[]);
    assert!(is_good, "{printed}");
    assert_eq!(seeds(&printed), [0, 1, 2]);
}

#[test]
fn pikake_runs_sets_the_seed_count() {
    let (is_good, printed) = run(&[("PIKAKE_RUNS", "5")]);
    assert!(is_good, "{printed}");
    assert_eq!(seeds(&printed), [0, 1, 2, 3, 4]);
}

#[test]
fn pikake_seed_is_first_and_alone_only() {
    let (is_good, printed) = run(&[("PIKAKE_SEED", "8")]);
    assert!(is_good, "{printed}");
    assert_eq!(seeds(&printed), [8]);
    let (is_good, printed) = run(&[("PIKAKE_SEED", "0x10"), ("PIKAKE_RUNS", "1")]);
    assert!(is_good, "{printed}");
    assert_eq!(seeds(&printed), [16]);
}

#[test]
fn failing_seed_ends_the_test_with_a_replay() {
    let (is_good, printed) = run(&[("PIKAKE_SEED", "15"), ("PIKAKE_RUNS", "5")]);
    assert!(!is_good, "{printed}");
    assert_eq!(seeds(&printed), [15, 16, 17]);
    assert!(
        printed.contains("replay:  PIKAKE_SEED=17 cargo test environment::program"),
        "{printed}"
    );
    let (is_good, printed) = run(&[("PIKAKE_SEED", "17")]);
    assert!(!is_good && seeds(&printed) == [17], "{printed}");
}

#[test]
fn pikake_trace_records_every_event() {
    let trace = |name: &str, variables: &[(&str, &str)]| {
        let name = format!("pikake-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let variables = [variables, &[("PIKAKE_TRACE", path.to_str().unwrap())]].concat();
        run(&variables);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    };
    let alone = trace("alone", &[("PIKAKE_SEED", "17")]);
    let in_a_row = trace("row", &[("PIKAKE_SEED", "14"), ("PIKAKE_RUNS", "9")]);
    assert_eq!(alone, in_a_row, "a seed says what happens, wherever it is run");
    assert!(alone.contains("a: task 1 waits: sleep at sim/tests/sim/environment.rs:"), "{alone}");
    assert!(alone.trim_end().ends_with("a: task 1 ends: Panicked"), "{alone}");
    assert_ne!(alone, trace("other", &[("PIKAKE_SEED", "16")]));
}

#[test]
fn invalid_number_is_refused() {
    let (is_good, printed) = run(&[("PIKAKE_RUNS", "many")]);
    assert!(!is_good && printed.contains("PIKAKE_RUNS is no number: \"many\""), "{printed}");
}
