//! Pikake's first program: a Celery-like application with an exchange, a queue and a binding of its
//! own, on RabbitMQ.
//!
//! In Python, the program was a class `AsyncCelery` with a method `setup_app`, called once the
//! channel was open:
//!
//! | there | here |
//! | --- | --- |
//! | `setup_app` | the hook of `App::setup` |
//! | `await spawn(self.periodic_info())` | `app.spawn(periodic_info(…))` |
//! | `task = await spawn(self._setup())` | `spawn(set_up(…))`, and an await of the task |
//! | `setup_qos(10, global_qos=True)` | `concurrency(10)` for all queues, `prefetch(10)` for each; quorum queues know no global limit |
//! | `declare_x`, `declare_q`, `bind_x_q`, `consume_queue` | `declare_exchange`, `App::declare`, `bind`, `App::consume` |
//!
//! The program runs until SIGINT or SIGTERM. `PIKAKE_BROKER` names another RabbitMQ than the one on
//! this machine. Before the report of its worker, the program prints something like this:
//!
//! ```text
//! hello ann
//! hello bob
//! periodic info: open; 2 done, 0 failed, 0 retried, 0 revoked, 0 dead, 0 given back, 0 running
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use pikake::amqp::{Channel, ExchangeOptions, Table, Value, persistent, short};
use pikake::jobs::{App, QueueOptions};
use pikake::{random, sleep, spawn};

const EXCHANGE: &str = "Pikake.x";
const QUEUE: &str = "Pikake.q";
const KEY: &str = "Pikake.k";

/// How often the program prints information.
const PERIOD: Duration = Duration::from_secs(1);

#[pikake::job(name = "greet")]
async fn greet(name: String) {
    println!("hello {name}");
}

/// Called once the channel is open, before anything is consumed.
async fn setup_app(app: App) -> Result<(), Box<dyn Error>> {
    app.spawn(periodic_info(app.clone()));
    // Maybe you want to track the task here.
    let task = spawn(set_up(app));
    task.await?
}

async fn set_up(app: App) -> Result<(), Box<dyn Error>> {
    let broker = app.amqp().ok_or("exchanges are RabbitMQ's: give an `amqp://` URL")?;
    let channel = broker.connection().channel().await?;
    // You might want to declare multiple exchanges and queues here.
    channel.declare_exchange(EXCHANGE, ExchangeOptions::default()).await?;
    app.declare(QUEUE, &QueueOptions::default()).await?;
    channel.bind(QUEUE, EXCHANGE, KEY, Table::default()).await?;
    app.consume(QUEUE);
    for name in ["ann", "bob"] {
        publish(&channel, name).await?;
    }
    Ok(())
}

/// Publishes a job in Celery's protocol 2 through the exchange, as senders without an `App` do.
async fn publish(channel: &Channel, name: &str) -> Result<(), Box<dyn Error>> {
    let id = format!("{:016x}", random::u64());
    let mut headers = Table::default();
    for (header, value) in [("lang", "rs"), ("task", "greet"), ("id", &id)] {
        headers.insert(header.into(), Value::LongString(value.into()));
    }
    let properties = persistent()
        .with_content_type(short("application/json")?)
        .with_content_encoding(short("utf-8")?)
        .with_correlation_id(short(&id)?)
        .with_headers(headers);
    let body = format!("[[\"{name}\"], {{}}, null]").into_bytes();
    Ok(channel.publish(EXCHANGE, KEY, properties, body, true).await?)
}

async fn periodic_info(app: App) {
    while sleep(PERIOD).await.is_ok() {
        let state = app.broker().map_or_else(|error| error.to_string(), |broker| broker.state());
        println!("periodic info: {state}; {}", app.stats().all);
    }
}

fn main() -> ExitCode {
    let app = App::new("amqp://guest:guest@localhost:5672/%2F").expect("it is a URL");
    let app =
        app.default_queue(QUEUE).jobs([greet::JOB]).concurrency(10).prefetch(10).setup(setup_app);
    // `app.start()`: what `async_celery worker` would do.
    pikake_cli::run_from(app, ["async_celery".into(), "worker".into()])
}
