//! One side of a measurement, as a process: `run` starts these beside those of Celery and dramatiq.
//!
//! ```text
//! pikake-jobs-bench publish|work|latency|endless|alone <url> <classic|quorum> <number>
//! pikake-jobs-bench bare-publish|bare-work|bare-latency|bare-answer <port> <vhost> <number>
//! ```
//!
//! A command that measures prints one line of JSON: seconds, and processor time of the process in
//! microseconds. Workers (and `endless`, which publishes) run until they are killed; `number` is
//! their concurrency, or prefetch. `alone` publishes and works in one process.

mod bare;
mod bare_latency;
mod jobs;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.cast_unsigned(), u32::try_from(used.tv_nsec).unwrap_or_default())
}

/// What a number of messages took, since it was made.
struct Taken(Instant, Duration);

impl Taken {
    fn begin() -> Self {
        Self(Instant::now(), cpu())
    }

    fn told(&self, number: usize) -> serde_json::Value {
        let (seconds, cpu) = (self.0.elapsed().as_secs_f64(), (cpu() - self.1).as_secs_f64());
        let number = number as f64;
        serde_json::json!({"rate": number / seconds, "cpu_us": cpu * 1e6 / number})
    }

    fn print(&self, number: usize) {
        println!("{}", self.told(number));
    }
}

/// How long messages took, until they were confirmed, and until the answer was there.
#[derive(Default)]
struct Latencies(Vec<[Duration; 2]>);

impl Latencies {
    fn add(&mut self, confirmed: Duration, answered: Duration) {
        self.0.push([confirmed, answered]);
    }

    /// All of them, in milliseconds.
    fn print(&self) {
        let all = |which: usize| -> Vec<f64> {
            self.0.iter().map(|times| times[which].as_secs_f64() * 1e3).collect()
        };
        println!("{}", serde_json::json!({"confirmed": all(0), "answered": all(1)}));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a number");
    match words[..] {
        ["publish", url, kind, count] => jobs::publish(url, kind, number(count)),
        ["work", url, kind, concurrency] => jobs::work(url, kind, number(concurrency)),
        ["latency", url, kind, count] => jobs::latency(url, kind, number(count)),
        ["endless", url, kind, at_once] => jobs::endless(url, kind, number(at_once)),
        ["alone", url, kind, count] => jobs::alone(url, kind, number(count)),
        ["bare-latency", port, host, count] => {
            bare_latency::ask(number(port) as u16, host, number(count))
        }
        ["bare-answer", port, host, prefetch] => {
            bare_latency::answer(number(port) as u16, host, number(prefetch) as u16)
        }
        ["bare-publish", port, host, count] => {
            bare::publish(number(port) as u16, host, number(count))
        }
        ["bare-work", port, host, prefetch] => {
            bare::work(number(port) as u16, host, number(prefetch) as u16)
        }
        _ => panic!("see the head of main.rs for what can be said"),
    }
}
