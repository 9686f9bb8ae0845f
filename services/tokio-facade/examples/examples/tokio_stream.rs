//! tokio-stream: ticks, connections and time limits as streams.
//!
//! ```text
//! ticks: 3
//! a connection from 127.0.0.1
//! no other one: deadline has elapsed
//! ```

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::interval;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{IntervalStream, TcpListenerStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let ticks = IntervalStream::new(interval(Duration::from_millis(1)));
    println!("ticks: {}", ticks.take(3).collect::<Vec<_>>().await.len());

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let _client = TcpStream::connect(listener.local_addr()?).await?;
    let limit = Duration::from_millis(100);
    let mut connections = pin!(TcpListenerStream::new(listener).timeout(limit));
    let first = connections.next().await.ok_or("no listener")???;
    println!("a connection from {}", first.peer_addr()?.ip());
    if let Some(Err(elapsed)) = connections.next().await {
        println!("no other one: {elapsed}");
    }
    Ok(())
}
