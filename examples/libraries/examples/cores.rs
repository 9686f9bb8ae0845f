//! One HTTP server on several cores: a kernel on each, and the system spreads the connections.
//!
//! ```sh
//! cargo run --release -p pikake-libraries --example cores -- 127.0.0.1:8080
//! for i in 1 2 3 4 5 6; do curl http://127.0.0.1:8080/; done
//! ```
//!
//! SIGINT or SIGTERM interrupts `main`, whose server then ends in good order; the other kernels are
//! shut down after it, and theirs do the same.

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use pikake::http::{ServeError, serve};
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

#[pikake::main(threads = 4, signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind_shared(address).await?;
    let address: SocketAddr = listener.local_addr()?;
    for kernel in other_kernels() {
        let listening = kernel.call(move || async move {
            let listener = TcpListener::bind_shared(address).await?;
            let serving = async move {
                println!("{}", serve(listener, router()).await?);
                Ok::<_, ServeError>(())
            };
            pikake::spawn(serving).detach();
            Ok::<_, io::Error>(())
        });
        listening.await??;
    }
    println!("listening on http://{address}");
    println!("{}", serve(listener, router()).await?);
    Ok(())
}
