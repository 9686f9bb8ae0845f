//! actix-web: a server whose worker is a thread with a runtime of its own.
//!
//! ```text
//! HTTP/1.1 200 OK
//! hello from actix
//! ```

use std::error::Error;

use actix_web::{App, HttpServer, web};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = || App::new().route("/", web::get().to(async || "hello from actix"));
    let server = HttpServer::new(app).workers(1).disable_signals().bind("127.0.0.1:0")?;
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    let server = tokio::spawn(server);

    let mut client = TcpStream::connect(address).await?;
    client.write_all(REQUEST).await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    println!("{}", answer.lines().next().unwrap_or_default());
    println!("{}", answer.lines().last().unwrap_or_default());
    handle.stop(true).await;
    server.await??;
    Ok(())
}
