//! axum on pikake: a router, served until SIGINT or SIGTERM, whose handlers are interrupted when
//! their client has gone.
//!
//! ```sh
//! cargo run -p pikake-libraries --example axum -- 127.0.0.1:8080
//! curl http://127.0.0.1:8080/
//! curl -m 1 http://127.0.0.1:8080/slow    # gives up after a second; the handler rolls back
//! ```

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router};
use pikake::http::axum::Local;
use pikake::http::axum::routing::get;
use pikake::net::TcpListener;
use pikake::sleep;

/// One kernel is one thread, so the state needs neither locks nor atomics.
#[derive(Clone, Default)]
pub(crate) struct Shop {
    orders: Rc<Cell<u64>>,
    given_up: Rc<Cell<u64>>,
}

// ANCHOR: router
pub(crate) fn router(shop: Shop) -> Router {
    Router::new()
        .route("/", get(async || "hello from pikake\n"))
        .route("/slow", get(slow))
        .route("/orders", get(orders))
        .with_state(Local::new(shop))
}
// ANCHOR_END: router

// ANCHOR: handler
/// A handler that waits on traps, and rolls back if it is interrupted.
async fn slow(State(shop): State<Local<Shop>>) -> String {
    shop.orders.set(shop.orders.get() + 1);
    if let Err(interrupted) = sleep(Duration::from_secs(10)).await {
        eprintln!("rolling back: {interrupted}");
        drop(sleep(Duration::from_millis(10)).await); // cleanup may await
        shop.orders.set(shop.orders.get() - 1);
        shop.given_up.set(shop.given_up.get() + 1);
        return format!("not ordered: {interrupted}\n");
    }
    "ordered\n".to_owned()
}
// ANCHOR_END: handler

async fn orders(State(shop): State<Local<Shop>>) -> Json<[u64; 2]> {
    Json([shop.orders.get(), shop.given_up.get()])
}

// ANCHOR: main
#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let report = pikake::http::serve(listener, router(Shop::default())).await?;
    println!("{report}");
    Ok(())
}
// ANCHOR_END: main
