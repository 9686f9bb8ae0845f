// ANCHOR: all
//! Pulse, stage 4: rounds of checks until Ctrl-C, which saves the result.

use std::io;
use std::time::Duration;

use pikake::task::GroupError;
use pikake::{Interrupted, TaskGroup, TimedOut, fs, sleep, timeout_after};

// ANCHOR: main
/// The time between two rounds.
const PAUSE: Duration = Duration::from_secs(60);

#[pikake::main(signals)]
async fn main() -> io::Result<()> {
    let mut page = String::new();
    if let Err(interrupted) = check_in_rounds(&mut page).await {
        println!("{interrupted}");
    }
    fs::write("page.txt", page).await?; // this await is not interrupted
    println!("saved page.txt");
    Ok(())
}

/// Checks all services, and puts the result on the page, until an await is interrupted.
async fn check_in_rounds(page: &mut String) -> io::Result<()> {
    loop {
        *page = check_all().await?;
        print!("{page}");
        println!("the next round is in {} s", PAUSE.as_secs());
        sleep(PAUSE).await?;
    }
}
// ANCHOR_END: main

// ANCHOR: round
/// Checks all services at the same time. The result has a line for each.
async fn check_all() -> Result<String, GroupError> {
    let mut checks = TaskGroup::new();
    for (service, takes) in [("db", 20), ("web", 3_600_000), ("cache", 10)] {
        checks.spawn_named(service, check_in_time(service, takes));
    }
    Ok(checks.try_join_all().await?.concat())
}
// ANCHOR_END: round

/// How long a service may take to answer.
const LIMIT: Duration = Duration::from_millis(250);

/// Checks a service, within the limit.
async fn check_in_time(service: &str, milliseconds: u64) -> Result<String, Interrupted> {
    match timeout_after(LIMIT, check(service, milliseconds)).await {
        Ok(answer) => answer,
        Err(TimedOut) => Ok(format!("{service} does not answer\n")),
    }
}

/// Checks a service. For now a check is a sleep, as long as the service takes to answer.
async fn check(service: &str, milliseconds: u64) -> Result<String, Interrupted> {
    sleep(Duration::from_millis(milliseconds)).await?;
    Ok(format!("{service} answers\n"))
}
// ANCHOR_END: all
