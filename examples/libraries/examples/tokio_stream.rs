//! tokio-stream on pikake: channels of tokio as streams. They need no runtime.
//!
//! ```text
//! [0, 1, 2]
//! ```

use std::error::Error;

use pikake::{future_wait, spawn};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let (sender, receiver) = mpsc::channel(1);
    let sending = spawn(async move {
        for number in 0..6 {
            sender.send(number).await?;
        }
        Ok::<_, mpsc::error::SendError<u32>>(())
    });
    let even = ReceiverStream::new(receiver).filter(|number| number % 2 == 0);
    let halves: Vec<u32> = future_wait(even.map(|number| number / 2).collect()).await?;
    sending.await??;
    Ok(vec![format!("{halves:?}")])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
