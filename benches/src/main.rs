//! The command line. See the README.

use std::error::Error;
use std::process::ExitCode;

use pikake_benches::figures::print;
use pikake_benches::gate::gate;
use pikake_benches::measure::Selection;
use pikake_benches::results::Results;
use pikake_benches::servers::serve;
use pikake_benches::workloads::{self, WORKLOADS, Workload, columns};

const USAGE: &str = "\
usage: bench all [NAME | REPETITIONS]...     everything below but the gate; results.tsv
       bench instr [NAME]...                 instructions per operation, under callgrind
       bench time [NAME | REPETITIONS]...    times, rates, latencies, memory
       bench growth [NAME | REPETITIONS]...  costs per operation of 1,000 to 1,000,000 tasks
       bench table FILE                      the tables of an earlier results.tsv
       bench gate [--renew]                  compares instructions with the baselines
       bench one WORKLOAD RUNTIME [SIZE ROUNDS]
NAME is a workload or a runtime.";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["all", ref names @ ..] => {
            let mut selection = Selection::new(names)?;
            selection.instructions()?;
            selection.times()?;
            selection.growth()?;
            selection.print();
        }
        ["instr", ref names @ ..] => {
            let mut selection = Selection::new(names)?;
            selection.instructions()?;
            selection.print();
        }
        ["time", ref names @ ..] => {
            let mut selection = Selection::new(names)?;
            selection.times()?;
            selection.print();
        }
        ["growth", ref names @ ..] => {
            let mut selection = Selection::new(names)?;
            selection.growth()?;
            selection.print();
        }
        ["table", file] => println!("{}", Results::read(file)?.tables()),
        ["gate"] => return Ok(ExitCode::from(u8::from(!gate(false)?))),
        ["gate", "--renew"] => {
            gate(true)?;
        }
        ["one", workload, runtime] => {
            let known = WORKLOADS.iter().find(|known| known.name == workload);
            let known = known.ok_or("there is no such workload")?;
            return Ok(one(workload, runtime, known.size, known.rounds));
        }
        ["one", workload, runtime, size, rounds] => {
            return Ok(one(workload, runtime, size.parse()?, rounds.parse()?));
        }
        // What `one` starts for workloads with sockets.
        ["serve", service, runtime] => {
            serve(service.parse()?, runtime).ok_or("there is no such runtime")?;
        }
        _ => {
            eprintln!(
                "{USAGE}\nruntimes and channels: {}\nworkloads, usual sizes, operations:",
                columns().collect::<Vec<_>>().join(" ")
            );
            for Workload { name, size, operation, .. } in WORKLOADS {
                eprintln!("    {name:28} {size:9} {operation}");
            }
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn one(workload: &str, runtime: &str, size: usize, rounds: usize) -> ExitCode {
    let Some(figures) = workloads::run(workload, runtime, size, rounds) else {
        eprintln!("{runtime} has no {workload}");
        return ExitCode::FAILURE;
    };
    print(&figures);
    ExitCode::SUCCESS
}
