//! Planted bugs: the simulator finds each within a stated number of seeds, and finds nothing in the
//! sound program.
//!
//! Each file is a small program with a switch. The sound programs run with two hundred seeds. For
//! ten thousand: `PIKAKE_RUNS=10000 cargo test --release -p pikake-sim bugs`.

use pikake::sim::{Failure, Runs, Sim};

mod double_delivery;
mod late_registration;
mod leaky_timeout;
mod lock_order;
mod lossy_cancel;
mod lost_wake_up;

/// How many seeds the sound programs are run for.
const SEEDS: u64 = 200;

/// Runs the program with its bug, which must come up within so many seeds; and then the same seed
/// again, which must fail in the same way.
fn found_within(seeds: u64, world: fn(&mut Sim, bool)) -> Box<Failure> {
    let failure = Runs::new("planted").seeds(seeds).try_run(|sim| world(sim, true)).unwrap_err();
    assert!(failure.seed < seeds, "found later than stated: by seed {}", failure.seed);
    let mut again = Sim::new(failure.seed);
    world(&mut again, true);
    if failure.plan_is_given {
        again.only_faults(failure.plan.clone());
    }
    let replayed = again.run().unwrap_err();
    assert_eq!((&replayed.cause, replayed.time), (&failure.cause, failure.time));
    eprintln!("found by seed {}: {}", failure.seed, failure.cause);
    failure
}

/// Runs the program without its bug.
fn sound(world: fn(&mut Sim, bool)) {
    let summary = Runs::new("sound").seeds(SEEDS).run(|sim| world(sim, false));
    eprintln!("no failure in {} runs", summary.runs);
}
