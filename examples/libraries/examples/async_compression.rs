//! async-compression on pikake's streams: gzip on a socket.
//!
//! ```text
//! got: hello
//! ```

use std::error::Error;

use async_compression::tokio::{bufread::GzipDecoder, write::GzipEncoder};
use pikake::net::{TcpListener, TcpStream};
use pikake::{future_wait, spawn};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    let sending = spawn(async move {
        let mut writer = GzipEncoder::new(stream);
        writer.write_all(b"hello").await?;
        writer.shutdown().await
    });
    let mut reader = GzipDecoder::new(BufReader::new(listener.accept().await?.0));
    let mut text = String::new();
    future_wait(reader.read_to_string(&mut text)).await??;
    sending.await??;
    Ok(vec![format!("got: {text}")])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
