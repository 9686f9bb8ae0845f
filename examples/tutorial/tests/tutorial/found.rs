//! The simulator finds the bug of the stages `server` and `https`. The tutorial shows its report.

use pikake::sim::{Runs, Sim};
use pulse::check;
use pulse::world::world;

/// How many of the last events the tutorial shows.
const EVENTS: usize = 4;

/// The report without most of its events, and without the tasks of the service.
fn shortened(report: &str) -> String {
    let (head, rest) = report.split_once("last events:\n").expect("a report has events");
    let (events, tasks) = rest.split_once("tasks:\n").expect("a report has tasks");
    let events: Vec<&str> = events.lines().collect();
    let events = events[events.len() - EVENTS..].join("\n");
    let (_, tasks) = tasks.split_once("  host `pulse`").expect("a report has every host");
    format!("{head}last events:\n  …\n{events}\ntasks:\n  …\n  host `pulse`{tasks}")
}

#[test]
fn simulator_finds_the_bug() {
    let mut failure =
        Runs::new("results_are_new").seeds(200).try_run(|sim| world(sim, check)).unwrap_err();
    // The reader's test has this name.
    failure.test = Some("results_are_new".to_owned());
    let report = shortened(&failure.to_string());
    assert!(report == include_str!("../../output/simulated.txt"), "the report is now:\n{report}");

    // The seed and the faults repeat it.
    let mut again = Sim::new(failure.seed);
    world(&mut again, check);
    let again = again.only_faults(failure.plan.clone()).run().unwrap_err();
    assert_eq!((again.cause, again.time), (failure.cause, failure.time));
}
