//! The application of these tests: jobs that succeed, fail, take long, and ignore a cancel.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use pikake::jobs::{App, QueueOptions, current_job};
use pikake::sleep;

/// Set for an application that knows the job `late` as well.
const KNOWS_LATE: &str = "TEST_APP_KNOWS_LATE";

#[pikake::job(name = "add")]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[pikake::job(name = "greet", queue = "greetings")]
fn greet(name: String, tone: Option<String>) -> String {
    format!("hello {name}{}", tone.unwrap_or_default())
}

#[pikake::job(name = "square", process)]
fn square(of: i64) -> i64 {
    of * of
}

#[pikake::job(name = "fails")]
async fn fails(why: String) -> Result<(), String> {
    Err(why)
}

/// Notes that it began, and after so many milliseconds that it ended.
#[pikake::job(name = "nap")]
async fn nap(folder: PathBuf, millis: u64) -> Result<(), pikake::Interrupted> {
    let id = current_job().id().to_owned();
    fs::write(folder.join(format!("{id}.begun")), "").expect("a folder");
    sleep(Duration::from_millis(millis)).await?;
    fs::write(folder.join(format!("{id}.ended")), "").expect("a folder");
    Ok(())
}

/// Tells how far it is, and sleeps.
#[pikake::job(name = "import")]
async fn import(millis: u64) -> Result<(), pikake::Interrupted> {
    current_job().progress(BTreeMap::from([("current", 3), ("total", 10)]));
    sleep(Duration::from_millis(millis)).await
}

/// Does not listen to anybody.
#[pikake::job(name = "stubborn")]
async fn stubborn(folder: PathBuf) {
    fs::write(folder.join("stubborn.begun"), "").expect("a folder");
    loop {
        let _ = pikake::shield(sleep(Duration::from_secs(60))).await;
    }
}

#[pikake::job(name = "late")]
async fn late(value: String) -> String {
    value
}

/// Says in what its setup takes a minute: `fails` if it is interrupted, `goes on` then, or `deaf`,
/// which it cannot be.
const SETUP: &str = "TEST_APP_SETUP";

async fn set_up(how: String) -> Result<(), pikake::Interrupted> {
    eprintln!("setting up");
    let minute = Duration::from_secs(60);
    let slept = match &*how {
        "deaf" => pikake::shield(sleep(minute)).await,
        _ => sleep(minute).await,
    };
    if how == "fails" { slept } else { Ok(()) }
}

fn main() -> ExitCode {
    let app = App::new("memory://").expect("a URL");
    let app = app.jobs([
        add::JOB,
        greet::JOB,
        square::JOB,
        fails::JOB,
        nap::JOB,
        import::JOB,
        stubborn::JOB,
    ]);
    let app = app.queue("spare", QueueOptions::default());
    let app = match std::env::var_os(KNOWS_LATE) {
        Some(_) => app.jobs([late::JOB]),
        None => app,
    };
    let app = match std::env::var(SETUP) {
        Ok(how) => app.setup(move |_| set_up(how.clone())),
        Err(_) => app,
    };
    pikake_cli::run(app)
}
