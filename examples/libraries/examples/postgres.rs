//! tokio-postgres on pikake, without tokio's runtime: `connect_raw` takes any stream.
//!
//! ```text
//! 1 + 1 = 2
//! balance after a transfer that was cut short: 100
//! balance after one that was not: 70
//! ```
//!
//! It starts a PostgreSQL of its own on loopback (`cargo xtask install` installs it), or takes the
//! one whose port is its argument, as user `pikake` without a password.

use std::error::Error;
use std::time::Duration;

use pikake::net::TcpStream;
use pikake::{Interrupted, future_wait, sleep, spawn, timeout_after};
use tokio_postgres::{Client, Config, NoTls};
use xtask::{Kind, Server};

/// Connects, and lets the connection run in a task.
async fn connect(port: u16) -> Result<Client, Box<dyn Error>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut config = Config::new();
    config.user("pikake").dbname("postgres");
    let (client, connection) = future_wait(config.connect_raw(stream, NoTls)).await??;
    spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("the connection to the database broke: {error}");
        }
    })
    .detach();
    Ok(client)
}

/// Takes 30, thinks about it, and commits; interrupted, it rolls back, by awaiting.
async fn transfer(client: &mut Client, think: Duration) -> Result<(), Box<dyn Error>> {
    let transaction = future_wait(client.transaction()).await??;
    let taken = transaction.execute("UPDATE account SET balance = balance - 30", &[]);
    future_wait(taken).await??;
    let thought: Result<(), Interrupted> = sleep(think).await;
    match thought {
        Ok(()) => transaction.commit().await?,
        // The deadline has been told; a rollback through a foreign driver has its grace.
        Err(_) => transaction.rollback().await?,
    }
    thought.map_err(Into::into)
}

async fn balance(client: &Client) -> Result<i32, Box<dyn Error>> {
    let row = future_wait(client.query_one("SELECT balance FROM account", &[])).await??;
    Ok(row.get(0))
}

pub(crate) async fn demo(port: u16) -> Result<Vec<String>, Box<dyn Error>> {
    let mut client = connect(port).await?;
    let mut lines = Vec::new();
    let row = future_wait(client.query_one("SELECT 1 + $1::INTEGER", &[&1])).await??;
    lines.push(format!("1 + 1 = {}", row.get::<_, i32>(0)));

    let setup =
        "CREATE TEMPORARY TABLE account (balance INTEGER); INSERT INTO account VALUES (100)";
    future_wait(client.batch_execute(setup)).await??;
    let slow = transfer(&mut client, Duration::from_secs(3600));
    if timeout_after(Duration::from_millis(50), slow).await.is_ok() {
        return Err("an hour's thought was not cut short".into());
    }
    let left = balance(&client).await?;
    lines.push(format!("balance after a transfer that was cut short: {left}"));
    transfer(&mut client, Duration::ZERO).await?;
    let left = balance(&client).await?;
    lines.push(format!("balance after one that was not: {left}"));
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (port, _server) = match std::env::args().nth(1) {
        Some(port) => (port.parse()?, None),
        None => {
            let server = Server::start(Kind::Postgres)?;
            (server.port(), Some(server))
        }
    };
    for line in pikake::run(demo(port))? {
        println!("{line}");
    }
    Ok(())
}
