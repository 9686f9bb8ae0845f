//! Runs each example and compares its output with the header of its file.

use std::error::Error;
use std::time::Duration;

use pikake::timeout_after;
use xtask::{Kind, Server};

#[path = "../../examples/async_channel.rs"]
mod async_channel_example;
#[path = "../../examples/async_compression.rs"]
mod async_compression_example;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../../examples/cores_pool.rs"]
mod cores_pool;
#[path = "../../examples/crawler.rs"]
mod crawler;
#[path = "../../examples/files.rs"]
mod files;
#[path = "../../examples/h2.rs"]
mod h2_example;
#[path = "../../examples/hyper.rs"]
mod hyper_example;
#[path = "../../examples/hyper_util.rs"]
mod hyper_util_example;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../../examples/orders.rs"]
mod orders;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../../examples/postgres.rs"]
mod postgres;
#[expect(dead_code, reason = "the example's main is for people")]
#[path = "../../examples/rabbitmq.rs"]
mod rabbitmq;
#[path = "../../examples/tokio_rustls.rs"]
mod tokio_rustls_example;
#[path = "../../examples/tokio_stream.rs"]
mod tokio_stream_example;
#[path = "../../examples/tokio_tungstenite.rs"]
mod tokio_tungstenite_example;
#[path = "../../examples/tokio_util.rs"]
mod tokio_util_example;
#[path = "../../examples/tonic.rs"]
mod tonic_example;
#[path = "../../examples/tower.rs"]
mod tower_example;
#[path = "../../examples/websocket.rs"]
mod websocket;

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
fn examples_build_no_tokio_runtime() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "-p", "pikake-libraries", "-e", "features", "-i", "tokio"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("text");
    assert!(tree.contains("tokio feature \"io-util\""), "its traits are: {tree}");
    for feature in ["rt", "rt-multi-thread", "time", "full"] {
        assert!(!tree.contains(&format!("tokio feature \"{feature}\"")), "{feature}: {tree}");
    }
}

#[test]
fn hyper_serves_and_asks_http_1_and_2() {
    check(include_str!("../../examples/hyper.rs"), hyper_example::demo());
}

#[test]
fn client_crawls_a_site() {
    check(include_str!("../../examples/crawler.rs"), crawler::demo());
}

#[test]
fn files_are_served_in_parts_and_compressed() {
    check(include_str!("../../examples/files.rs"), files::demo());
}

#[test]
fn tonic_serves_and_calls_without_its_transport() {
    check(include_str!("../../examples/tonic.rs"), tonic_example::demo());
}

#[test]
fn async_tungstenite_echoes() {
    check(include_str!("../../examples/websocket.rs"), websocket::demo());
}

#[test]
fn h2_serves_and_asks_without_hyper() {
    check(include_str!("../../examples/h2.rs"), h2_example::demo());
}

#[test]
fn hyper_util_serves_a_tower_service() {
    check(include_str!("../../examples/hyper_util.rs"), hyper_util_example::demo());
}

#[test]
fn tower_layers_wrap_a_waiting_service() {
    check(include_str!("../../examples/tower.rs"), tower_example::demo());
}

#[test]
fn tokio_util_frames_a_socket_and_cancels() {
    check(include_str!("../../examples/tokio_util.rs"), tokio_util_example::demo());
}

#[test]
fn tokio_stream_maps_a_channel() {
    check(include_str!("../../examples/tokio_stream.rs"), tokio_stream_example::demo());
}

#[test]
fn tokio_rustls_encrypts_a_stream() {
    check(include_str!("../../examples/tokio_rustls.rs"), tokio_rustls_example::demo());
}

#[test]
fn tokio_tungstenite_echoes() {
    check(include_str!("../../examples/tokio_tungstenite.rs"), tokio_tungstenite_example::demo());
}

#[test]
fn async_compression_inflates_what_it_deflated() {
    check(include_str!("../../examples/async_compression.rs"), async_compression_example::demo());
}

#[test]
fn async_channel_crosses_threads() {
    check(include_str!("../../examples/async_channel.rs"), async_channel_example::demo());
}

#[test]
fn tokio_postgres_queries_and_rolls_back() {
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    check(include_str!("../../examples/postgres.rs"), postgres::demo(server.port()));
}

#[test]
fn axum_answers_from_a_pool() {
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    check(include_str!("../../examples/orders.rs"), orders::demo(server.port()));
}

#[test]
fn kernels_have_pools_with_a_common_limit() {
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    check(include_str!("../../examples/cores_pool.rs"), cores_pool::demo(server.port()));
}

#[test]
fn lapin_publishes_and_consumes() {
    let Some(server) = Server::start_or_skip(Kind::RabbitMq) else { return };
    check(include_str!("../../examples/rabbitmq.rs"), rabbitmq::demo(server.port()));
}
