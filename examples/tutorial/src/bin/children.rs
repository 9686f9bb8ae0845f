// ANCHOR: all
//! Pulse, stage 2: a task for each service.

use std::time::Duration;

use pikake::{Interrupted, TaskGroup, sleep};

// ANCHOR: main
#[pikake::main]
async fn main() -> Result<(), Interrupted> {
    let mut checks = TaskGroup::new();
    for (service, takes) in [("db", 200), ("web", 300), ("cache", 100), ("mail", 0)] {
        checks.spawn_named(service, check(service, takes));
    }
    while let Some(done) = checks.join_next().await? {
        match done.outcome {
            Ok(answer) => println!("{}", answer?),
            Err(error) => println!("{}: {error}", done.member.name()),
        }
    }
    println!("all are checked");
    Ok(())
}
// ANCHOR_END: main

// ANCHOR: check
/// Checks a service. For now a check is a sleep, as long as the service takes to answer.
async fn check(service: &str, milliseconds: u64) -> Result<String, Interrupted> {
    assert!(milliseconds > 0, "no service is that fast");
    sleep(Duration::from_millis(milliseconds)).await?;
    Ok(format!("{service} answers"))
}
// ANCHOR_END: check
// ANCHOR_END: all
