//! The same axum router, whose answers come from PostgreSQL over a pool or over one connection that
//! all requests share, on one thread of pikake or of tokio.
//!
//! ```text
//! pikake-postgres-bench <pool> <port of PostgreSQL>    prints its port, serves until its standard input ends
//! ```

use std::io::Read;
use std::net::Ipv4Addr;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use deadpool_postgres::{ManagerConfig, RecyclingMethod, Runtime};
use pikake::http::axum::{Local, local};
use pikake::postgres::{Config, Pipelined, Pool, Reset};

/// Connections of the pool: fewer than wrk has, so that requests wait for them.
const LIMIT: usize = 10;

/// Queries under way on one connection: more than wrk has connections.
const UNDER_WAY: usize = 100;

/// More connections than are ever opened: tokio's server has no limit.
const CONNECTIONS: usize = 100_000;

const TEXT: &str = "SELECT $1::INTEGER + 1";

fn failed(_: impl std::error::Error) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

/// Serves a router on pikake.
async fn serve(router: Router) {
    let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let server = pikake::http::serve(listener, router);
    server.connections(CONNECTIONS).header_timeout(None).await.unwrap();
}

fn on_pikake(database: &str, reset: Reset) {
    async fn answer(
        State(pool): State<Local<Pool>>,
        Path(id): Path<i32>,
    ) -> Result<String, StatusCode> {
        let connection = pool.get().await.map_err(failed)?;
        // At the end wrk hangs up, which interrupts this.
        let row = connection.query_one(TEXT, &[&id]).await.map_err(failed)?;
        Ok(row.get::<_, i32>(0).to_string())
    }
    pikake::run(async {
        let pool = database.parse::<Config>().unwrap().reset(reset).pool(LIMIT);
        serve(Router::new().route("/{id}", get(local(answer))).with_state(Local::new(pool))).await;
    });
}

fn on_one_connection(database: &str) {
    async fn answer(
        State(database): State<Local<Pipelined>>,
        Path(id): Path<i32>,
    ) -> Result<String, StatusCode> {
        let row = database.query_one(TEXT, &[&id]).await.map_err(failed)?;
        Ok(row.get::<_, i32>(0).to_string())
    }
    pikake::run(async {
        let database = Local::new(database.parse::<Config>().unwrap().pipelined(UNDER_WAY));
        serve(Router::new().route("/{id}", get(local(answer))).with_state(database)).await;
    });
}

fn on_tokio(database: &str, recycling_method: RecyclingMethod) {
    async fn answer(
        State(pool): State<deadpool_postgres::Pool>,
        Path(id): Path<i32>,
    ) -> Result<String, StatusCode> {
        let connection = pool.get().await.map_err(failed)?;
        let statement = connection.prepare_cached(TEXT).await.map_err(failed)?;
        let row = connection.query_one(&statement, &[&id]).await.map_err(failed)?;
        Ok(row.get::<_, i32>(0).to_string())
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let manager = deadpool_postgres::Manager::from_config(
            database.parse().unwrap(),
            tokio_postgres::NoTls,
            ManagerConfig { recycling_method },
        );
        let pool = deadpool_postgres::Pool::builder(manager).max_size(LIMIT);
        let pool = pool.runtime(Runtime::Tokio1).build().unwrap();
        let router = Router::new().route("/{id}", get(answer)).with_state(pool);
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        axum::serve(listener, router).await.unwrap();
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pool, port] = &arguments[..] else { panic!("a pool, and the port of PostgreSQL") };
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    let database = format!("host=127.0.0.1 port={port} user=pikake dbname=postgres");
    match pool.as_str() {
        "pikake" => on_pikake(&database, Reset::Transaction),
        "pikake-session" => on_pikake(&database, Reset::Session),
        "pikake-pipelined" => on_one_connection(&database),
        "deadpool" => on_tokio(&database, RecyclingMethod::Fast),
        "deadpool-clean" => on_tokio(&database, RecyclingMethod::Clean),
        _ => panic!(
            "no pool {pool}: pikake, pikake-session, pikake-pipelined, deadpool or deadpool-clean"
        ),
    }
}
