//! async-nats, against a server that knows one message.
//!
//! ```text
//! got: hello
//! ```

use std::error::Error;

use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;

async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let mut stream = BufStream::new(listener.accept().await?.0);
    stream.write_all(b"INFO {\"max_payload\":1024}\r\n").await?;
    stream.flush().await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        match line.split_whitespace().next() {
            Some("PING") => stream.write_all(b"PONG\r\n").await?,
            Some("SUB") => stream.write_all(b"MSG greetings 1 5\r\nhello\r\n").await?,
            _ => {}
        }
        line.clear();
        stream.flush().await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("nats://{}", listener.local_addr()?);
    tokio::spawn(serve(listener));
    let client = async_nats::connect(url).await?;
    let message = client.subscribe("greetings").await?.next().await.ok_or("no message")?;
    println!("got: {}", str::from_utf8(&message.payload)?);
    Ok(())
}
