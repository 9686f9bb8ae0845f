//! Child tasks: joined, panicking, cancelled.
//!
//! A child is spawned with a future and joined by awaiting the handle. What a child comes to is a
//! value in the hands of whoever joins it: its output, a panic, or a cancel. A child that is asked
//! to end sees an error at the await it sits in, with its locals alive, and may await in order to
//! clean up.
//!
//! It prints the following, and the usual message of a panic on the error output:
//!
//! ```text
//! squares: 1 4 9
//! the waiter broke down: dropped the tray
//! the cook was interrupted: closing time
//! the cook has put 3 pots away
//! the cook returned: closed
//! ```

use std::error::Error;
use std::time::Duration;

use pikake::{Interrupted, Task, TaskError, sleep, spawn, task, yield_now};

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let children: Vec<Task<u32>> = (1..=3).map(|number| spawn(square(number))).collect();
    print!("squares:");
    for child in children {
        print!(" {}", child.await?);
    }
    println!();

    let waiter = task::Builder::new().name("waiter").spawn(clumsy());
    match waiter.await {
        Err(TaskError::Panicked(panic)) => {
            println!("the waiter broke down: {}", panic.message().unwrap_or("nothing"));
        }
        other => println!("the waiter came to an unexpected end: {other:?}"),
    }

    let cook = task::Builder::new().name("cook").spawn(cook(3));
    // A task that is asked to end before its first step is dropped unpolled. This lets it begin.
    yield_now().await?;
    cook.request_cancel("closing time");
    println!("the cook returned: {}", cook.await?);
    Ok(())
}

async fn square(number: u32) -> u32 {
    number * number
}

async fn clumsy() {
    panic!("dropped the tray");
}

/// Cooks until asked to stop, and leaves a tidy kitchen.
async fn cook(pots: u32) -> &'static str {
    let Err(why) = cook_for(Duration::from_secs(60)).await else {
        return "done";
    };
    println!("the cook was interrupted: {}", why.reason().unwrap_or("no reason given"));
    for _ in 0..pots {
        // One request interrupts one await, so the cleanup is not cut short by it.
        if sleep(Duration::from_millis(5)).await.is_err() {
            return "left in a hurry";
        }
    }
    println!("the cook has put {pots} pots away");
    "closed"
}

async fn cook_for(length: Duration) -> Result<(), Interrupted> {
    sleep(length).await
}
