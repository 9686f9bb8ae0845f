//! `send`: sends a job, and waits for its value.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pikake::jobs::{App, Call, JobError, OutcomeState};
use pikake::{TimedOut, spawn, timeout_after};
use serde_json::{Map, Value, json};
use strsim::jaro_winkler;

use crate::arguments::SendOptions;
use crate::output::{Output, Spinner, note};
use crate::result::{failed, revoked};
use crate::stop::Stop;

/// The likeness from which on a name may be a mistake for another one, as clap has it.
const ALIKE: f64 = 0.8;

/// How far the command has come, for an error at its time limit.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The broker has not let the program in.
    Connecting,
    /// The job may have been sent.
    Sending,
    /// The job was sent.
    Sent,
}

/// What the command knows so far.
#[derive(Debug)]
struct Progress {
    stage: Cell<Stage>,
    facts: RefCell<Value>,
}

pub(crate) async fn run(app: &App, options: SendOptions, output: Output) -> Result<(), Stop> {
    if !options.unregistered {
        check_name(app, &options.name)?;
    }
    let sender = sender(app)?;
    let call = call(app, &sender, &options)?;
    let queue = options.queue.clone().unwrap_or_else(|| queue_of(app, &options.name));
    let progress = Rc::new(Progress {
        stage: Cell::new(Stage::Connecting),
        facts: RefCell::new(json!({ "job": options.name, "queue": queue })),
    });
    let limit = options.timeout;
    let name = options.name.clone();
    let sending = spawn(send(app.clone(), sender, call, options, output, progress.clone()));
    let Some(limit) = limit else { return sending.await.map_err(Stop::other)? };
    // Nothing of the task is waited for after the limit: the broker may not answer.
    match timeout_after(limit, sending).await {
        Ok(sent) => sent.map_err(Stop::other)?,
        Err(TimedOut) => Err(late(&progress, limit, &name, &queue, output)),
    }
}

/// Sends the job, and waits for its outcome if that is asked for.
async fn send(
    app: App,
    sender: App,
    call: Call<Value>,
    options: SendOptions,
    output: Output,
    progress: Rc<Progress>,
) -> Result<(), Stop> {
    let connected = sender.connect().await.map_err(|error| Stop::app_at(&app, error))?;
    progress.stage.set(Stage::Sending);
    let handle = call.on(&connected).send().await.map_err(|error| Stop::send(&app, error))?;
    let id = handle.id().0.clone();
    progress.facts.borrow_mut()["id"] = id.clone().into();
    progress.stage.set(Stage::Sent);
    let mut ended = Ok(());
    if options.wait {
        let _waiting = Spinner::new(format!("{} {id}", options.name));
        let waited = handle.wait().await;
        ended = add_outcome(&app, waited, &mut progress.facts.borrow_mut(), &options.name);
    }
    let facts = progress.facts.borrow().clone();
    // The exit code is that of the job's failure even if standard output cannot be written.
    let printed = match &ended {
        Ok(()) => output.answer(|| facts.clone(), || text(&facts)),
        Err(_) if output.is_json() && facts.get("state").is_some() => {
            output.answer(|| facts.clone(), String::new)
        }
        Err(_) => Ok(()),
    };
    // Dropped, it would remove the outcome, for which `result` may ask later.
    std::mem::forget(handle);
    let closed = connected.close().await.map_err(|error| Stop::broker(&app, error));
    ended.and(printed).and(closed)
}

/// The command has not ended within its limit.
fn late(progress: &Progress, limit: Duration, name: &str, queue: &str, output: Output) -> Stop {
    let why = match progress.stage.get() {
        Stage::Connecting => {
            format!("{name} was not sent: the broker has not answered within {limit:?}")
        }
        Stage::Sending => format!(
            "{name} may have been sent or not: the broker has not confirmed it within {limit:?}"
        ),
        Stage::Sent => {
            let mut facts = progress.facts.borrow().clone();
            let id = facts["id"].as_str().unwrap_or_default().to_owned();
            if output.is_json() {
                facts["state"] = Value::Null;
                // The exit code says more than an output that cannot be written.
                let _ = output.answer(|| facts, String::new);
            }
            format!(
                "{name} has not ended within {limit:?}; the job goes on, with id {id}\nDoes a worker run? `status \
                 {queue}` shows the waiting jobs."
            )
        }
    };
    Stop::timed_out(why).abruptly()
}

/// Refuses the name of a job that the program does not have. A program without jobs, such as
/// `pikake`, knows no names.
fn check_name(app: &App, name: &str) -> Result<(), Stop> {
    let known = app.job_names();
    if known.is_empty() || app.definition(name).is_some() {
        return Ok(());
    }
    let likely = known.iter().map(|job| (likeness(name, job), job));
    let likely = likely.filter(|(likeness, _)| *likeness >= ALIKE);
    let meant = match likely.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        Some((_, job)) => format!("did you mean `{job}`?"),
        None => format!("its jobs are: {}", known.join(", ")),
    };
    Err(Stop::usage(format!(
        "this program has no job `{name}`; {meant}\n`--unregistered` sends a job that only another program has."
    )))
}

/// How alike two names of jobs are, from 0 to 1. A job is often called by the last part of its
/// name.
fn likeness(name: &str, job: &str) -> f64 {
    let last = job.rsplit(['.', ':']).next().unwrap_or(job);
    jaro_winkler(name, job).max(jaro_winkler(name, last))
}

/// The application without its setup hook, schedules and jobs, which only its worker uses.
fn sender(app: &App) -> Result<App, Stop> {
    let mut sender =
        App::new(app.url()).map_err(Stop::app)?.default_queue(app.default_queue_name());
    if let Some(url) = app.results_url() {
        sender = sender.results(url).map_err(Stop::app)?;
    }
    for (name, options) in app.queues() {
        sender = sender.queue(name, options);
    }
    Ok(sender)
}

fn queue_of(app: &App, job: &str) -> String {
    let queue = app.definition(job).and_then(|definition| definition.options.queue);
    queue.map_or_else(|| app.default_queue_name(), str::to_owned)
}

fn call(app: &App, sender: &App, options: &SendOptions) -> Result<Call<Value>, Stop> {
    let mut arguments = Vec::new();
    for (at, text) in (1..).zip(&options.arguments) {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            Stop::usage(format!(
                "argument {at} of `{}`, `{text}`, is not JSON: {error}\nA text is written '\"{text}\"', with both \
                 kinds of quotes for the shell.",
                options.name
            ))
        })?;
        arguments.push(value);
    }
    let mut call = Call::named(&options.name, arguments).queue(queue_of(app, &options.name));
    if let Some(text) = &options.kwargs {
        let kwargs: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
            Stop::usage(format!(
                "--kwargs `{text}` is not a JSON object, as '{{\"to\": \"ann\"}}' is: {error}"
            ))
        })?;
        call = call.kwargs(kwargs);
    }
    if let Some(definition) = app.definition(&options.name) {
        let defaults = definition.options;
        call = call.priority(defaults.priority);
        if let Some(length) = defaults.expires {
            call = call.expires(length);
        }
        if defaults.ignore_result {
            call = call.ignore_result();
        }
    }
    if let Some(queue) = &options.queue {
        call = call.queue(queue);
    }
    if let Some(length) = options.countdown {
        call = call.countdown(length);
    }
    if let Some(moment) = options.eta {
        call = call.eta(moment.into());
    }
    if let Some(length) = options.expires {
        call = call.expires(length);
    }
    if let Some(priority) = options.priority {
        call = call.priority(priority);
    }
    if let Some(id) = &options.id {
        call = call.id(id);
    }
    Ok(call.on(sender))
}

/// Adds the job's outcome to the facts, and returns how the command ends.
fn add_outcome(
    app: &App,
    waited: Result<Value, JobError>,
    facts: &mut Value,
    name: &str,
) -> Result<(), Stop> {
    match waited {
        Ok(value) => {
            facts["state"] = OutcomeState::Success.as_str().into();
            facts["value"] = value;
            Ok(())
        }
        Err(JobError::Failed(failure)) => {
            let is_unknown = failure.kind == "NotRegistered";
            let stop = failed(facts, name, failure);
            if is_unknown {
                let queue = facts["queue"].as_str().unwrap_or_default();
                note(&format!(
                    "The worker of queue `{queue}` does not know this job. Its message is dead (`dead list {queue}`); \
                     when a worker knows the job, run `dead replay {queue}`."
                ));
            }
            Err(stop)
        }
        Err(JobError::Revoked(why)) => Err(revoked(facts, name, why)),
        Err(error) => Err(Stop::wait(app, error)),
    }
}

/// The value of a job that was waited for, or the id.
fn text(facts: &Value) -> String {
    match facts.get("value") {
        Some(value) => value.to_string(),
        None => facts["id"].as_str().unwrap_or_default().to_owned(),
    }
}
