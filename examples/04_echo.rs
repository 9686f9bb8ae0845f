//! An echo server with a limit of connections.
//!
//! `serve` accepts connections and runs a task for each, up to a limit; beyond it, newcomers wait
//! in the listener's queue. With an address as its argument (`127.0.0.1:7000`), the program serves
//! there until it is stopped. Without one, it talks to itself once, and prints:
//!
//! ```text
//! client: sent hello, echo
//! client: received hello, echo
//! server: echoed 11 bytes
//! server: stopped
//! ```

use std::error::Error;
use std::io;
use std::net::{Shutdown, SocketAddr};

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::spawn;

pub(crate) const MOST_CONNECTIONS: usize = 100;

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(address) = std::env::args().nth(1) {
        let listener = TcpListener::bind(&address).await?;
        println!("server: listening at {}", listener.local_addr()?);
        serve(listener, MOST_CONNECTIONS, attend).await?;
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = spawn(serve(listener, MOST_CONNECTIONS, attend));
    talk(address).await?;
    server.cancel().await?;
    println!("server: stopped");
    Ok(())
}

pub(crate) async fn attend(stream: TcpStream, peer: SocketAddr) {
    match echo(&stream).await {
        Ok(count) => println!("server: echoed {count} bytes"),
        Err(why) => println!("server: the connection of {peer} failed: {why}"),
    }
}

async fn echo(stream: &TcpStream) -> io::Result<usize> {
    let mut buffer = [0; 4096];
    let mut count = 0;
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(count);
        }
        stream.write_all(&buffer[..length]).await?;
        count += length;
    }
}

pub(crate) async fn talk(server: SocketAddr) -> io::Result<()> {
    let stream = TcpStream::connect(server).await?;
    let line = "hello, echo";
    stream.write_all(line.as_bytes()).await?;
    println!("client: sent {line}");

    let mut answer = vec![0; line.len()];
    stream.read_exact(&mut answer).await?;
    println!("client: received {}", String::from_utf8_lossy(&answer));

    // No more to send; the server hangs up when it has noticed, which is the end of the stream.
    stream.shutdown(Shutdown::Write)?;
    stream.read(&mut answer).await?;
    Ok(())
}
