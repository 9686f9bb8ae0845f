//! Jobs whose values are signatures in Celery's form, and a job that reads one.

use pikake::jobs::Definition;
use serde_json::{Value, json};

fn signature(task: &str, kwargs: Value, kind: Option<&str>) -> Value {
    json!({
        "task": task, "args": [], "kwargs": kwargs, "options": {}, "subtask_type": kind,
        "immutable": false,
    })
}

fn add() -> Value {
    signature("t.integration.tasks.add", json!({}), None)
}

fn chain(task: Value) -> Value {
    signature("celery.chain", json!({ "tasks": [task] }), Some("chain"))
}

fn group(task: Value) -> Value {
    signature("celery.group", json!({ "tasks": [task] }), Some("group"))
}

fn chord(header: Value) -> Value {
    signature("celery.chord", json!({ "header": [header], "body": add() }), Some("chord"))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chain_chain")]
async fn chain_chain() -> Value {
    chain(chain(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chain_group")]
async fn chain_group() -> Value {
    chain(group(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chain_chord")]
async fn chain_chord() -> Value {
    chain(chord(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_group_chain")]
async fn group_chain() -> Value {
    group(chain(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_group_group")]
async fn group_group() -> Value {
    group(group(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_group_chord")]
async fn group_chord() -> Value {
    group(chord(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chord_chain")]
async fn chord_chain() -> Value {
    chord(chain(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chord_group")]
async fn chord_group() -> Value {
    chord(group(add()))
}

#[pikake::job(name = "t.integration.tasks.return_nested_signature_chord_chord")]
async fn chord_chord() -> Value {
    chord(chord(add()))
}

/// Fails unless the value is a signature, and all signatures in it are.
#[pikake::job(name = "t.integration.tasks.rebuild_signature")]
async fn rebuild_signature(sig_dict: Value) -> Result<(), String> {
    let mut left = vec![sig_dict];
    while let Some(next) = left.pop() {
        if !next["task"].is_string() || !next["args"].is_array() || !next["options"].is_object() {
            return Err(format!("{next} is no signature"));
        }
        let kwargs = &next["kwargs"];
        for name in ["tasks", "header"] {
            left.extend(kwargs[name].as_array().into_iter().flatten().cloned());
        }
        left.extend(kwargs.get("body").cloned());
    }
    Ok(())
}

pub(crate) const JOBS: [Definition; 10] = [
    chain_chain::JOB,
    chain_group::JOB,
    chain_chord::JOB,
    group_chain::JOB,
    group_group::JOB,
    group_chord::JOB,
    chord_chain::JOB,
    chord_group::JOB,
    chord_chord::JOB,
    rebuild_signature::JOB,
];
