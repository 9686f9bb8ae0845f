//! The server of `cargo xtask suites`: it answers each request with the request's body, or with a
//! few words if there is none.
//!
//! ```text
//! pikake-suites <pikake | tokio>    prints its port, serves until its standard input ends
//! ```

use std::io::Read;
use std::thread;

use axum::Router;
use axum::body::Bytes;

/// h1spec asks for the body that it has sent, and httpwg for any body that is not empty.
fn router() -> Router {
    Router::new().fallback(async |body: Bytes| match body.is_empty() {
        true => Bytes::from_static(b"no body"),
        false => body,
    })
}

fn on_pikake() {
    pikake::run(async {
        let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        pikake::http::serve(listener, router()).await.unwrap();
    });
}

fn on_tokio() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        axum::serve(listener, router()).await.unwrap();
    });
}

fn main() {
    // Ends the process when the one that started it ends.
    thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    match std::env::args().nth(1).as_deref() {
        Some("pikake") => on_pikake(),
        Some("tokio") => on_tokio(),
        _ => panic!("the name of a server: pikake or tokio"),
    }
}
