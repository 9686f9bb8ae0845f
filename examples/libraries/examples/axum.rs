//! axum on pikake: a router, served until SIGINT or SIGTERM, with handlers that are told when their
//! client has gone.
//!
//! ```sh
//! cargo run -p pikake-libraries --example axum -- 127.0.0.1:8080
//! curl http://127.0.0.1:8080/
//! curl -m 1 http://127.0.0.1:8080/slow    # gives up after a second; the handler says goodbye
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use pikake::net::TcpListener;
use pikake::{Bound, Interrupted, sleep};

#[derive(Clone, Default)]
pub(crate) struct Shop {
    orders: Arc<AtomicU64>,
    given_up: Arc<AtomicU64>,
}

pub(crate) fn router(shop: Shop) -> Router {
    Router::new()
        .route("/", get(async || "hello from pikake\n"))
        .route("/slow", get(slow))
        .route("/orders", get(orders))
        .with_state(shop)
}

/// A handler that waits on traps, and rolls back if it is interrupted.
///
/// axum demands `Send`, and waits of pikake are not: `Bound::future` is the way in.
async fn slow(State(shop): State<Shop>) -> String {
    let work = async move {
        shop.orders.fetch_add(1, Ordering::Relaxed);
        if let Err(interrupted) = sleep(Duration::from_secs(10)).await {
            eprintln!("rolling back: {interrupted}");
            sleep(Duration::from_millis(10)).await?; // cleanup may await
            shop.orders.fetch_sub(1, Ordering::Relaxed);
            shop.given_up.fetch_add(1, Ordering::Relaxed);
            return Err(interrupted);
        }
        Ok::<_, Interrupted>("ordered\n".to_owned())
    };
    Bound::future(work).await.unwrap_or_else(|told| format!("not ordered: {told}\n"))
}

async fn orders(State(shop): State<Shop>) -> Json<[u64; 2]> {
    Json([shop.orders.load(Ordering::Relaxed), shop.given_up.load(Ordering::Relaxed)])
}

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let report = pikake::http::serve(listener, router(Shop::default())).await?;
    println!("{report}");
    Ok(())
}
