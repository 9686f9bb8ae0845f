//! tokio-tungstenite: a server of WebSockets, and a client by `connect_async`.
//!
//! ```text
//! echo: hello
//! ```

use std::error::Error;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::{Message, Result};
use tokio_tungstenite::{accept_async, connect_async};

async fn echo(listener: TcpListener) -> Result<()> {
    let mut socket = accept_async(listener.accept().await?.0).await?;
    while let Some(message) = socket.next().await {
        if let Message::Text(text) = message? {
            socket.send(Message::text(format!("echo: {text}"))).await?;
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}/", listener.local_addr()?);
    let server = tokio::spawn(echo(listener));
    let (mut socket, _) = connect_async(url).await?;
    socket.send(Message::text("hello")).await?;
    let answer = socket.next().await.ok_or("the server has gone")??;
    println!("{}", answer.to_text()?);
    socket.close(None).await?;
    while socket.next().await.is_some() {}
    server.await??;
    Ok(())
}
