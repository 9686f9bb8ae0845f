//! How fast a broker is: messages confirmed, and consumed and acknowledged, per second, and what
//! that costs this process.
//!
//! ```text
//! cargo run --release -p pikake-jobs --example broker_rate -- sqlite:///tmp/rate.db 20000
//! ```
//!
//! The time is the process' (all its threads), so for `sqlite://` the database is in it; for
//! `amqp://` the server is another process.

use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{Broker, Message, QueueOptions, open};
use pikake_kernel::Kernel;
use pikake_traps::spawn;
use rustix::time::{ClockId, clock_gettime};

const QUEUE: &str = "rate";

/// So many publish at the same time; so many deliveries are unacknowledged at most.
const AT_ONCE: usize = 200;

/// CPU time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanoseconds)
}

/// A message as large as one of Celery's.
fn message(number: usize) -> Message {
    let mut message = Message::default();
    let id = format!("00000000-0000-4000-8000-{number:012}");
    message.content_type = Some("application/json".to_owned());
    message.content_encoding = Some("utf-8".to_owned());
    message.correlation_id = Some(id.clone());
    for (name, value) in [("lang", "rs"), ("task", "tasks.add"), ("argsrepr", "(2, 3)")] {
        message.headers.insert(name.to_owned(), value.into());
    }
    for name in ["root_id", "id"] {
        message.headers.insert(name.to_owned(), id.clone().into());
    }
    for name in ["parent_id", "group", "group_index", "eta", "expires", "shadow"] {
        message.headers.insert(name.to_owned(), serde_json::Value::Null);
    }
    message.headers.insert("retries".to_owned(), 0.into());
    message.headers.insert("timelimit".to_owned(), serde_json::json!([null, null]));
    message.body =
        br#"[[2, 3], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]"#
            .to_vec();
    message
}

fn report(what: &str, count: usize, since: (Instant, Duration)) {
    let (took, used) = (since.0.elapsed(), cpu() - since.1);
    println!(
        "{what:>16} {:>9.0} /s {:>7.1} µs of CPU each",
        count as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / count as f64
    );
}

async fn measure(url: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let broker = open(url).await?;
    broker.declare(QUEUE, &QueueOptions::default()).await?;
    broker.purge(QUEUE).await?;
    let since = (Instant::now(), cpu());
    let publisher = |first: usize| {
        let broker: Rc<dyn Broker> = broker.clone();
        spawn(async move {
            for number in (first..count).step_by(AT_ONCE) {
                broker.publish(QUEUE, message(number), None).await?;
            }
            Ok::<_, pikake_jobs::broker::PublishError>(())
        })
    };
    let tasks: Vec<_> = (0..AT_ONCE).map(publisher).collect();
    for task in tasks {
        task.await??;
    }
    report("publish", count, since);
    let since = (Instant::now(), cpu());
    let mut deliveries = broker.consume(QUEUE, AT_ONCE as u16).await?;
    for _ in 0..count {
        let Some(delivery) = deliveries.next().await? else { break };
        let broker = broker.clone();
        spawn(async move { broker.ack(delivery.receipt).await }).detach();
    }
    broker.close().await?;
    report("consume and ack", count, since);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("which broker? give its URL, as memory://")?;
    let count = arguments.next().map_or(Ok(20_000), |count| count.parse())?;
    let kernel = Kernel::new()?;
    kernel.run(measure(&url, count))
}
