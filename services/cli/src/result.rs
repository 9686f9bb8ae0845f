//! `result`: the state of a job, with its value or error.

use pikake::jobs::{App, Failure, JobId, Outcome, OutcomeState};
use serde_json::{Value, json};

use crate::control::progress_text;
use crate::output::{Output, note};
use crate::queues::{attach, broker, detach};
use crate::stop::Stop;

pub(crate) async fn run(app: &App, id: String, output: Output) -> Result<(), Stop> {
    let job = JobId(id);
    let app = &attach(app).await?;
    let outcome = broker(app)?.outcome(&job).await.map_err(|error| Stop::broker(app, error))?;
    detach(app).await?;
    let Some(outcome) = outcome else {
        return Err(Stop::absent(
            match app.url().starts_with("amqp") && app.results_url().is_none() {
                true => format!(
                    "RabbitMQ keeps no results, so nobody can ask for that of job {job} later: it goes to the program that \
                 sent the job, as `send --wait` does. `--results redis://host` asks a Redis that has it"
                ),
                false => format!(
                    "no result of job {job} is known: the job has not ended, ignores its result, or was never sent here"
                ),
            },
        ));
    };
    let mut facts = json!({ "id": job.0 });
    let ended = add_outcome(&mut facts, outcome);
    let printed = match &ended {
        Err(_) if !output.is_json() => Ok(()),
        _ => output.answer(|| facts.clone(), || facts["value"].to_string()),
    };
    ended.and(printed)
}

/// Adds the outcome of a job to the facts about it, writes its error, and returns how the command
/// ends.
fn add_outcome(facts: &mut Value, outcome: Outcome) -> Result<(), Stop> {
    let id = facts["id"].as_str().unwrap_or_default().to_owned();
    facts["state"] = outcome.state.as_str().into();
    match outcome.state {
        OutcomeState::Success => {
            facts["value"] = outcome.result;
            Ok(())
        }
        OutcomeState::Failure => Err(failed(facts, &id, Failure::from_outcome(outcome))),
        OutcomeState::Revoked => Err(revoked(facts, &id, Failure::from_outcome(outcome).message)),
        OutcomeState::Progress => {
            let told = progress_text(&outcome.result);
            facts["progress"] = outcome.result;
            Err(Stop::timed_out(format!("job {id} has not ended: its progress is {told}")))
        }
        state => Err(Stop::timed_out(format!("job {id} has not ended: {state}"))),
    }
}

/// A job has failed for good.
pub(crate) fn failed(facts: &mut Value, name: &str, failure: Failure) -> Stop {
    note(&format!("error: {name} failed: {failure}"));
    let Failure { kind, module, message, traceback, .. } = failure;
    if let Some(traceback) = &traceback {
        note(traceback);
    }
    facts["state"] = OutcomeState::Failure.as_str().into();
    facts["error"] =
        json!({ "kind": kind, "module": module, "message": message, "traceback": traceback });
    Stop::job_failed()
}

/// A job was revoked, for this reason.
pub(crate) fn revoked(facts: &mut Value, name: &str, why: String) -> Stop {
    note(&format!("error: {name} was revoked: {why}"));
    facts["state"] = OutcomeState::Revoked.as_str().into();
    facts["error"] = why.into();
    Stop::job_failed()
}
