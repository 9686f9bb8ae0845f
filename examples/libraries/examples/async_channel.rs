//! async-channel and async-lock on pikake, between a kernel and a thread.
//!
//! ```text
//! sum: 6
//! ```

use std::error::Error;
use std::sync::Arc;
use std::thread;

use async_lock::Mutex;
use pikake::future_wait;

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let (sender, receiver) = async_channel::bounded(1);
    let sum = Arc::new(Mutex::new(0));
    let other = Arc::clone(&sum);
    let worker = thread::spawn(move || {
        while let Ok(number) = receiver.recv_blocking() {
            *other.lock_blocking() += number;
        }
    });
    for number in 1..=3 {
        future_wait(sender.send(number)).await??;
    }
    drop(sender);
    worker.join().map_err(|_| "the thread panicked")?;
    Ok(vec![format!("sum: {}", future_wait(sum.lock()).await?)])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
