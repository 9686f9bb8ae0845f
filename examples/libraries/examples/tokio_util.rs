//! tokio-util on pikake: frames on a socket, and a token that is cancelled.
//!
//! ```text
//! got: hello
//! cancelled
//! ```

use std::error::Error;

use futures::{SinkExt, StreamExt};
use pikake::net::{TcpListener, TcpStream};
use pikake::{future_wait, spawn};
use tokio_util::codec::{Framed, LinesCodec};
use tokio_util::sync::CancellationToken;

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    Framed::new(stream, LinesCodec::new()).send("hello").await?;
    let mut frames = Framed::new(listener.accept().await?.0, LinesCodec::new());
    let line = future_wait(frames.next()).await?.ok_or("no line")??;

    let token = CancellationToken::new();
    let waiting = spawn(token.clone().cancelled_owned());
    token.cancel();
    waiting.await?;
    Ok(vec![format!("got: {line}"), "cancelled".to_owned()])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
