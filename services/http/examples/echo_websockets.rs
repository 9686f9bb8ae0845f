//! A server that sends back the messages of WebSockets, for Autobahn's test suite
//! (`cargo xtask suites autobahn`).
//!
//! ```sh
//! cargo run -p pikake-http --example echo_websockets -- 127.0.0.1:9001
//! ```
//!
//! Prints its address, and serves until SIGINT or SIGTERM.

use std::error::Error;

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::Role;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use pikake::http::{Upgrade, Upgraded, serve};
use pikake::net::TcpListener;

/// Ends with the connection, whatever ends that.
async fn echo(stream: Upgraded) {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}

async fn accept(upgrade: Upgrade, headers: HeaderMap) -> Response {
    let Some(key) = headers.get("sec-websocket-key") else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let mut response: Response = upgrade.accept(echo);
    let key = derive_accept_key(key.as_bytes()).parse().expect("base64 is a header");
    response.headers_mut().insert("sec-websocket-accept", key);
    response
}

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let report = serve(listener, Router::new().fallback(accept)).await?;
    println!("{report}");
    Ok(())
}
