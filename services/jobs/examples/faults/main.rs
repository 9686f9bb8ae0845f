//! Jobs while everything fails: worker processes are killed, the broker is killed and comes back,
//! connections are cut, reset and slow. Jobs are sent alone, in chains and in chords; some are
//! revoked, before they begin or while they run; some fail for good; and the queue is paused now
//! and then.
//!
//! At the end, each job was done, was revoked, or is dead with its reason; each chain came to its
//! value, and what follows a chord got the values of all members. No message is left. `audit.py`
//! counts: a Python program without any code of pikake, from the files that sender and workers
//! append to, and from the broker itself.
//!
//! ```text
//! cargo run --release -p pikake-jobs --example faults -- [sqlite|rabbitmq] [jobs] [workers]
//! ```
//!
//! 100,000 jobs and 3 workers, unless it is said. The program starts a RabbitMQ, and reads its dead
//! letters with the Python client of Celery: `cargo xtask install` installs both. Prints the
//! counts, and fails if a job was lost.

mod plan;
mod proxy;
mod roles;
mod run;

use std::process::ExitCode;

use plan::{Kind, Plan};
use xtask::Server;

fn main() -> ExitCode {
    if roles::play() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = std::env::args().skip(1);
    let kind = match arguments.next().as_deref() {
        None | Some("rabbitmq") => Kind::Rabbit,
        Some("sqlite") => Kind::Sqlite,
        Some(other) => {
            eprintln!(
                "there is no broker `{other}`: say sqlite or rabbitmq, then how many jobs and workers"
            );
            return ExitCode::from(2);
        }
    };
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (Ok(jobs), Ok(workers)) = (number(100_000), number(3)) else {
        eprintln!("how many jobs, and how many workers, are numbers");
        return ExitCode::from(2);
    };
    let python = run::python(kind);
    if python.find().is_none() {
        eprintln!("{}", python.hint());
        return ExitCode::FAILURE;
    }
    let rabbit = match kind {
        Kind::Sqlite => None,
        Kind::Rabbit => match Server::start(xtask::Kind::RabbitMq) {
            Ok(rabbit) => Some(rabbit),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        },
    };
    let counts = run::run(&Plan::long(jobs, workers), rabbit);
    println!("{counts}");
    match counts.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
