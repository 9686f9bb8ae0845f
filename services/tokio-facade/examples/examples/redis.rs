//! redis on pikake: commands, a pipeline, pub/sub, and a connection that survives its server.
//!
//! ```text
//! set and get: 42
//! pipeline: [1, 2, 3]
//! transaction: [1, 11]
//! published: to 1 subscriber
//! subscriber: hello
//! blocked until a deadline: timed out
//! after the deadline: 42
//! 100 commands at once: the last answer is 100
//! server has gone: an I/O error
//! server is back: 42
//! ```
//!
//! It starts a Redis of its own on loopback (`cargo xtask install` installs it).

use std::error::Error;
use std::time::Duration;

use futures::{StreamExt, future};
use pikake::thread::run_in_thread;
use pikake::{TaskError, timeout_after};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands, Client};
use xtask::{Kind, Server};

/// How long a command may block.
const SHORT: Duration = Duration::from_millis(100);

/// Commands that are under way together.
const AT_ONCE: usize = 100;

async fn commands(manager: &mut ConnectionManager) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = Vec::new();
    let () = manager.set("answer", 42).await?;
    let answer: u32 = manager.get("answer").await?;
    lines.push(format!("set and get: {answer}"));

    let mut pipeline = redis::pipe();
    pipeline.incr("count", 1).incr("count", 1).incr("count", 1);
    let counts: Vec<u32> = pipeline.query_async(manager).await?;
    lines.push(format!("pipeline: {counts:?}"));

    let mut transaction = redis::pipe();
    transaction.atomic().del("count").incr("count", 11);
    let answers: Vec<u32> = transaction.query_async(manager).await?;
    lines.push(format!("transaction: {answers:?}"));
    Ok(lines)
}

async fn messages(
    client: &Client,
    manager: &mut ConnectionManager,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut subscriber = client.get_async_pubsub().await?;
    subscriber.subscribe("news").await?;
    let count: u32 = manager.publish("news", "hello").await?;
    let message = subscriber.on_message().next().await.ok_or("the server has gone")?;
    let text: String = message.get_payload()?;
    Ok(vec![format!("published: to {count} subscriber"), format!("subscriber: {text}")])
}

/// A command that is given up, and many that share the connection afterwards.
async fn shared(
    client: &Client,
    manager: &mut ConnectionManager,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = Vec::new();
    // Such a command blocks its connection, so it has one of its own.
    let mut own = client.get_multiplexed_async_connection().await?;
    let blocking = own.blpop::<_, Option<(String, String)>>("never", 0.0);
    let timed_out = timeout_after(SHORT, blocking).await.expect_err("the list stays empty");
    lines.push(format!("blocked until a deadline: {timed_out}"));
    let answer: u32 = manager.get("answer").await?;
    lines.push(format!("after the deadline: {answer}"));

    let () = manager.del("count").await?;
    let increment = |_| {
        let mut manager = manager.clone();
        async move { manager.incr::<_, _, u32>("count", 1).await }
    };
    let answers = future::try_join_all((0..AT_ONCE).map(increment)).await?;
    let last = answers.iter().max().ok_or("there are answers")?;
    lines.push(format!("{AT_ONCE} commands at once: the last answer is {last}"));
    Ok(lines)
}

/// Commands of the server block.
async fn command(server: &Server, command: &'static str) -> Result<(), TaskError> {
    let server = server.clone();
    run_in_thread(move || drop(server.command(command))).await
}

async fn reconnects(
    server: &Server,
    manager: &mut ConnectionManager,
) -> Result<Vec<String>, Box<dyn Error>> {
    command(server, "kill").await?;
    let error = manager.get::<_, u32>("answer").await.expect_err("the server has gone");
    assert!(error.is_io_error(), "{error}");
    command(server, "start").await?;
    // The manager may be between two attempts to connect, and fails until one succeeds.
    let answer = loop {
        match manager.get::<_, u32>("answer").await {
            Err(error) if error.is_io_error() => {}
            answer => break answer?,
        }
    };
    Ok(vec!["server has gone: an I/O error".to_owned(), format!("server is back: {answer}")])
}

pub(crate) async fn demo(server: &Server) -> Result<Vec<String>, Box<dyn Error>> {
    let client = Client::open(server.fresh_url())?;
    let config = ConnectionManagerConfig::new().set_max_delay(SHORT);
    let mut manager = client.get_connection_manager_with_config(config).await?;
    let mut lines = commands(&mut manager).await?;
    lines.extend(messages(&client, &mut manager).await?);
    lines.extend(shared(&client, &mut manager).await?);
    lines.extend(reconnects(server, &mut manager).await?);
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = run_in_thread(|| Server::start(Kind::Redis)).await??;
    for line in demo(&server).await? {
        println!("{line}");
    }
    Ok(())
}
