//! One HTTP server on several cores: a kernel on each, and the system spreads the connections.
//!
//! ```sh
//! cargo run --release -p pikake-libraries --example cores -- 127.0.0.1:8080
//! for i in 1 2 3 4 5 6; do curl http://127.0.0.1:8080/; done
//! ```
//!
//! SIGINT or SIGTERM ends the servers of all kernels in good order, and a report of each is
//! printed.

use std::error::Error;

use axum::Router;
use axum::routing::get;
use pikake::http::{serve, serve_on_all};
use pikake::net::TcpListener;
use pikake::other_kernels;

/// Made on each thread anew. What it shares with the others would have to be `Send`.
fn router() -> Router {
    let hello = async || {
        let thread = std::thread::current();
        format!("hello from {}\n", thread.name().unwrap_or("a thread"))
    };
    Router::new().route("/", get(hello))
}

// ANCHOR: main
#[pikake::main(threads = 4, signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let reports = serve_on_all(address, &other_kernels(), |listener: TcpListener| {
        println!("listening on http://{}", listener.local_addr().expect("it is bound"));
        serve(listener, router())
    });
    println!("{}", reports.await?);
    Ok(())
}
// ANCHOR_END: main
