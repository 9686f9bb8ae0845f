//! Measuring: each run in a process of its own, one runtime after the other, so that what changes
//! on the machine meanwhile hits all alike.

use std::env;
use std::fs;
use std::io;
use std::process::{Command, Stdio};

use crate::callgrind;
use crate::results::Results;
use crate::workloads::{RUNTIMES, WORKLOADS, Workload, can, columns};

/// Where results go, in the current folder.
const RESULTS: &str = "results.tsv";

/// How often a time is measured, unless told otherwise.
const REPETITIONS: usize = 5;

/// The sizes at which costs per operation are compared with each other.
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Up to which size instructions are counted; callgrind takes minutes for more.
const COUNTED_SIZE: usize = 100_000;

/// The workloads that are looked at in all those sizes.
const GROWING: [&str; 5] = ["spawn_join", "yield", "ping_pong", "timeout", "sleeps"];

/// What is measured: everything, or what was named.
pub struct Selection {
    workloads: Vec<&'static Workload>,
    runtimes: Vec<&'static str>,
    repetitions: usize,
    results: Results,
}

impl Selection {
    /// From names of workloads and runtimes, and a number of repetitions, in any order.
    pub fn new(arguments: &[&str]) -> Result<Self, String> {
        let mut selection = Self {
            workloads: Vec::new(),
            runtimes: Vec::new(),
            repetitions: REPETITIONS,
            results: Results::default(),
        };
        for argument in arguments {
            if let Some(workload) = WORKLOADS.iter().find(|known| known.name == *argument) {
                selection.workloads.push(workload);
            } else if let Some(runtime) = columns().find(|known| known == argument) {
                selection.runtimes.push(runtime);
            } else if let Ok(number) = argument.parse() {
                selection.repetitions = number;
            } else {
                return Err(format!("there is no workload and no runtime {argument}"));
            }
        }
        if selection.workloads.is_empty() {
            selection.workloads = WORKLOADS.iter().collect();
        }
        if selection.runtimes.is_empty() {
            selection.runtimes = columns().collect();
        }
        Ok(selection)
    }

    /// Instructions per operation.
    pub fn instructions(&mut self) -> io::Result<()> {
        for workload in self.workloads.clone() {
            let Some(rounds) = workload.slope else { continue };
            for runtime in self.who_can(workload) {
                self.count(workload, runtime, workload.size, rounds, "instructions");
            }
            self.save()?;
        }
        Ok(())
    }

    /// Times, rates, latencies, memory.
    pub fn times(&mut self) -> io::Result<()> {
        for workload in self.workloads.clone() {
            let Workload { size, rounds, .. } = *workload;
            for _ in 0..self.repetitions {
                for runtime in self.who_can(workload) {
                    for (metric, value) in one(workload.name, runtime, size, rounds)? {
                        self.add(workload, size, &metric, runtime, value);
                    }
                }
            }
            self.save()?;
        }
        Ok(())
    }

    /// Costs per operation at several sizes: processor time of all, and pikake's instructions.
    pub fn growth(&mut self) -> io::Result<()> {
        let named = self.workloads.clone();
        let growing = named.iter().filter(|workload| GROWING.contains(&workload.name));
        for (workload, size) in growing.flat_map(|workload| SIZES.map(|size| (*workload, size))) {
            // As many operations in all, as far as possible.
            let rounds = if workload.name == "sleeps" { 1 } else { SIZES[3] / size };
            for _ in 0..self.repetitions {
                for runtime in self.who_can(workload) {
                    let mut figures = one(workload.name, runtime, size, rounds)?;
                    figures.retain(|(metric, _)| metric == "cpu_ns");
                    for (_, value) in figures {
                        self.add(workload, size, "cpu_ns_by_size", runtime, value);
                    }
                }
            }
            if size <= COUNTED_SIZE {
                self.count(workload, RUNTIMES[0], size, (1, 2), "instructions_by_size");
            }
            self.save()?;
        }
        Ok(())
    }

    fn count(
        &mut self,
        workload: &Workload,
        runtime: &str,
        size: usize,
        rounds: (usize, usize),
        metric: &str,
    ) {
        if let Some(slope) = callgrind::slope(workload.name, runtime, size, rounds) {
            self.add(workload, size, metric, runtime, slope);
        }
    }

    fn add(&mut self, workload: &Workload, size: usize, metric: &str, runtime: &str, value: f64) {
        println!("{}\t{size}\t{metric}\t{runtime}\t{value:.1}", workload.name);
        self.results.add(workload.name, size, metric, runtime, value);
    }

    fn who_can(&self, workload: &Workload) -> Vec<&'static str> {
        let all = self.runtimes.iter().copied();
        all.filter(|runtime| can(runtime, workload.name)).collect()
    }

    fn save(&self) -> io::Result<()> {
        fs::write(RESULTS, self.results.tsv())
    }

    pub fn print(&self) {
        println!("{}", self.results.tables());
    }
}

/// Runs a workload in a process of its own; no figures if the runtime has no such thing.
fn one(
    workload: &str,
    runtime: &str,
    size: usize,
    rounds: usize,
) -> io::Result<Vec<(String, f64)>> {
    let output = Command::new(env::current_exe()?)
        .args(["one", workload, runtime, &size.to_string(), &rounds.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let figures = lines.lines().filter_map(|line| {
        let (metric, value) = line.split_once('\t')?;
        Some((String::from(metric), value.parse().ok()?))
    });
    Ok(figures.collect())
}
