//! How fast simulators are: one scenario, on pikake's and on its peers. See the README.
//!
//! A hundred hosts, each with a hundred connections: fifty that it opened, to the next fifty hosts,
//! and fifty from others. On each, a request of 64 bytes is made once a second, and answered. A
//! packet takes one to five milliseconds. Nothing fails.

use std::process::ExitCode;
use std::time::{Duration, Instant};

mod sim_on_pikake;
#[cfg(feature = "turmoil")]
mod sim_on_turmoil;

const HOSTS: usize = 100;

/// Connections that each host opens; as many are opened to it.
const OPENED: usize = 50;

const PORT: u16 = 7;
const REQUEST: usize = 64;
const EVERY: Duration = Duration::from_secs(1);
const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));

/// How much is simulated, in seconds, unless told otherwise.
const LENGTH: u64 = 60;

const SEED: u64 = 1;

/// What a simulator says about its run, where it does.
#[derive(Default)]
struct Counts {
    requests: u64,
    events: Option<u64>,
    steps: Option<u64>,
}

fn name(host: usize) -> String {
    format!("host{host}")
}

/// The hosts to which one connects.
fn others(host: usize) -> impl Iterator<Item = usize> {
    (1..=OPENED).map(move |distance| (host + distance) % HOSTS)
}

/// When a connection makes its first request: they are spread over the second.
fn first_request(host: usize, other: usize) -> Duration {
    let number = host * OPENED + (other + HOSTS - host) % HOSTS;
    EVERY + EVERY * number as u32 / (HOSTS * OPENED) as u32
}

fn main() -> ExitCode {
    let simulator = std::env::args().nth(1).unwrap_or_default();
    let seconds = std::env::args().nth(2).map_or(Ok(LENGTH), |text| text.parse());
    let Ok(length) = seconds.map(Duration::from_secs) else { return usage() };
    let began = Instant::now();
    let counts = match simulator.as_str() {
        "pikake" => sim_on_pikake::run(length),
        #[cfg(feature = "turmoil")]
        "turmoil" => sim_on_turmoil::run(length),
        _ => return usage(),
    };
    let took = began.elapsed().as_secs_f64();
    println!("wall_s\t{took:.3}");
    println!("simulated_per_s\t{:.2}", length.as_secs_f64() / took);
    println!("requests\t{}", counts.requests);
    println!("requests_per_s\t{:.0}", counts.requests as f64 / took);
    if let (Some(events), Some(steps)) = (counts.events, counts.steps) {
        println!("events\t{events}\nevents_per_s\t{:.0}", events as f64 / took);
        println!("steps_per_s\t{:.0}", steps as f64 / took);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: sim SIMULATOR [SECONDS]    (pikake, or turmoil where it is built)");
    ExitCode::FAILURE
}
