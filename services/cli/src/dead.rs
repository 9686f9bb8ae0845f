//! `dead list` and `dead replay`: shows dead jobs with their reasons, and puts them back into their
//! queue.

use jiff::{Timestamp, Unit};
use pikake::jobs::{App, DeadJob, JobId};
use serde_json::{Value, json};

use crate::arguments::DeadCommand;
use crate::output::{Output, Spinner, jobs_text, note, table};
use crate::queues::{attach, broker, detach};
use crate::stop::Stop;

pub(crate) async fn run(app: &App, command: DeadCommand, output: &Output) -> Result<(), Stop> {
    match command {
        DeadCommand::List { queue, limit } => list(app, &queue, limit, output).await,
        DeadCommand::Replay { queue, job } => replay(app, &queue, job, output).await,
    }
}

async fn list(app: &App, queue: &str, limit: usize, output: &Output) -> Result<(), Stop> {
    let app = &attach(app).await?;
    let broker = broker(app)?;
    let dead = broker.dead(queue, limit).await.map_err(|error| Stop::queue(app, error))?;
    let counts = broker.counts(queue).await.map_err(|error| Stop::queue(app, error))?;
    detach(app).await?;
    if output.is_json() {
        for job in &dead {
            output.answer(|| json_of(job), String::new)?;
        }
        return Ok(());
    }
    if dead.is_empty() {
        note(&format!("no job is dead in {queue}"));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = dead.iter().map(row_of).collect();
    let head = ["id", "job", "arguments", "since", "reason"];
    output.answer(|| Value::Null, || table(&head, &[false; 5], &rows))?;
    if counts.dead > dead.len() as u64 {
        note(&format!("these are {} of {}: use `--limit` for more", dead.len(), counts.dead));
    }
    Ok(())
}

/// A header of a dead message; `None` if it is missing or no text.
fn header<'a>(dead: &'a DeadJob, name: &str) -> Option<&'a str> {
    dead.message.headers.get(name).and_then(Value::as_str)
}

fn since(dead: &DeadJob) -> Option<String> {
    let moment = Timestamp::try_from(dead.since?).ok()?;
    Some(moment.round(Unit::Second).unwrap_or(moment).to_string())
}

fn json_of(dead: &DeadJob) -> Value {
    json!({
        "id": dead.message.job(),
        "job": header(dead, "task"),
        "arguments": header(dead, "argsrepr"),
        "kwargs": header(dead, "kwargsrepr"),
        "since": since(dead),
        "reason": dead.reason,
        "body": String::from_utf8_lossy(&dead.message.body),
    })
}

fn row_of(dead: &DeadJob) -> Vec<String> {
    let text = |part: Option<&str>| part.unwrap_or("-").to_owned();
    vec![
        text(dead.message.job()),
        text(header(dead, "task")),
        text(header(dead, "argsrepr")),
        text(since(dead).as_deref()),
        dead.reason.clone(),
    ]
}

async fn replay(app: &App, queue: &str, job: Option<String>, output: &Output) -> Result<(), Stop> {
    let app = &attach(app).await?;
    let broker = broker(app)?;
    let job = job.map(JobId);
    let replayed = {
        let _waiting = Spinner::new(format!("replaying {queue}"));
        let replayed = broker.replay(queue, job.as_ref()).await;
        replayed.map_err(|error| Stop::queue(app, error))?
    };
    detach(app).await?;
    if let (0, Some(job)) = (replayed, &job) {
        return Err(Stop::absent(format!(
            "no job {job} is among the dead of {queue}: `dead list {queue}` shows them"
        )));
    }
    output.answer(
        || json!({ "queue": queue, "replayed": replayed }),
        || format!("in {queue} again: {}", jobs_text(replayed)),
    )
}
