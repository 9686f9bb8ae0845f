//! What the client costs: messages per second and processor time per message, on a quorum queue.
//!
//! ```text
//! rate amqp://127.0.0.1:5672 [messages] [window]
//! ```
//!
//! Messages are like Celery's: a body of 78 bytes and 17 headers, persistent, each confirmed and
//! each acknowledged.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pikake_amqp::{
    Connection, ConsumeOptions, Error, Message, Options, Properties, QueueOptions, Table, Value,
    persistent, short,
};
use pikake_kernel::Kernel;
use rustix::time::{ClockId, clock_gettime};

const QUEUE: &str = "pikake-rate";
const BODY: &[u8; 78] =
    b"[[1, 2], {}, {\"callbacks\": null, \"errbacks\": null, \"chain\": null, \"chord\": 1}]";

/// What Celery puts before a task.
fn properties() -> Properties {
    let mut headers = Table::default();
    for (name, value) in [
        ("lang", "py"),
        ("task", "bench.add"),
        ("id", "9f1c2d8e-4a55-4c8d-8a53-0d8c7f8f5a10"),
        ("root_id", "9f1c2d8e-4a55-4c8d-8a53-0d8c7f8f5a10"),
        ("argsrepr", "(1, 2)"),
        ("kwargsrepr", "{}"),
        ("origin", "gen12345@worker-host"),
    ] {
        headers.insert(name.into(), Value::LongString(value.into()));
    }
    for name in
        ["shadow", "eta", "expires", "group", "group_index", "parent_id", "replaced_task_nesting"]
    {
        headers.insert(name.into(), Value::Void);
    }
    headers.insert("retries".into(), Value::LongInt(0));
    headers.insert("ignore_result".into(), Value::Boolean(false));
    let limits = vec![Value::Void, Value::Void];
    headers.insert("timelimit".into(), Value::FieldArray(limits.into()));
    persistent()
        .with_headers(headers)
        .with_content_type("application/json".into())
        .with_content_encoding("utf-8".into())
        .with_correlation_id("9f1c2d8e-4a55-4c8d-8a53-0d8c7f8f5a10".into())
        .with_reply_to("5a10f8f7-8d0c-35a8-8d4c-554a8e2d1c9f".into())
        .with_priority(0)
}

fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

async fn measured(
    what: &str,
    count: u32,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let (begun, before) = (Instant::now(), cpu());
    work.await?;
    let (took, used) = (begun.elapsed(), cpu() - before);
    let rate = f64::from(count) / took.as_secs_f64();
    let each = used.as_secs_f64() * 1e6 / f64::from(count);
    println!("{what:<16} {rate:>9.0}/s {each:>7.2} µs of client processor time a message");
    Ok(())
}

async fn run(url: &str, count: u32, window: usize) -> Result<(), Error> {
    let connection = Connection::open(&url.parse()?, Options::default()).await?;
    let channel = connection.channel().await?;
    channel.declare_queue(QUEUE, QueueOptions::quorum()).await?;
    channel.purge(QUEUE).await?;
    let failed = |error: pikake_amqp::PublishError| Error::Invalid(error.to_string());
    let message = Message {
        exchange: short("")?,
        routing_key: short(QUEUE)?,
        properties: properties(),
        body: BODY.to_vec(),
        mandatory: false,
    };
    measured("publish+confirm", count, async {
        let mut confirms = VecDeque::new();
        for _ in 0..count {
            if confirms.len() == window
                && let Some(oldest) = confirms.pop_front()
            {
                let oldest: pikake_amqp::Confirm = oldest;
                oldest.await.map_err(failed)?;
            }
            confirms.push_back(channel.post(message.clone()).await.map_err(failed)?);
        }
        for confirm in confirms {
            confirm.await.map_err(failed)?;
        }
        Ok(())
    })
    .await?;
    measured("consume+ack", count, async {
        let prefetch = window.try_into().unwrap_or(u16::MAX);
        let options = ConsumeOptions { prefetch, ..ConsumeOptions::default() };
        let mut consumer = channel.consume(QUEUE, options).await?;
        for _ in 0..count {
            // Stale only if the connection was lost, and then the figures are worth nothing.
            consumer.next().await?.ack().map_err(|error| Error::Invalid(error.to_string()))?;
        }
        consumer.cancel().await
    })
    .await?;
    channel.delete_queue(QUEUE).await?;
    connection.close().await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("rate amqp://host [messages] [window]")?;
    let count = arguments.next().map_or(Ok(50_000), |text| text.parse())?;
    let window = arguments.next().map_or(Ok(200), |text| text.parse())?;
    Ok(Kernel::new()?.run(run(&url, count, window))?)
}
