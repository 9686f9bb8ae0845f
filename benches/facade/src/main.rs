//! `facade-costs CLIENT ADDRESS COUNT`: sequential requests or queries of a library that requires
//! tokio, on whatever is under tokio's name. `serve ADDRESS` is a server of HTTP for it.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use sqlx::{Connection, Executor, PgConnection, Row, SqliteConnection};

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments[..] {
        ["serve", address] => serve(address),
        ["reqwest", url, count] => runtime.block_on(reqwest(url, count.parse()?)),
        ["redis", url, count] => runtime.block_on(redis(url, count.parse()?)),
        ["postgres", url, count] => runtime.block_on(postgres(url, count.parse()?)),
        ["sqlite", url, count] => runtime.block_on(sqlite(url, count.parse()?)),
        ["tasks", _, count] => runtime.block_on(tasks(count.parse()?)),
        ["timers", _, count] => runtime.block_on(timers(count.parse()?)),
        _ => Err("see the head of main.rs".into()),
    }
}

/// Answers each request of each connection with the same few bytes.
fn serve(address: &str) -> Done {
    for stream in TcpListener::bind(address)?.incoming() {
        let mut stream = stream?;
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            while let Some(line) = lines.next().transpose()? {
                if line.is_empty() {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?;
                }
            }
            Ok(())
        });
    }
    Ok(())
}

async fn reqwest(url: &str, count: u32) -> Done {
    let client = reqwest::Client::builder().no_proxy().build()?;
    for _ in 0..count {
        assert_eq!(client.get(url).send().await?.text().await?, "hello");
    }
    Ok(())
}

async fn redis(url: &str, count: u32) -> Done {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    for number in 0..count {
        redis::cmd("SET").arg("number").arg(number).exec_async(&mut connection).await?;
    }
    Ok(())
}

async fn postgres(url: &str, count: u32) -> Done {
    let mut connection = PgConnection::connect(url).await?;
    for number in 0..count {
        let row = sqlx::query("SELECT $1::int8 + 1").bind(i64::from(number));
        let sum: i64 = row.fetch_one(&mut connection).await?.get(0);
        assert_eq!(sum, i64::from(number) + 1);
    }
    Ok(())
}

async fn sqlite(url: &str, count: u32) -> Done {
    let mut connection = SqliteConnection::connect(url).await?;
    connection.execute("CREATE TABLE numbers (number INTEGER)").await?;
    for number in 0..count {
        let insert = sqlx::query("INSERT INTO numbers VALUES (?)").bind(number);
        insert.execute(&mut connection).await?;
    }
    Ok(())
}

async fn tasks(count: u32) -> Done {
    for number in 0..count {
        assert_eq!(tokio::spawn(async move { number }).await?, number);
    }
    Ok(())
}

async fn timers(count: u32) -> Done {
    let length = std::time::Duration::from_secs(60);
    for _ in 0..count {
        tokio::time::timeout(length, tokio::task::yield_now()).await?;
    }
    Ok(())
}
