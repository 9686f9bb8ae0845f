//! tokio-tungstenite on pikake's streams: a server of WebSockets, and a client.
//!
//! ```text
//! echo: hello
//! ```

use std::error::Error;

use futures::future::try_join;
use futures::{SinkExt, StreamExt};
use pikake::future_wait;
use pikake::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{accept_async, client_async};

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    let accepted = accept_async(listener.accept().await?.0);
    let connected = client_async("ws://localhost/", stream);
    let (mut server, (mut client, _)) = future_wait(try_join(accepted, connected)).await??;
    client.send(Message::text("hello")).await?;
    let message = future_wait(server.next()).await?.ok_or("the client has gone")??;
    server.send(Message::text(format!("echo: {message}"))).await?;
    let answer = future_wait(client.next()).await?.ok_or("the server has gone")??;
    Ok(vec![answer.to_string()])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
