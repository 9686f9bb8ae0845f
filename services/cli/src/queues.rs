//! `status` and `purge`: counts and removes the jobs of queues.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::rc::Rc;

use pikake::console::text::escaped;
use pikake::jobs::{App, Broker, BrokerError, Counts, JobInfo};
use pikake::net::BufReader;
use pikake::spawn;
use pikake::stdio::stdin;
use serde_json::{Value, json};

use crate::arguments::WatchOption;
use crate::control::running_text;
use crate::output::{Output, Spinner, jobs_text, note, table};
use crate::stop::Stop;
use crate::watch::{Look, show};
use crate::worker::until_connected;

const HEAD: [&str; 6] = ["queue", "ready", "taken", "delayed", "dead", "consumers"];
/// The state of a connection that takes messages.
const OPEN: &str = "open";
/// The cell of a count that the broker does not know.
const UNKNOWN: &str = "-";

/// Connects to the broker, without setting up the application: no queue is declared.
pub(crate) async fn attach(app: &App) -> Result<App, Stop> {
    check_database(app)?;
    app.clone().attach().await.map_err(|error| Stop::app_at(app, error))
}

/// Connects as [`attach`] does, and waits for a broker that is away.
pub(crate) async fn attach_in_time(app: &App) -> Result<App, Stop> {
    check_database(app)?;
    let attached = until_connected(app, async || app.clone().attach().await).await;
    attached.map_err(|error| Stop::app_at(app, error))
}

fn check_database(app: &App) -> Result<(), Stop> {
    let url = app.url();
    // Opening would create the database.
    if let Some(rest) = url.strip_prefix("sqlite://")
        && let path = rest.split('?').next().unwrap_or(rest)
        && !path.is_empty()
        && !Path::new(path).exists()
    {
        return Err(Stop::absent(format!(
            "there is no database `{path}`: no job was sent there yet, or the path is wrong"
        )));
    }
    Ok(())
}

pub(crate) async fn detach(app: &App) -> Result<(), Stop> {
    app.close().await.map_err(|error| Stop::broker(app, error))
}

/// The broker of an application that is attached.
pub(crate) fn broker(app: &App) -> Result<Rc<dyn Broker>, Stop> {
    app.broker().map_err(|error| Stop::broker(app, error))
}

pub(crate) async fn status(
    app: &App,
    queues: &[String],
    watch: WatchOption,
    output: Output,
) -> Result<(), Stop> {
    let app = attach(app).await?;
    show(output, watch.seconds(), async || look(&app, queues).await).await?;
    detach(&app).await
}

/// The queues, the connection, and what the workers say.
async fn look(app: &App, queues: &[String]) -> Result<Look, Stop> {
    let broker = broker(app)?;
    let mut rows = Vec::new();
    // Given names are a list, too.
    let mut lists_queues = true;
    if queues.is_empty() {
        let known = broker.queues().await.map_err(|error| Stop::broker(app, error))?;
        lists_queues = known.is_some();
        let known = known.unwrap_or_else(|| app.queues().into_keys().collect());
        let counts = broker.counts_of(&known).await.map_err(|error| Stop::broker(app, error))?;
        // The application has not declared a queue without counts yet.
        rows.extend(known.into_iter().zip(counts.into_iter().map(Result::ok)));
    } else {
        let counts = broker.counts_of(queues).await.map_err(|error| Stop::broker(app, error))?;
        for (queue, counts) in queues.iter().zip(counts) {
            let counts = counts.map_err(|error| Stop::queue(app, error))?;
            rows.push((queue.clone(), Some(counts)));
        }
    }
    broker.probe().await.map_err(|error| Stop::broker(app, error))?;
    let state = broker.state();
    // A blocked broker answers nothing after the probe.
    if !lists_queues && state == OPEN {
        let others: Vec<String> = other_queues(app, &rows).await?.into_iter().collect();
        let counts = broker.counts_of(&others).await.map_err(|error| Stop::broker(app, error))?;
        rows.extend(others.into_iter().zip(counts.into_iter().map(Result::ok)));
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let held = match state == OPEN {
        true => Held::ask(app, &mut rows).await?,
        // A broker that takes no messages takes no questions either.
        false => Held::default(),
    };
    let is_of_all = rows.iter().any(|(_, counts)| counts.is_some_and(|of| of.delayed_of_all));
    let queues: Vec<Value> = rows.iter().map(json_of).collect();
    let url = app.redacted_url();
    let rows: Vec<Vec<String>> = rows.iter().map(row_of).collect();
    let is_number = [false, true, true, true, true, true];
    let mut text = format!("{url}: {state}\n{}", table(&HEAD, &is_number, &rows));
    if is_of_all {
        text += "delayed: those of all queues, which wait together\n";
    }
    if !held.paused.is_empty() {
        text += &format!("paused: {}\n", escaped(&held.paused.join(", ")));
    }
    if !held.running.is_empty() {
        text += &running_text(&held.running);
    }
    let json = json!({
        "broker": url, "connection": state, "queues": queues, "paused": held.paused,
        "running": held.running,
    });
    Ok(Look { json, text })
}

/// The queues that workers serve, and that are not among the rows.
async fn other_queues(
    app: &App,
    rows: &[(String, Option<Counts>)],
) -> Result<BTreeSet<String>, Stop> {
    match app.control().workers().await {
        Ok(workers) => {
            let served = workers.into_iter().flat_map(|worker| worker.queues);
            Ok(served.filter(|queue| rows.iter().all(|(shown, _)| shown != queue)).collect())
        }
        // Said when they are asked for their jobs.
        Err(BrokerError::Refused(_)) => Ok(BTreeSet::new()),
        Err(error) => Err(Stop::broker(app, error)),
    }
}

/// What the workers say of the queues.
#[derive(Debug, Default)]
struct Held {
    running: Vec<JobInfo>,
    paused: Vec<String>,
}

impl Held {
    /// Asks the workers, and completes the counts of a broker that does not count taken messages.
    async fn ask(app: &App, rows: &mut [(String, Option<Counts>)]) -> Result<Self, Stop> {
        let control = app.control();
        let (runs, waits) = (control.clone(), control.clone());
        // At the same time: where nobody knows the workers, each question takes a second.
        let running = spawn(async move { runs.running().await });
        let reserved = spawn(async move { waits.reserved().await });
        let paused = control.paused().await;
        let running = running.await.map_err(Stop::other)?;
        let reserved = reserved.await.map_err(Stop::other)?;
        let asked = running.and_then(|running| Ok((running, reserved?, paused?)));
        let (mut running, reserved, mut paused) = match asked {
            Ok(told) => told,
            // The user may only look at queues, say. Their counts are shown all the same.
            Err(BrokerError::Refused(why)) => {
                note(&format!("the workers cannot be asked: {why}"));
                return Ok(Self::default());
            }
            Err(error) => return Err(Stop::broker(app, error)),
        };
        for (queue, counts) in rows.iter_mut() {
            let Some(counts) = counts else { continue };
            let held = running.iter().chain(&reserved).filter(|job| job.queue == *queue).count();
            counts.taken.get_or_insert(held as u64);
        }
        let is_shown = |queue: &String| rows.iter().any(|(shown, _)| shown == queue);
        running.retain(|job| is_shown(&job.queue));
        paused.retain(is_shown);
        Ok(Self { running, paused })
    }
}

fn json_of((queue, counts): &(String, Option<Counts>)) -> Value {
    match counts {
        Some(counts) => json!({
            "queue": queue, "exists": true, "ready": counts.ready, "taken": counts.taken,
            "delayed": counts.delayed, "dead": counts.dead, "consumers": counts.consumers,
        }),
        None => json!({ "queue": queue, "exists": false }),
    }
}

fn row_of((queue, counts): &(String, Option<Counts>)) -> Vec<String> {
    let numbers = counts.as_ref().map_or([None; 5], |counts| {
        let Counts { ready, taken, delayed, dead, consumers, .. } = *counts;
        [Some(ready), taken, Some(delayed), Some(dead), consumers]
    });
    let text = |number: Option<u64>| number.map_or_else(|| UNKNOWN.to_owned(), |n| n.to_string());
    [queue.clone()].into_iter().chain(numbers.map(text)).collect()
}

pub(crate) async fn purge(
    app: &App,
    queue: &str,
    is_confirmed: bool,
    output: &Output,
) -> Result<(), Stop> {
    let app = &attach(app).await?;
    let broker = broker(app)?;
    if !is_confirmed {
        let counts = broker.counts(queue).await.map_err(|error| Stop::queue(app, error))?;
        // How many of those that wait are the queue's, a purge finds out.
        let delayed = if counts.delayed_of_all { 0 } else { counts.delayed };
        confirm(queue, counts.ready + delayed).await?;
    }
    let purged = {
        let _waiting = Spinner::new(format!("purging {queue}"));
        broker.purge(queue).await.map_err(|error| Stop::queue(app, error))?
    };
    detach(app).await?;
    output.answer(
        || json!({ "queue": queue, "purged": purged }),
        || format!("removed from {queue}: {}", jobs_text(purged)),
    )
}

/// Asks for confirmation on a terminal.
async fn confirm(queue: &str, count: u64) -> Result<(), Stop> {
    if !io::stdin().is_terminal() {
        return Err(Stop::usage(format!(
            "{} would be removed from {queue} for good; use `--yes` to confirm",
            jobs_text(count)
        )));
    }
    note(&format!("Remove {} from {queue} for good? [y/N]", jobs_text(count)));
    let answer = BufReader::new(stdin()).next_line().await.map_err(Stop::other)?;
    match answer.as_deref().map(str::trim) {
        Some("y" | "Y" | "yes") => Ok(()),
        _ => Err(Stop::usage("nothing was removed")),
    }
}
