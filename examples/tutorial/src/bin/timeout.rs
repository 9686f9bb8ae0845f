// ANCHOR: all
//! Pulse, stage 3: a check has a limit of time.

use std::time::Duration;

use pikake::{Interrupted, TaskGroup, TimedOut, sleep, timeout_after};

// ANCHOR: limit
/// How long a service may take to answer.
const LIMIT: Duration = Duration::from_millis(250);

/// Checks a service, within the limit.
async fn check_in_time(service: &str, milliseconds: u64) -> Result<String, Interrupted> {
    match timeout_after(LIMIT, check(service, milliseconds)).await {
        Ok(answer) => answer,
        Err(TimedOut) => Ok(format!("{service} does not answer")),
    }
}
// ANCHOR_END: limit

// ANCHOR: check
/// Checks a service. For now a check is a sleep, as long as the service takes to answer.
async fn check(service: &str, milliseconds: u64) -> Result<String, Interrupted> {
    if let Err(interrupted) = sleep(Duration::from_millis(milliseconds)).await {
        println!("{service}: {interrupted}, so I say goodbye");
        sleep(Duration::from_millis(10)).await?; // cleanup may await
        println!("{service}: said goodbye");
        return Err(interrupted);
    }
    Ok(format!("{service} answers"))
}
// ANCHOR_END: check

#[pikake::main]
async fn main() -> Result<(), Interrupted> {
    let mut checks = TaskGroup::new();
    for (service, takes) in [("db", 150), ("web", 3_600_000), ("cache", 50)] {
        checks.spawn_named(service, check_in_time(service, takes));
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
// ANCHOR_END: all
