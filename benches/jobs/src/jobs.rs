//! pikake's side.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use pikake::jobs::{App, QueueOptions};

use crate::Taken;

/// How many tasks send at the same time, each one job.
const AT_ONCE: usize = 200;

#[pikake::job(name = "bench.noop", ignore_result)]
async fn noop(number: i64) -> i64 {
    number
}

/// The same, and somebody wants the value.
#[pikake::job(name = "bench.valued")]
async fn valued(number: i64) -> i64 {
    number
}

fn app(url: &str, kind: &str) -> App {
    let mut options = QueueOptions::default();
    options.replicated = kind == "quorum";
    App::new(url)
        .expect("a URL")
        .default_queue("bench")
        .queue("bench", options)
        .jobs((noop, valued))
}

pub fn publish(url: &str, kind: &str, count: usize) {
    pikake::run(async {
        let app = app(url, kind).connect().await.expect("it connects");
        let next = Rc::new(Cell::new(0));
        let taken = Taken::begin();
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let next = next.clone();
                pikake::spawn(async move {
                    while next.get() < count {
                        next.set(next.get() + 1);
                        noop.delay(next.get() as i64).await.expect("it is confirmed");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it sends");
        }
        taken.print(count);
        app.close().await.expect("it closes");
    });
}

pub fn work(url: &str, kind: &str, concurrency: usize) {
    pikake::run(async {
        app(url, kind).concurrency(concurrency).run_worker().await.expect("it works");
    });
}

pub fn latency(url: &str, kind: &str, count: usize) {
    pikake::run(async {
        let _app = app(url, kind).connect().await.expect("it connects");
        let mut all = Vec::new();
        for number in 0..count as i64 {
            let begun = Instant::now();
            let value = valued.delay(number).await.expect("it is sent").wait().await;
            assert_eq!(value.expect("it comes"), number);
            all.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        all.sort_by(f64::total_cmp);
        let at = |part: usize| all[(all.len() * part / 100).min(all.len() - 1)];
        println!("{}", serde_json::json!({"p50": at(50), "p99": at(99)}));
    });
}
