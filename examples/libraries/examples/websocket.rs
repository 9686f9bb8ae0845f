//! WebSockets on pikake, by async-tungstenite: a server beside other routes of axum, and a client.
//!
//! ```text
//! echo: hello
//! echo: goodbye
//! the server: see you
//! ```
//!
//! The streams are `futures_io` ones, which is the feature `io-traits` of pikake.

use std::error::Error;

use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::{CloseFrame, Role, frame::coding::CloseCode};
use async_tungstenite::tungstenite::{self, Message};
use async_tungstenite::{WebSocketStream, client_async};
use axum::Router;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::any;
use futures::StreamExt;
use pikake::http::{Upgrade, Upgraded, serve};
use pikake::net::{TcpListener, TcpStream, interruption};
use pikake::{future_wait, spawn};

// ANCHOR: handler
async fn chat(upgrade: Upgrade, headers: HeaderMap) -> Response {
    let mut response: Response = upgrade.accept(async |stream| drop(echo(stream).await));
    // Browsers send no key over HTTP/2.
    if let Some(key) = headers.get("sec-websocket-key") {
        let key = derive_accept_key(key.as_bytes());
        response.headers_mut().insert("sec-websocket-accept", key.parse().unwrap());
    }
    response
}

async fn echo(stream: Upgraded) -> tungstenite::Result<()> {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    while let Some(message) = socket.next().await {
        match message {
            Ok(Message::Text(text)) => socket.send(Message::text(format!("echo: {text}"))).await?,
            Ok(_) => {}
            // The server is being shut down, and waits for this.
            Err(tungstenite::Error::Io(error)) if interruption(&error).is_some() => {
                let reason = CloseFrame { code: CloseCode::Away, reason: "see you".into() };
                socket.close(Some(reason)).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
// ANCHOR_END: handler

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // `any`, since a browser asks by `CONNECT` over HTTP/2.
    let app = Router::new().route("/chat", any(chat));
    let server = serve(listener, app).soft_deadline(std::time::Duration::ZERO);
    let server = spawn(server.into_future());

    let stream = TcpStream::connect(address).await?;
    let connecting = client_async(format!("ws://{address}/chat"), stream);
    let (mut socket, _) = future_wait(connecting).await??;
    let mut lines = Vec::new();
    for word in ["hello", "goodbye"] {
        socket.send(Message::text(word)).await?;
        let answer = future_wait(socket.next()).await?.ok_or("the server has gone")??;
        lines.push(answer.to_text()?.to_owned());
    }
    server.request_cancel("the example is over");
    while let Some(message) = future_wait(socket.next()).await? {
        if let Message::Close(Some(frame)) = message? {
            lines.push(format!("the server: {}", frame.reason));
        }
    }
    server.await??;
    Ok(lines)
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in demo().await? {
        println!("{line}");
    }
    Ok(())
}
