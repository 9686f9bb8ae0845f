//! Child processes, a directory, and Ctrl-C. Needs the features `process` and `watch`.
//!
//! A pipeline of two programs sorts what this one writes to it; a program that takes too long is
//! ended by a deadline, and what it had said is still there; a directory is watched while a program
//! works in it. At the end it waits for Ctrl-C, which it has a program send, and takes its leave.
//! It prints:
//!
//! ```text
//! pipeline: apple, cherry, pear (exit status: 0)
//! deadline: it said "working…" and was ended by signal 15 (SIGTERM)
//! directory: draft.txt was made
//! directory: draft.txt is letter.txt now
//! main task: cancelled: SIGINT; goodbye
//! ```

use std::error::Error;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pikake::fs::{self, Change, watch};
use pikake::net::BufReader;
use pikake::process::{Command, Stdio};
use pikake::signal::signal_name;
use pikake::stdio::stdout;
use pikake::{sleep, timed};

const DEADLINE: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

async fn say(line: String) -> io::Result<()> {
    Ok(stdout().write_all((line + "\n").as_bytes()).await?)
}

/// `sort | uniq`, fed by this process.
#[expect(clippy::incompatible_msrv, reason = "`io::pipe` needs Rust 1.87, and pikake does not")]
async fn pipeline() -> io::Result<()> {
    let (from_sort, to_uniq) = io::pipe()?;
    let mut sort = Command::new("sort").stdin(Stdio::piped()).stdout(to_uniq).spawn()?;
    let mut uniq = Command::new("uniq").stdin(from_sort).stdout(Stdio::piped()).spawn()?;
    let fruit = sort.stdin.take().expect("it is piped");
    for name in ["pear", "apple", "pear", "cherry"] {
        fruit.write_all(format!("{name}\n").as_bytes()).await?;
    }
    drop(fruit);
    let lines = BufReader::new(uniq.stdout.take().expect("it is piped"));
    let mut sorted = Vec::new();
    while let Some(line) = lines.next_line().await? {
        sorted.push(line);
    }
    sort.wait().await?;
    say(format!("pipeline: {} ({})", sorted.join(", "), uniq.wait().await?)).await
}

/// A program that does not come to its end.
async fn deadline() -> io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "echo working…; exec sleep 1000"]);
    let done = timed(DEADLINE, command.output()).await;
    let Some(Err(error)) = done.output else { return Err(io::Error::other("it has ended")) };
    let signal = error.status.and_then(|status| status.signal()).unwrap_or_default();
    let name = signal_name(signal).unwrap_or("?");
    let said = String::from_utf8_lossy(&error.stdout);
    let said = said.trim_end();
    say(format!("deadline: it said {said:?} and was ended by signal {signal} ({name})")).await
}

/// What a program does in a directory.
async fn directory(path: &Path) -> io::Result<()> {
    let mut changes = watch(path, false).await?;
    let mut command = Command::new("sh");
    command.args(["-c", "echo Dear > draft.txt; mv draft.txt letter.txt"]).current_dir(path);
    command.status().await?;
    let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loop {
        match changes.next().await? {
            Change::Created(path) => say(format!("directory: {} was made", name(path))).await?,
            Change::Renamed { from, to } => {
                return say(format!("directory: {} is {} now", name(from), name(to))).await;
            }
            _ => {}
        }
    }
}

#[pikake::main(signals)]
async fn main() -> Result<(), Box<dyn Error>> {
    pipeline().await?;
    deadline().await?;

    let path = std::env::temp_dir().join(format!("pikake-example-{}", std::process::id()));
    fs::create_dir(&path).await?;
    let watched = directory(&path).await;
    fs::remove_dir_all(&path).await?;
    watched?;

    // What a terminal does on Ctrl-C. The next await is told.
    let mut kill = Command::new("sh").args(["-c", "kill -INT $PPID"]).spawn()?;
    if let Err(interrupted) = sleep(LONG).await {
        say(format!("main task: {interrupted}; goodbye")).await?;
    }
    kill.wait().await?;
    Ok(())
}
