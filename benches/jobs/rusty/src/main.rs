//! rusty-celery's side: a worker, and a publisher without confirms, for it has none.
//!
//! ```text
//! pikake-jobs-bench-rusty publish|work <url> <number>
//! ```
//!
//! As in pikake's own (`../src/main.rs`). `number` is how many messages, or the limit of those that
//! are not acknowledged. The worker runs on the threads that `#[tokio::main]` makes, as in
//! rusty-celery's examples; with `work-1` on one.

use std::sync::Arc;
use std::time::Instant;

use celery::Celery;
use celery::prelude::*;
use tokio::runtime::{Builder, Runtime};

#[celery::task(name = "bench.noop")]
async fn noop(number: i64) -> TaskResult<i64> {
    Ok(number)
}

async fn app(url: &str, prefetch: u16) -> Arc<Celery> {
    let builder = celery::CeleryBuilder::new("bench", url).default_queue("bench");
    let app = Arc::new(builder.prefetch_count(prefetch).build().await.expect("it connects"));
    app.register_task::<noop>().await.expect("it is new");
    app
}

async fn work(url: &str, prefetch: u16) {
    app(url, prefetch).await.consume().await.expect("it works");
}

async fn publish(url: &str, count: u32) {
    let app = app(url, 1).await;
    let begun = Instant::now();
    for number in 0..count {
        app.send_task(noop::new(i64::from(number))).await.expect("it is sent");
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({"rate": rate, "cpu_us": cpu_us() / f64::from(count)}));
    app.close().await.expect("it closes");
}

/// Processor time of this process so far, in hundredths of a second.
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 1e4
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["publish", url, count] => {
            one_thread().block_on(publish(url, count.parse().expect("a number")))
        }
        ["work-1", url, limit] => {
            one_thread().block_on(work(url, limit.parse().expect("a number")))
        }
        ["work", url, limit] => {
            let runtime = Runtime::new().expect("a runtime");
            runtime.block_on(work(url, limit.parse().expect("a number")));
        }
        _ => panic!("see the head of main.rs for what can be said"),
    }
}
