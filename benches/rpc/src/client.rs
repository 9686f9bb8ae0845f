//! The client's process. Its lines are the answers to the lines of the program that measures.
//!
//! ```text
//! closed TASKS CALLS   `CALLS` calls from each of `TASKS` tasks; then says how many seconds they took
//! open RATE SECONDS    so many calls a second, whether or not answers come; then says median and 99th percentile in µs
//! idle COUNT           so many further connections, each with one call, that stay open; then says so
//! ```

use std::io::{self, BufRead};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::WARM_UP;
use crate::processes::processor_nanos;
use crate::stacks::{Caller, Latencies};

/// Follows the lines until there are no more.
pub async fn follow<C: Caller>(address: &str) {
    let caller = C::connect(address).await;
    let mut idle = Vec::new();
    println!("connected");
    for line in io::stdin().lock().lines() {
        let line = line.expect("lines of text");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<usize>().expect("a number");
        match words[0] {
            "closed" => {
                let began = Instant::now();
                caller.call_from_tasks(number(1), number(2)).await;
                println!("{}", began.elapsed().as_secs_f64());
            }
            "open" => {
                let latencies = open(&caller, number(1), number(2)).await;
                let latencies = latencies.lock().expect("nobody panics");
                let at = |share| latencies.value_at_quantile(share) as f64 / 1e3;
                println!("{} {} {}", at(0.5), at(0.99), latencies.len());
            }
            _ => {
                for _ in 0..number(1) {
                    idle.push(C::connect(address).await);
                }
                println!("open");
            }
        }
    }
}

/// Has a number of tasks make a number of calls each, and prints the processor time of a call in
/// nanoseconds. The server is in the same process.
pub async fn together<C: Caller>(address: &str, tasks: usize, each: usize) {
    let caller = C::connect(address).await;
    caller.call_from_tasks(tasks, each.div_ceil(WARM_UP)).await;
    let before = processor_nanos("self").expect("the system tells it");
    caller.call_from_tasks(tasks, each).await;
    let nanos = processor_nanos("self").expect("the system tells it") - before;
    println!("{}", nanos as f64 / (tasks * each) as f64);
}

/// Makes calls at a rate. Latencies count from the moment at which a call is due. A thread keeps
/// the time, so that the timers of the runtimes have no part in it.
async fn open<C: Caller>(caller: &C, rate: usize, seconds: usize) -> Latencies {
    let latencies = Latencies::new(Histogram::new(3).expect("three digits").into());
    let (due, mut dues) = tokio::sync::mpsc::unbounded_channel();
    let count = rate * seconds;
    let began = Instant::now() + Duration::from_millis(100);
    thread::spawn(move || {
        for number in 0..count {
            let moment = began + Duration::from_secs_f64(number as f64 / rate as f64);
            thread::sleep(moment.saturating_duration_since(Instant::now()));
            due.send(moment).expect("the task receives until the end");
        }
    });
    while let Some(due) = dues.recv().await {
        caller.call_in_background(due, &latencies);
    }
    while latencies.lock().expect("nobody panics").len() < count as u64 {
        // The answer of a later call comes later.
        caller.call_from_tasks(1, 1).await;
    }
    latencies
}
