//! An HTTP API on several cores: each kernel has a pool of PostgreSQL connections of its own, and
//! all pools have one limit in common.
//!
//! ```text
//! 32 visits at a time, on 2 kernels: 32 counted
//! at most 3 connections at once
//! an end during a visit: it was counted, and 34 requests were answered
//! connections after the end: 0
//! ```
//!
//! It starts a PostgreSQL of its own on loopback (`cargo xtask install` installs it), or takes the
//! one whose port is its argument, as user `pikake` without a password.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use pikake::http::axum::Local;
use pikake::http::axum::routing::{get, post};
use pikake::http::{Reports, ServeError, serve, serve_on_all};
use pikake::net::{TcpListener, TcpStream};
use pikake::pool::Limit;
use pikake::postgres::{Config, Manager, Pool};
use pikake::sync::shared;
use pikake::{KernelHandle, Kernels, yield_now};
use xtask::{Kind, Server};

/// The connections of all kernels together. The server has room for so many.
const CONNECTIONS: usize = 3;

/// The time in which connections come back at the end: a request has ended by then.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS visit (id SERIAL); TRUNCATE visit";

/// What the handlers of one kernel use. It stays on the kernel's thread, so it is not `Send`, and
/// needs no lock.
#[derive(Clone)]
struct App {
    pool: Pool,
    limit: Limit,
}

/// An error of the database, for the client and the log.
struct Failed(String);

impl<E: Error> From<E> for Failed {
    fn from(error: E) -> Self {
        eprintln!("a visit failed: {error}");
        Self("try again later\n".to_owned())
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}

/// Waits for a connection of its kernel. The answer is the number of connections of all kernels.
async fn visit(State(app): State<Local<App>>) -> Result<String, Failed> {
    let connection = app.pool.get().await?;
    connection.execute("INSERT INTO visit DEFAULT VALUES", &[]).await?;
    Ok(app.limit.used().to_string())
}

async fn long_visit(State(app): State<Local<App>>) -> Result<String, Failed> {
    let connection = app.pool.get().await?;
    connection.execute("SELECT pg_sleep(0.3) AS long_visit", &[]).await?;
    connection.execute("INSERT INTO visit DEFAULT VALUES", &[]).await?;
    Ok("counted".to_owned())
}

async fn visits(State(app): State<Local<App>>) -> Result<String, Failed> {
    let connection = app.pool.get().await?;
    let count = connection.query_one("SELECT count(*) FROM visit", &[]).await?;
    Ok(count.get::<_, i64>(0).to_string())
}

// ANCHOR: serve
/// Serves on this kernel and on the others until an interruption, such as a signal.
async fn serve_visits(
    address: SocketAddr,
    others: &[KernelHandle],
    config: Config,
    limit: Limit,
    on_listening: impl FnOnce(SocketAddr) + Clone + Send + 'static,
) -> Result<Reports, ServeError> {
    // Called on each kernel, so what it takes along is `Send`: the configuration and the limit.
    let server = move |listener: TcpListener| async move {
        on_listening(listener.local_addr().expect("it is bound"));
        // What it makes stays there: the pool, and the connections.
        let pool = Pool::builder(Manager::new(config)).common_limit(&limit).build();
        let router = Router::new()
            .route("/visits", post(visit).merge(get(visits)))
            .route("/long", get(long_visit))
            .with_state(Local::new(App { pool: pool.clone(), limit }));
        let report = serve(listener, router).await;
        // The requests have ended, so all connections are back.
        pool.close(CLOSE_WITHIN).await;
        report
    };
    serve_on_all(address, others, server).await
}
// ANCHOR_END: serve

/// The body of the answer to a request.
async fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let request = format!("{request} HTTP/1.0\r\nhost: visits\r\n\r\n");
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
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(io::Error::other(answer.into_owned())),
    }
}

pub(crate) async fn demo(database: u16) -> Result<Vec<String>, Box<dyn Error>> {
    const VISITS: usize = 32;
    let config: Config = format!("postgres://pikake@127.0.0.1:{database}/postgres").parse()?;
    let own = config.clone().pool(1);
    own.get().await?.batch_execute(TABLE).await?;

    let (kernels, limit) = (Kernels::start(1)?, Limit::new(CONNECTIONS));
    let addresses = Arc::new(shared::Queue::unbounded());
    let listening = addresses.clone();
    let server = pikake::spawn({
        let (others, limit) = (kernels.handles(), limit.clone());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let on_listening = move |address| _ = listening.try_put(address);
        async move { serve_visits(any, &others, config, limit, on_listening).await }
    });
    let address = addresses.get().await?.expect("it is not closed");
    // All kernels listen at one address.
    assert_eq!(addresses.get().await?, Some(address));

    let mut lines = Vec::new();
    let clients = (0..VISITS).map(|_| pikake::spawn(ask(address, "POST /visits")));
    let mut most = 0;
    for client in clients.collect::<Vec<_>>() {
        most = most.max(client.await??.parse::<usize>()?);
    }
    let count = ask(address, "GET /visits").await?;
    lines.push(format!("{VISITS} visits at a time, on 2 kernels: {count} counted"));
    assert!(most <= CONNECTIONS, "{most} connections");
    lines.push(format!("at most {CONNECTIONS} connections at once"));

    // The end waits for the requests that have begun.
    let client = pikake::spawn(ask(address, "GET /long"));
    let text = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%AS long_visit'";
    while own.get().await?.query_one(text, &[]).await?.get::<_, i64>(0) == 0 {
        yield_now().await?;
    }
    server.request_cancel("the demo is over");
    let reports = server.await??;
    let (visit, answered) = (client.await??, reports.total().answered);
    lines.push(format!(
        "an end during a visit: it was {visit}, and {answered} requests were answered"
    ));
    lines.push(format!("connections after the end: {}", limit.used()));
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
