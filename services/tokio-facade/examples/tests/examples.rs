//! Runs each example against its server, and compares its output with the header of its file.

use std::error::Error;
use std::time::Duration;

use pikake::timeout_after;
use pikake_tokio_examples::Moto;
use xtask::{Kind, Server};

#[path = "../examples/aws.rs"]
mod aws;
#[path = "../examples/redis.rs"]
mod redis_example;
#[path = "../examples/reqwest.rs"]
mod reqwest_example;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../examples/sim_redis.rs"]
mod sim_redis;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../examples/sim_reqwest.rs"]
mod sim_reqwest;
#[path = "../examples/sqlx_postgres.rs"]
mod sqlx_postgres;
#[path = "../examples/sqlx_sqlite.rs"]
mod sqlx_sqlite;

/// An example that has not ended by then never will.
const HANG: Duration = Duration::from_secs(60);

/// The block of an example's header that shows what it prints.
fn promised(source: &str) -> Vec<&str> {
    let header = source.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<&str> = header.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.split(|line| line.starts_with("```")).nth(1).expect("a block of output").to_vec()
}

fn check(source: &str, demo: impl Future<Output = Result<Vec<String>, Box<dyn Error>>> + 'static) {
    let lines = pikake::run(async { timeout_after(HANG, demo).await });
    assert_eq!(lines.expect("it does not hang").expect("it works"), promised(source));
}

#[test]
fn reqwest_asks_over_http_and_https() {
    check(include_str!("../examples/reqwest.rs"), reqwest_example::demo());
}

#[test]
fn sqlx_uses_postgres() {
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    check(include_str!("../examples/sqlx_postgres.rs"), sqlx_postgres::demo(server.port()));
}

#[test]
fn sqlx_uses_sqlite() {
    check(include_str!("../examples/sqlx_sqlite.rs"), sqlx_sqlite::demo());
}

#[test]
fn redis_survives_its_server() {
    let Some(server) = Server::start_or_skip(Kind::Redis) else { return };
    let demo = async move { redis_example::demo(&server).await };
    check(include_str!("../examples/redis.rs"), demo);
}

#[test]
fn s3_stores_objects() {
    let Some(server) = Moto::start_or_skip() else { return };
    check(include_str!("../examples/aws.rs"), aws::demo(server.port()));
}

#[test]
fn client_orders_while_the_network_fails() {
    let lines = sim_reqwest::demo("client_orders_while_the_network_fails");
    assert_eq!(lines, promised(include_str!("../examples/sim_reqwest.rs")));
}

#[test]
fn client_outlives_its_connections() {
    let lines = sim_redis::demo("client_outlives_its_connections");
    assert_eq!(lines, promised(include_str!("../examples/sim_redis.rs")));
}
