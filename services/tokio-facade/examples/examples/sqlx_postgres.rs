//! sqlx with PostgreSQL on pikake: a pool, queries, transactions, LISTEN, and statements that are
//! interrupted.
//!
//! ```text
//! accounts: ann has 100, bob has 20
//! rows one by one: sum 5050
//! transfer: ann has 70, bob has 50
//! transfer that was dropped: ann has 70, bob has 50
//! transfer of too much: account_balance_check
//! notified on `orders`: number 7
//! statement past its deadline: timed out
//! transfer past its deadline: a deadline passed, rolled back
//! afterwards: ann has 70, bob has 50
//! 50 queries on at most 4 connections: sum 1225
//! pool without a free connection: PoolTimedOut
//! ```
//!
//! It starts a PostgreSQL of its own on loopback (`cargo xtask install` installs it), or takes the
//! one whose port is its argument, as user `pikake` without a password.
//!
//! The futures of sqlx contain no trap, so they cannot return an interruption: a deadline drops
//! them. sqlx rolls back a transaction that is dropped before the connection is used again.
//! `future_wait` returns the interruption, and leaves time to roll back.

use std::error::Error;
use std::future::ready;
use std::time::Duration;

use futures::{TryStreamExt, future};
use pikake::thread::run_in_thread;
use pikake::{future_wait, timeout_after};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::{FromRow, Postgres, Transaction};
use xtask::{Kind, Server};

/// The connections of the pool.
const CONNECTIONS: u32 = 4;

/// How long a statement may take that never ends.
const SHORT: Duration = Duration::from_millis(100);

/// How long a transfer may take that never ends: enough for its first statements.
const PATIENCE: Duration = Duration::from_secs(1);

/// Queries that are under way together.
const AT_ONCE: i32 = 50;

#[derive(FromRow)]
struct Account {
    name: String,
    balance: i32,
}

async fn accounts(pool: &PgPool) -> sqlx::Result<String> {
    let accounts = sqlx::query_as("SELECT name, balance FROM account ORDER BY name");
    let accounts: Vec<Account> = accounts.fetch_all(pool).await?;
    let shown = accounts.iter().map(|Account { name, balance }| format!("{name} has {balance}"));
    Ok(shown.collect::<Vec<_>>().join(", "))
}

async fn queries(pool: &PgPool) -> Result<Vec<String>, Box<dyn Error>> {
    let create =
        "CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER CHECK (balance >= 0))";
    sqlx::query(create).execute(pool).await?;
    for (name, balance) in [("ann", 100), ("bob", 20)] {
        let insert = sqlx::query("INSERT INTO account VALUES ($1, $2)").bind(name).bind(balance);
        assert_eq!(insert.execute(pool).await?.rows_affected(), 1);
    }
    let mut lines = vec![format!("accounts: {}", accounts(pool).await?)];

    let numbers = sqlx::query_scalar::<_, i32>("SELECT generate_series(1, 100)").fetch(pool);
    let sum = numbers.try_fold(0, |sum, number| ready(Ok(sum + number))).await?;
    lines.push(format!("rows one by one: sum {sum}"));
    Ok(lines)
}

/// A transfer that is not committed.
async fn transfer(pool: &PgPool, amount: i32) -> sqlx::Result<Transaction<'static, Postgres>> {
    let mut transaction = pool.begin().await?;
    for (name, change) in [("ann", -amount), ("bob", amount)] {
        let change = sqlx::query("UPDATE account SET balance = balance + $2 WHERE name = $1")
            .bind(name)
            .bind(change);
        change.execute(&mut *transaction).await?;
    }
    Ok(transaction)
}

async fn transactions(pool: &PgPool) -> Result<Vec<String>, Box<dyn Error>> {
    transfer(pool, 30).await?.commit().await?;
    let mut lines = vec![format!("transfer: {}", accounts(pool).await?)];
    drop(transfer(pool, 30).await?);
    lines.push(format!("transfer that was dropped: {}", accounts(pool).await?));
    let error = transfer(pool, 1000).await.expect_err("ann has less");
    let constraint = error.as_database_error().and_then(|error| error.constraint());
    lines.push(format!("transfer of too much: {}", constraint.ok_or("another error")?));
    Ok(lines)
}

async fn notification(pool: &PgPool) -> Result<Vec<String>, Box<dyn Error>> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen("orders").await?;
    sqlx::query("SELECT pg_notify('orders', $1)").bind("number 7").execute(pool).await?;
    let notification = listener.recv().await?;
    let (channel, payload) = (notification.channel(), notification.payload());
    Ok(vec![format!("notified on `{channel}`: {payload}")])
}

/// A transfer that waits for long, and rolls back when it is interrupted.
async fn slow_transfer(pool: &PgPool) -> Result<(), Box<dyn Error>> {
    let mut transaction = future_wait(transfer(pool, 30)).await??;
    let process = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *transaction);
    let process: i32 = future_wait(process).await??;
    let statement = sqlx::query("SELECT pg_sleep(3600)").execute(&mut *transaction);
    let mut statement = Box::pin(statement);
    if let Err(interrupted) = future_wait(&mut statement).await {
        // The deadline does not interrupt this. A rollback alone would wait for the statement.
        let cancel = sqlx::query("SELECT pg_cancel_backend($1)").bind(process);
        cancel.execute(pool).await?;
        statement.await.expect_err("it was cancelled");
        transaction.rollback().await?;
        return Err(interrupted.into());
    }
    drop(statement);
    transaction.commit().await?;
    Ok(())
}

async fn interrupted(pool: &PgPool) -> Result<Vec<String>, Box<dyn Error>> {
    // Its connection returns to the pool when the server has answered.
    let statement = sqlx::query("SELECT pg_sleep(1)").execute(pool);
    let timed_out = timeout_after(SHORT, statement).await.expect_err("it takes longer");
    let mut lines = vec![format!("statement past its deadline: {timed_out}")];

    let body = async {
        let error = slow_transfer(pool).await.expect_err("it takes longer");
        lines.push(format!("transfer past its deadline: {error}, rolled back"));
    };
    timeout_after(PATIENCE, body).await.expect_err("it was interrupted");
    lines.push(format!("afterwards: {}", accounts(pool).await?));
    Ok(lines)
}

async fn shared(pool: &PgPool) -> Result<Vec<String>, Box<dyn Error>> {
    let same = |number| sqlx::query_scalar::<_, i32>("SELECT $1").bind(number).fetch_one(pool);
    let numbers = future::try_join_all((0..AT_ONCE).map(same)).await?;
    let sum: i32 = numbers.iter().sum();
    let size = pool.size();
    assert!(size <= CONNECTIONS);
    let mut lines =
        vec![format!("{AT_ONCE} queries on at most {CONNECTIONS} connections: sum {sum}")];

    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(SHORT);
    let small = options.connect_with((*pool.connect_options()).clone()).await?;
    let connection = small.acquire().await?;
    let error = small.acquire().await.expect_err("the only connection is in use");
    assert!(matches!(error, sqlx::Error::PoolTimedOut));
    lines.push("pool without a free connection: PoolTimedOut".to_owned());
    drop(connection);
    small.close().await;
    Ok(lines)
}

pub(crate) async fn demo(port: u16) -> Result<Vec<String>, Box<dyn Error>> {
    let options = PgConnectOptions::new().host("127.0.0.1").port(port);
    let options = options.username("pikake").database("postgres");
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await?;
    let mut lines = queries(&pool).await?;
    lines.extend(transactions(&pool).await?);
    lines.extend(notification(&pool).await?);
    lines.extend(interrupted(&pool).await?);
    lines.extend(shared(&pool).await?);
    pool.close().await;
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (port, _server) = match std::env::args().nth(1) {
        Some(port) => (port.parse()?, None),
        None => {
            let server = run_in_thread(|| Server::start(Kind::Postgres)).await??;
            (server.port(), Some(server))
        }
    };
    for line in demo(port).await? {
        println!("{line}");
    }
    Ok(())
}
