//! The same axum router on one thread of pikake or of tokio.

use std::net::Ipv4Addr;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;

/// More connections than are ever opened: tokio's server has no limit.
const CONNECTIONS: usize = 100_000;

/// As axum's documentation of `with_state` advises a server of its own, routes are made once, and
/// not for each request. `axum::serve` does the same.
fn router() -> Router {
    Router::new()
        .route("/", get(async || "hello, world"))
        .route("/users/{id}", get(async |Path(id): Path<u64>| format!("user {id}")))
        .with_state(())
}

/// Serves for ever on the runtime of this name, and calls `on_bound` with the port.
///
/// # Panics
///
/// When there is no such runtime, or the server fails.
pub fn serve(runtime: &str, on_bound: impl FnOnce(u16) + 'static) {
    match runtime {
        "pikake" => on_pikake(on_bound, false),
        "pikake-unlimited" => on_pikake(on_bound, true),
        "tokio" => on_tokio(on_bound),
        _ => panic!("no runtime {runtime}: pikake, pikake-unlimited or tokio"),
    }
}

/// Neither server has a limit on the head of a request. tokio's has none on stalled clients either,
/// which pikake's has by default.
fn on_pikake(on_bound: impl FnOnce(u16) + 'static, is_unlimited: bool) {
    pikake::run(async move {
        let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        on_bound(listener.local_addr().unwrap().port());
        let server = pikake::http::serve(listener, router());
        let mut server = server.connections(CONNECTIONS).header_timeout(None);
        if is_unlimited {
            server = server.stall_timeout(None);
        }
        server.await.unwrap();
    });
}

fn on_tokio(on_bound: impl FnOnce(u16)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        on_bound(listener.local_addr().unwrap().port());
        axum::serve(listener, router()).await.unwrap();
    });
}
