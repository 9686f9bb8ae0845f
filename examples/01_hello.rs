//! One task that sleeps once.
//!
//! `#[pikake::main]` builds a kernel, runs the function as its main task, and shuts the kernel down
//! when that task has ended. A wait that can be interrupted says so in its type, hence the `?`.
//!
//! It prints, with a tenth of a second between the two lines:
//!
//! ```text
//! good night
//! good morning
//! ```

use std::time::Duration;

use pikake::Interrupted;

#[pikake::main]
async fn main() -> Result<(), Interrupted> {
    println!("good night");
    pikake::sleep(Duration::from_millis(100)).await?;
    println!("good morning");
    Ok(())
}
