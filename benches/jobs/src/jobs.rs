//! pikake's side.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake::jobs::{App, QueueOptions};

use crate::{Latencies, Taken};

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
        .jobs([noop::JOB, valued::JOB])
}

/// Sends so many jobs. `next` counts those that were begun.
async fn send(count: usize, at_once: usize, next: Rc<Cell<usize>>) {
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let next = next.clone();
            pikake::spawn(async move {
                while next.get() < count {
                    next.set(next.get() + 1);
                    noop::delay(next.get() as i64).await.expect("it is confirmed");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("it sends");
    }
}

pub fn publish(url: &str, kind: &str, count: usize) {
    pikake::run(async {
        let app = app(url, kind).connect().await.expect("it connects");
        let taken = Taken::begin();
        send(count, AT_ONCE, Rc::default()).await;
        taken.print(count);
        app.close().await.expect("it closes");
    });
}

/// Publishes until it is killed, and says every second how many that were.
pub fn endless(url: &str, kind: &str, at_once: usize) {
    pikake::run(async {
        let _app = app(url, kind).connect().await.expect("it connects");
        let sent = Rc::new(Cell::new(0));
        let _sending = pikake::spawn(send(usize::MAX, at_once, sent.clone())).cancel_on_drop();
        loop {
            pikake::sleep(Duration::from_secs(1)).await.expect("nobody ends it");
            println!("{}", sent.get());
        }
    });
}

pub fn work(url: &str, kind: &str, concurrency: usize) {
    pikake::run(async {
        app(url, kind).concurrency(concurrency).run_worker().await.expect("it works");
    });
}

/// Publishes all, then works them off, in one process; and how fast each tenth of them was.
pub fn alone(url: &str, kind: &str, count: usize) {
    pikake::run(async {
        let app = app(url, kind).concurrency(100).connect().await.expect("it connects");
        let taken = Taken::begin();
        send(count, AT_ONCE, Rc::default()).await;
        let published = taken.told(count);
        let taken = Taken::begin();
        let worker = app.worker();
        let _worker =
            pikake::spawn(async { worker.run().await.expect("it works") }).cancel_on_drop();
        let (mut tenths, mut begun, mut before) = (Vec::new(), Instant::now(), 0);
        while before < count {
            pikake::sleep(Duration::from_millis(2)).await.expect("nobody ends it");
            let done = app.stats().all.done as usize;
            if done - before >= count / 10 || done == count {
                tenths.push((done - before) as f64 / begun.elapsed().as_secs_f64());
                (before, begun) = (done, Instant::now());
            }
        }
        let worked = taken.told(count);
        println!(
            "{}",
            serde_json::json!({"published": published, "worked": worked, "tenths": tenths})
        );
    });
}

pub fn latency(url: &str, kind: &str, count: usize) {
    pikake::run(async {
        let _app = app(url, kind).connect().await.expect("it connects");
        let mut latencies = Latencies::default();
        for number in 0..count as i64 {
            let begun = Instant::now();
            let sent = valued::delay(number).await.expect("it is sent");
            let confirmed = begun.elapsed();
            assert_eq!(sent.wait().await.expect("it comes"), number);
            latencies.add(confirmed, begun.elapsed());
        }
        latencies.print();
    });
}
