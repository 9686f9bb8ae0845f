//! `send`: sends a job, and waits for its value.

use pikake::jobs::{App, Call, Failure, JobError};
use pikake::timeout_after;
use serde_json::{Map, Value, json};

use crate::arguments::SendOptions;
use crate::output::{Output, Spinner, note};
use crate::stop::Stop;

pub(crate) async fn run(app: &App, options: SendOptions, output: &Output) -> Result<(), Stop> {
    let sender = sender(app)?;
    let call = call(app, &sender, &options)?;
    let queue = options.queue.clone().unwrap_or_else(|| queue_of(app, &options.name));
    let connected = sender.connect().await.map_err(|error| Stop::app_at(app, error))?;
    let handle = call.on(&connected).send().await.map_err(|error| Stop::send(app, error))?;
    let id = handle.id().0.clone();
    let mut facts = json!({ "id": id, "job": options.name, "queue": queue });
    let mut ended = Ok(());
    if options.wait {
        let _waiting = Spinner::new(format!("{} {id}", options.name));
        let waited = match options.timeout {
            None => Some(handle.wait().await),
            Some(limit) => timeout_after(limit, handle.wait()).await.ok(),
        };
        ended = add_outcome(app, waited, &mut facts, &options, &queue);
    }
    // The exit code is that of the job's failure even if standard output cannot be written.
    let printed = match &ended {
        Ok(()) => output.answer(|| facts.clone(), || text(&facts)),
        Err(_) if output.is_json() && facts.get("state").is_some() => {
            output.answer(|| facts.clone(), String::new)
        }
        Err(_) => Ok(()),
    };
    drop(handle);
    let closed = connected.close().await.map_err(|error| Stop::broker(app, error));
    ended.and(printed).and(closed)
}

/// The application without its setup hook, schedules and jobs, which only its worker uses.
fn sender(app: &App) -> Result<App, Stop> {
    let mut sender =
        App::new(app.url()).map_err(Stop::app)?.default_queue(app.default_queue_name());
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
    Ok(call.on(sender))
}

/// Adds the job's outcome to the facts, and returns how the command ends.
fn add_outcome(
    app: &App,
    waited: Option<Result<Value, JobError>>,
    facts: &mut Value,
    options: &SendOptions,
    queue: &str,
) -> Result<(), Stop> {
    let name = &options.name;
    match waited {
        Some(Ok(value)) => {
            facts["state"] = "SUCCESS".into();
            facts["value"] = value;
            Ok(())
        }
        Some(Err(JobError::Failed(failure))) => {
            note(&format!("error: {name} failed: {failure}"));
            if failure.kind == "NotRegistered" {
                note(&format!(
                    "The worker of queue `{queue}` does not know this job. Its message is dead (`dead list {queue}`); \
                     when a worker knows the job, run `dead replay {queue}`."
                ));
            }
            if let Some(traceback) = &failure.traceback {
                note(traceback);
            }
            facts["state"] = "FAILURE".into();
            facts["error"] = error(failure);
            Err(Stop::job_failed())
        }
        Some(Err(JobError::Revoked(why))) => {
            note(&format!("error: {name} was revoked: {why}"));
            facts["state"] = "REVOKED".into();
            facts["error"] = why.into();
            Err(Stop::job_failed())
        }
        Some(Err(error)) => Err(Stop::wait(app, error)),
        None => {
            facts["state"] = Value::Null;
            let limit = options.timeout.unwrap_or_default();
            Err(Stop::timed_out(format!(
                "{name} has not ended within {limit:?}; the job goes on, with id {}\nDoes a worker run? \
                 `status {queue}` shows the waiting jobs.",
                facts["id"].as_str().unwrap_or_default()
            )))
        }
    }
}

fn error(failure: Failure) -> Value {
    let Failure { kind, module, message, traceback, .. } = failure;
    json!({ "kind": kind, "module": module, "message": message, "traceback": traceback })
}

/// The value of a job that was waited for, or the id.
fn text(facts: &Value) -> String {
    match facts.get("value") {
        Some(value) => value.to_string(),
        None => facts["id"].as_str().unwrap_or_default().to_owned(),
    }
}
