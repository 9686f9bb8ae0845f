//! tokio-util: frames on a socket, a delayed item, a token, and tasks to wait for.
//!
//! ```text
//! got: hello
//! due: item
//! ended: 1
//! ```

use std::error::Error;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::{Framed, LinesCodec};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::time::DelayQueue;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    Framed::new(stream, LinesCodec::new()).send("hello").await?;
    let mut lines = Framed::new(listener.accept().await?.0, LinesCodec::new());
    println!("got: {}", lines.next().await.ok_or("no line")??);

    let mut queue = DelayQueue::new();
    queue.insert("item", Duration::from_millis(1));
    println!("due: {}", queue.next().await.ok_or("no item")?.into_inner());

    let (token, tracker) = (CancellationToken::new(), TaskTracker::new());
    let task = tracker.spawn(token.clone().cancelled_owned());
    tracker.close();
    token.cancel();
    tracker.wait().await;
    println!("ended: {}", usize::from(task.is_finished()));
    Ok(())
}
