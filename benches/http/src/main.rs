//! The same axum router on one thread of pikake or of tokio, and a holder of idle connections.
//!
//! ```text
//! pikake-http-bench pikake|tokio           prints its port, serves until its standard input ends
//! pikake-http-bench idle <port> <count>    opens connections, says so, keeps them until that ends
//! ```

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;

fn router() -> Router {
    Router::new()
        .route("/", get(async || "hello, world"))
        .route("/users/{id}", get(async |Path(id): Path<u64>| format!("user {id}")))
}

/// Ends the process when whoever started it does.
fn end_with_stdin() {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
}

fn on_pikake() {
    pikake::run(async {
        let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        // As the other one, which knows no limits.
        let server = pikake::http::serve(listener, router()).connections(100_000);
        server.header_timeout(None).await.unwrap();
    });
}

fn on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        axum::serve(listener, router()).await.unwrap();
    });
}

fn idle(port: u16, count: usize) {
    let open = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    let connections: Vec<TcpStream> = (0..count).map(open).collect();
    println!("{}", connections.len());
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pikake"] => {
            end_with_stdin();
            on_pikake();
        }
        ["tokio"] => {
            end_with_stdin();
            on_tokio();
        }
        ["idle", port, count] => idle(port.parse().unwrap(), count.parse().unwrap()),
        _ => panic!("pikake, tokio, or idle <port> <count>"),
    }
}
