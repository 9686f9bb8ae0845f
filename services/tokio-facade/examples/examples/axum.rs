//! axum with its own `serve`, and its shutdown in order.
//!
//! ```text
//! HTTP/1.1 200 OK
//! hello from axum
//! ```

use std::error::Error;

use axum::{Router, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let app = Router::new().route("/", get(async || "hello from axum"));
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async {
        drop(stopped.await);
    });
    let server = tokio::spawn(serving.into_future());

    client.write_all(REQUEST).await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    println!("{}", answer.lines().next().unwrap_or_default());
    println!("{}", answer.lines().last().unwrap_or_default());
    drop(stop);
    server.await??;
    Ok(())
}
