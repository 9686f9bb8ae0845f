//! The commands that ask and control the workers of a broker, wherever they run.

use std::time::SystemTime;

use pikake::console::text::escaped;
use pikake::jobs::{Answer, App, JobInfo, WorkerInfo};
use serde_json::{Value, json};

use crate::arguments::{RevokeOptions, WatchOption};
use crate::output::{Output, table};
use crate::queues::{attach, detach};
use crate::stop::Stop;
use crate::watch::{Look, show};

/// The cell of what a worker did not tell.
const UNKNOWN: &str = "-";

/// `workers`: lists the workers.
pub(crate) async fn workers(app: &App, watch: WatchOption, output: Output) -> Result<(), Stop> {
    let app = attach(app).await?;
    show(output, watch.seconds(), async || {
        let workers = app.control().workers().await.map_err(|error| Stop::broker(&app, error))?;
        let text = match workers.is_empty() {
            true => "no worker answers\n".to_owned(),
            false => workers_text(&workers),
        };
        Ok(Look { json: json!({ "workers": workers }), text })
    })
    .await?;
    detach(&app).await
}

fn workers_text(workers: &[WorkerInfo]) -> String {
    const HEAD: [&str; 7] =
        ["worker", "running", "at most", "processed", "process", "up", "queues"];
    let number = |number: Option<u64>| number.map_or_else(|| UNKNOWN.to_owned(), |n| n.to_string());
    let row = |worker: &WorkerInfo| {
        let queue = |queue: &String| match worker.paused.contains(queue) {
            true => format!("{queue} (paused)"),
            false => queue.clone(),
        };
        let queues: Vec<String> = worker.queues.iter().map(queue).collect();
        vec![
            worker.name.clone(),
            worker.running.to_string(),
            number(worker.concurrency),
            worker.processed.to_string(),
            number(worker.pid),
            worker.since.map_or_else(|| "does not answer".to_owned(), age),
            queues.join(", "),
        ]
    };
    let is_number = [false, true, true, true, true, false, false];
    table(&HEAD, &is_number, &workers.iter().map(row).collect::<Vec<_>>())
}

/// `running`: lists the jobs that run.
pub(crate) async fn running(app: &App, watch: WatchOption, output: Output) -> Result<(), Stop> {
    let app = attach(app).await?;
    show(output, watch.seconds(), async || {
        let jobs = app.control().running().await.map_err(|error| Stop::broker(&app, error))?;
        Ok(Look { json: json!({ "jobs": jobs }), text: running_text(&jobs) })
    })
    .await?;
    detach(&app).await
}

pub(crate) fn running_text(jobs: &[JobInfo]) -> String {
    const HEAD: [&str; 7] = ["id", "job", "arguments", "queue", "worker", "for", "progress"];
    if jobs.is_empty() {
        return "no job runs\n".to_owned();
    }
    let row = |job: &JobInfo| {
        let JobInfo { id, name, arguments, queue, worker, since, progress, .. } = job;
        let since = since.map_or_else(|| UNKNOWN.to_owned(), age);
        let progress = progress.as_ref().map_or_else(|| UNKNOWN.to_owned(), progress_text);
        [id, name, arguments, queue, worker, &since, &progress].map(String::clone).to_vec()
    };
    table(&HEAD, &[false; HEAD.len()], &jobs.iter().map(row).collect::<Vec<_>>())
}

/// What a job tells of its progress, for people: `{"current": 3, "total": 10}` is `3/10`.
pub(crate) fn progress_text(progress: &Value) -> String {
    match (&progress["current"], &progress["total"], progress) {
        (Value::Number(current), Value::Number(total), _) => format!("{current}/{total}"),
        (.., Value::String(text)) => text.clone(),
        _ => progress.to_string(),
    }
}

/// How long ago a moment was, in whole seconds: `1h 2m 3s`.
fn age(moment: SystemTime) -> String {
    let age = SystemTime::now().duration_since(moment).unwrap_or_default();
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {seconds:02}s"),
        _ => format!("{hours}h {minutes:02}m {seconds:02}s"),
    }
}

/// `cancel` and `revoke`: no worker begins the job any more; with `terminate`, a job that runs is
/// interrupted.
pub(crate) async fn revoke(app: &App, options: &RevokeOptions, output: Output) -> Result<(), Stop> {
    let RevokeOptions { id, terminate } = options;
    let app = attach(app).await?;
    let answers = app.control().revoke(id, *terminate).await;
    let answers = answers.map_err(|error| Stop::broker(&app, error))?;
    detach(&app).await?;
    let facts = json!({ "id": id, "terminate": terminate });
    tell(&app, &format!("job {id} is revoked"), facts, answers, output)
}

/// `pause` and `resume`: whether workers take messages from a queue.
pub(crate) async fn pause(
    app: &App,
    queue: &str,
    pauses: bool,
    output: Output,
) -> Result<(), Stop> {
    let app = attach(app).await?;
    let control = app.control();
    let answers = match pauses {
        true => control.pause(queue).await,
        false => control.resume(queue).await,
    };
    let answers = answers.map_err(|error| Stop::broker(&app, error))?;
    detach(&app).await?;
    let state = if pauses { "paused" } else { "resumed" };
    let facts = json!({ "queue": queue, "paused": pauses });
    tell(&app, &format!("queue {queue} is {state}"), facts, answers, output)
}

/// Prints what the workers answered to a command.
fn tell(
    app: &App,
    done: &str,
    mut facts: Value,
    answers: Vec<Answer>,
    output: Output,
) -> Result<(), Stop> {
    if answers.is_empty() && app.url().starts_with("amqp") {
        return Err(Stop::absent(
            "no worker has answered, and RabbitMQ keeps no commands for workers that start later",
        ));
    }
    let refusals =
        answers.iter().filter_map(|answer| Some((&answer.worker, answer.result.as_ref().err()?)));
    let refusals: Vec<String> =
        refusals.map(|(worker, error)| format!("{worker} refuses: {error}")).collect();
    let count = answers.len() - refusals.len();
    facts["answers"] = answers.iter().map(json_of).collect();
    let workers = if count == 1 { "worker" } else { "workers" };
    output.answer(|| facts, || format!("{done}: {count} {workers} answered"))?;
    match refusals.is_empty() {
        true => Ok(()),
        false => Err(Stop::absent(escaped(&refusals.join("; ")))),
    }
}

fn json_of(answer: &Answer) -> Value {
    match &answer.result {
        Ok(said) => json!({ "worker": answer.worker, "answer": said }),
        Err(error) => json!({ "worker": answer.worker, "error": error }),
    }
}
