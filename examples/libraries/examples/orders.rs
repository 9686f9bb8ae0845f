//! axum and a pool of PostgreSQL connections on pikake: an API whose statements end when their
//! client has gone.
//!
//! ```text
//! POST /orders/tea: 1 ordered
//! POST /orders/rum: 404 no such item
//! GET /orders: ["tea"]
//! a report whose client has gone: cancelled on the server
//! ```
//!
//! It starts a PostgreSQL of its own on loopback (`cargo xtask install` installs it), or takes the
//! one whose port is its argument, as user `pikake` without a password.

use std::error::Error;
use std::io;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Json, Router};
use pikake::http::axum::Local;
use pikake::http::axum::routing::{get, post};
use pikake::net::{TcpListener, TcpStream};
use pikake::postgres::{Config, Pool};
use pikake::yield_now;
use xtask::{Kind, Server};

const TABLES: &str = "CREATE TABLE IF NOT EXISTS item (name TEXT PRIMARY KEY, stock INTEGER NOT NULL CHECK (stock >= 0)); \
    CREATE TABLE IF NOT EXISTS ordered (id SERIAL, name TEXT NOT NULL REFERENCES item); \
    INSERT INTO item VALUES ('tea', 10), ('jam', 0) ON CONFLICT DO NOTHING";

/// An error of the database, for the client and the log.
struct Failed(StatusCode, String);

impl<E: Error> From<E> for Failed {
    fn from(error: E) -> Self {
        eprintln!("an order failed: {error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "try again later\n".to_owned())
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (self.0, self.1).into_response()
    }
}

// ANCHOR: order
/// Takes one from the stock and notes the order, or does neither: however the handler ends.
async fn order(
    State(pool): State<Local<Pool>>,
    Path(name): Path<String>,
) -> Result<String, Failed> {
    let mut connection = pool.get().await?;
    let transaction = connection.transaction().await?;
    let take = "UPDATE item SET stock = stock - 1 WHERE name = $1 AND stock > 0";
    if transaction.execute(take, &[&name]).await? == 0 {
        return Err(Failed(StatusCode::NOT_FOUND, "no such item\n".to_owned()));
    }
    transaction.execute("INSERT INTO ordered (name) VALUES ($1)", &[&name]).await?;
    let count = transaction.query_one("SELECT count(*) FROM ordered", &[]).await?;
    transaction.commit().await?;
    Ok(format!("{} ordered\n", count.get::<_, i64>(0)))
}
// ANCHOR_END: order

async fn orders(State(pool): State<Local<Pool>>) -> Result<Json<Vec<String>>, Failed> {
    let connection = pool.get().await?;
    let rows = connection.query("SELECT name FROM ordered ORDER BY id", &[]).await?;
    Ok(Json(rows.iter().map(|row| row.get(0)).collect()))
}

/// Takes an hour. When the client has gone, the server interrupts this, and the database cancels
/// the statement.
async fn report(State(pool): State<Local<Pool>>) -> Result<String, Failed> {
    let connection = pool.get().await?;
    connection.execute("SELECT pg_sleep(3600) AS report", &[]).await?;
    Ok("all is well\n".to_owned())
}

fn router(pool: Pool) -> Router {
    Router::new()
        .route("/orders/{name}", post(order))
        .route("/orders", get(orders))
        .route("/report", get(report))
        .with_state(Local::new(pool))
}

/// One request; the status, unless it is 200, and the body.
async fn ask(port: u16, request: &str) -> io::Result<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("{request} HTTP/1.0\r\nhost: orders\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            length => answer.extend_from_slice(&buffer[..length]),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).filter(|status| *status != "200");
    Ok(status.into_iter().chain([body.trim()]).collect::<Vec<_>>().join(" "))
}

/// Whether the report runs in the database.
async fn reports(pool: &Pool) -> Result<bool, Box<dyn Error>> {
    let text =
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%AS report'";
    Ok(pool.get().await?.query_one(text, &[]).await?.get::<_, i64>(0) == 1)
}

pub(crate) async fn demo(database: u16) -> Result<Vec<String>, Box<dyn Error>> {
    let config = format!("postgres://pikake@127.0.0.1:{database}/postgres");
    let pool = config.parse::<Config>()?.pool(4);
    pool.get().await?.batch_execute(TABLES).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let server = pikake::spawn(pikake::http::serve(listener, router(pool.clone())).into_future());

    let mut lines = Vec::new();
    for request in ["POST /orders/tea", "POST /orders/rum", "GET /orders"] {
        lines.push(format!("{request}: {}", ask(port, request).await?));
    }
    let client = pikake::spawn(ask(port, "GET /report"));
    while !reports(&pool).await? {
        yield_now().await?;
    }
    client.abort();
    while reports(&pool).await? {
        yield_now().await?;
    }
    lines.push("a report whose client has gone: cancelled on the server".to_owned());
    server.cancel().await?;
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
