//! A deadline that fires in the middle of a transaction.
//!
//! `timeout_after` gives a future a deadline. When it passes, the await that the future sits in
//! returns `Interrupted`; nothing is dropped behind its back. So the transaction below rolls back,
//! and the rollback itself awaits. Deadlines nest: the one that passed reports `TimedOut`, and the
//! ones inside it see an interruption that is not theirs.
//!
//! It prints:
//!
//! ```text
//! quick: Ok("committed")
//! slow: interrupted while it waited for the commit
//! slow: rolled back 2 changes
//! inner deadline: not mine, passed on
//! outer deadline: Err(TimedOut)
//! ```

use std::time::Duration;

use pikake::{Interrupted, sleep, timeout_after};

const NETWORK_DELAY: Duration = Duration::from_millis(5);
const OUTER: Duration = Duration::from_millis(50);
const INNER: Duration = Duration::from_secs(10);
const FOREVER: Duration = Duration::from_secs(3600);

#[pikake::main]
async fn main() {
    let quick = timeout_after(INNER, transaction("quick", NETWORK_DELAY)).await;
    println!("quick: {:?}", quick.map(|body| body.expect("nobody else interrupts this task")));

    let outer = timeout_after(OUTER, request()).await;
    println!("outer deadline: {outer:?}");
}

/// Has a deadline of its own for the transaction, longer than what its caller allows.
async fn request() -> Result<(), Interrupted> {
    match timeout_after(INNER, transaction("slow", FOREVER)).await {
        Ok(Ok(answer)) => println!("inner deadline: in time, {answer}"),
        Ok(Err(why)) => {
            println!("inner deadline: not mine, passed on");
            return Err(why);
        }
        Err(timed_out) => println!("inner deadline: {timed_out}"),
    }
    Ok(())
}

async fn transaction(name: &str, commit: Duration) -> Result<&'static str, Interrupted> {
    let mut changes = vec!["debit one account"];
    sleep(NETWORK_DELAY).await?;
    changes.push("credit the other");

    if let Err(why) = sleep(commit).await {
        println!("{name}: interrupted while it waited for the commit");
        roll_back(name, changes).await?;
        return Err(why);
    }
    Ok("committed")
}

/// Awaits like anything else: a deadline is delivered once, so it does not interrupt the cleanup.
async fn roll_back(name: &str, changes: Vec<&str>) -> Result<(), Interrupted> {
    let count = changes.len();
    for _change in changes.into_iter().rev() {
        sleep(NETWORK_DELAY).await?;
    }
    println!("{name}: rolled back {count} changes");
    Ok(())
}
