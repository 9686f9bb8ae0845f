//! WebSockets on pikake, by async-tungstenite: a server that echoes, and a client.
//!
//! ```text
//! echo: hello
//! echo: goodbye
//! ```
//!
//! The streams are `futures_io` ones, which is the feature `io-traits` of pikake.

use std::error::Error;

use async_tungstenite::tungstenite::{self, Message};
use async_tungstenite::{accept_async, client_async};
use futures::StreamExt;
use pikake::net::{TcpListener, TcpStream};
use pikake::{future_wait, spawn};

async fn echo(stream: TcpStream) -> tungstenite::Result<()> {
    let mut socket = accept_async(stream).await?;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => socket.send(Message::text(format!("echo: {text}"))).await?,
            Message::Close(_) => break,
            _ => {}
        }
    }
    Ok(())
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = spawn(async move { echo(listener.accept().await?.0).await });

    let stream = TcpStream::connect(address).await?;
    let connecting = client_async(format!("ws://{address}/"), stream);
    let (mut socket, _) = future_wait(connecting).await??;
    let mut lines = Vec::new();
    for word in ["hello", "goodbye"] {
        socket.send(Message::text(word)).await?;
        let answer = future_wait(socket.next()).await?.ok_or("the server has gone")??;
        lines.push(answer.to_text()?.to_owned());
    }
    socket.close(None).await?;
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
