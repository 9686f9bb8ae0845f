//! sqlx with SQLite on pikake: sqlx runs SQLite on threads of its own, whose answers come back to
//! the kernel.
//!
//! ```text
//! inserted: 3 rows
//! rows: one two three
//! committed: 4 rows
//! transaction that was dropped: 4 rows
//! failed: UNIQUE constraint failed: item.name
//! 50 queries on at most 4 connections: sum 1225
//! statement past its deadline: timed out
//! transaction past its deadline: a deadline passed, rolled back
//! afterwards: 4 rows
//! ```
//!
//! The futures of sqlx contain no trap, so they cannot return an interruption: a deadline drops
//! them, and the thread ends the statement. `future_wait` returns the interruption.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use futures::{TryStreamExt, future};
use pikake::{future_wait, sleep, timeout_after};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{Sqlite, Transaction};

/// The connections of the pool, each with a thread.
const CONNECTIONS: u32 = 4;

/// How long a statement may take.
const SHORT: Duration = Duration::from_millis(100);

/// How long a transaction may take that never ends: enough for its first statement.
const PATIENCE: Duration = Duration::from_secs(1);

/// Queries that are under way together.
const AT_ONCE: i32 = 50;

/// A statement that takes longer than `SHORT`, and ends.
const SLOW: &str = "WITH RECURSIVE counted(number) AS
    (SELECT 1 UNION ALL SELECT number + 1 FROM counted WHERE number < 3000000)
    SELECT sum(number) FROM counted";

async fn count(pool: &SqlitePool) -> sqlx::Result<String> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM item").fetch_one(pool).await?;
    Ok(format!("{count} rows"))
}

async fn queries(pool: &SqlitePool) -> Result<Vec<String>, Box<dyn Error>> {
    let create = "CREATE TABLE item (number INTEGER PRIMARY KEY, name TEXT UNIQUE)";
    sqlx::query(create).execute(pool).await?;
    for name in ["one", "two", "three"] {
        sqlx::query("INSERT INTO item (name) VALUES ($1)").bind(name).execute(pool).await?;
    }
    let mut lines = vec![format!("inserted: {}", count(pool).await?)];
    let names = sqlx::query_scalar("SELECT name FROM item ORDER BY number").fetch(pool);
    let names: Vec<String> = names.try_collect().await?;
    lines.push(format!("rows: {}", names.join(" ")));
    Ok(lines)
}

/// An insertion that is not committed.
async fn insert(pool: &SqlitePool, name: &str) -> sqlx::Result<Transaction<'static, Sqlite>> {
    let mut transaction = pool.begin().await?;
    let insert = sqlx::query("INSERT INTO item (name) VALUES ($1)").bind(name);
    insert.execute(&mut *transaction).await?;
    Ok(transaction)
}

async fn transactions(pool: &SqlitePool) -> Result<Vec<String>, Box<dyn Error>> {
    insert(pool, "four").await?.commit().await?;
    let mut lines = vec![format!("committed: {}", count(pool).await?)];
    drop(insert(pool, "five").await?);
    lines.push(format!("transaction that was dropped: {}", count(pool).await?));
    let error = insert(pool, "four").await.expect_err("there is one");
    let message = error.as_database_error().map(|error| error.message());
    lines.push(format!("failed: {}", message.ok_or("another error")?));
    Ok(lines)
}

async fn shared(pool: &SqlitePool) -> Result<Vec<String>, Box<dyn Error>> {
    let same = |number| sqlx::query_scalar::<_, i32>("SELECT $1").bind(number).fetch_one(pool);
    let numbers = future::try_join_all((0..AT_ONCE).map(same)).await?;
    let sum: i32 = numbers.iter().sum();
    Ok(vec![format!("{AT_ONCE} queries on at most {CONNECTIONS} connections: sum {sum}")])
}

/// A transaction that waits for long, and rolls back when it is interrupted.
async fn slow_transaction(pool: &SqlitePool) -> Result<(), Box<dyn Error>> {
    let transaction = future_wait(insert(pool, "five")).await??;
    if let Err(interrupted) = sleep(Duration::from_secs(3600)).await {
        // The deadline does not interrupt this.
        transaction.rollback().await?;
        return Err(interrupted.into());
    }
    transaction.commit().await?;
    Ok(())
}

async fn interrupted(pool: &SqlitePool) -> Result<Vec<String>, Box<dyn Error>> {
    let statement = sqlx::query_scalar::<_, i64>(SLOW).fetch_one(pool);
    let timed_out = timeout_after(SHORT, statement).await.expect_err("it takes longer");
    let mut lines = vec![format!("statement past its deadline: {timed_out}")];
    let body = async {
        let error = slow_transaction(pool).await.expect_err("it takes longer");
        lines.push(format!("transaction past its deadline: {error}, rolled back"));
    };
    timeout_after(PATIENCE, body).await.expect_err("it was interrupted");
    lines.push(format!("afterwards: {}", count(pool).await?));
    Ok(lines)
}

async fn demo_in(folder: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let file = folder.join("items.sqlite");
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await?;
    let mut lines = queries(&pool).await?;
    lines.extend(transactions(&pool).await?);
    lines.extend(shared(&pool).await?);
    lines.extend(interrupted(&pool).await?);
    pool.close().await;
    Ok(lines)
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    demo_in(tempfile::tempdir()?.path()).await
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
