//! The gate: pikake's instructions per operation must not grow unseen.

use std::fs;
use std::io;

use crate::callgrind;
use crate::workloads::{RUNTIMES, WORKLOADS};

/// What is committed, next to this package's manifest.
const BASELINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines.tsv");

/// Counts, and compares with what is committed; or writes that anew. Returns whether all is well.
pub fn gate(renew: bool) -> io::Result<bool> {
    let baselines = if renew { String::new() } else { fs::read_to_string(BASELINES)? };
    let baseline = |name: &str| {
        let mut lines = baselines.lines().filter_map(|line| line.split_once('\t'));
        lines.find(|(known, _)| *known == name)?.1.parse::<f64>().ok()
    };
    let mut text =
        String::from("# workload, instructions per operation; written by `gate --renew`\n");
    let mut passed = true;
    for workload in WORKLOADS {
        let Some(tolerance) = workload.tolerance else { continue };
        let name = workload.name;
        let rounds = workload.slope.expect("what is gated can be counted");
        let measure = || {
            let slope = callgrind::slope(name, RUNTIMES[0], workload.size, rounds);
            slope.ok_or_else(|| io::Error::other(format!("{name} does not run")))
        };
        let mut count = measure()?;
        let is_over = |baseline| count > baseline * (1.0 + tolerance / 100.0);
        if renew || baseline(name).is_some_and(is_over) {
            // Under valgrind the calibration of the clock fails now and then, and each reading
            // takes a hundred instructions more.
            let mut counts = [count, measure()?, measure()?];
            counts.sort_by(f64::total_cmp);
            count = counts[1];
        }
        text.push_str(&format!("{name}\t{count:.1}\n"));
        match baseline(name) {
            _ if renew => println!("{name:12} {count:9.1}"),
            None => {
                println!("{name:12} {count:9.1}  has no baseline: run `gate --renew`");
                passed = false;
            }
            Some(baseline) => {
                let change = (count / baseline - 1.0) * 100.0;
                let verdict = match change {
                    _ if change > tolerance => "TOO MANY",
                    _ if change < -tolerance => "better: `gate --renew` keeps it so",
                    _ => "",
                };
                println!("{name:12} {count:9.1} {change:+6.1} % of {baseline:.1} {verdict}");
                passed &= change <= tolerance;
            }
        }
    }
    if renew {
        fs::write(BASELINES, text)?;
    }
    Ok(passed)
}
