//! Pulse, stage 1: one task that waits once.

use std::time::Duration;

use pikake::{Interrupted, sleep};

#[pikake::main]
async fn main() -> Result<(), Interrupted> {
    println!("checking db");
    sleep(Duration::from_millis(100)).await?;
    println!("db answers");
    Ok(())
}
