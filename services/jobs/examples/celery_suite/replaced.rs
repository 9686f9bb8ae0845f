//! Jobs that return a workflow in the place of a value, and members for their chord.

use std::io;

use pikake::jobs::{Call, Definition, Next, Returns, Workflow, current_job, map};
use serde_json::{Value, json};

use crate::numbers::{add, identity, tsum};
use crate::redis::{redis, redis_echo};

fn fail() -> Call<Value> {
    Call::named("t.integration.tasks.fail", [(); 0])
}

#[pikake::job(name = "t.integration.tasks.add_replaced")]
async fn add_replaced(x: Value, y: Value) -> Workflow<Value> {
    add::with(x, y, None).into()
}

#[pikake::job(name = "t.integration.tasks.record_replaced_task_nesting")]
async fn record_replaced_task_nesting(
    replacements: u32,
    nesting: Option<Vec<u32>>,
) -> Returns<Vec<u32>> {
    let mut nesting = nesting.unwrap_or_default();
    nesting.push(current_job().replacements());
    match replacements {
        0 => Returns::Value(nesting),
        more => record_replaced_task_nesting::with(more - 1, Some(nesting)).into(),
    }
}

#[pikake::job(name = "t.integration.tasks.add_replaced_with_chain")]
async fn add_replaced_with_chain(x: Value, y: Value) -> Workflow<Value> {
    add::with(x, y, None).then(identity::after())
}

#[pikake::job(name = "t.integration.tasks.replace_with_chain")]
async fn replace_with_chain(value: Value, link_msg: Option<Value>) -> Workflow<Value> {
    let chain = identity::with(value).then(identity::after());
    match link_msg {
        Some(message) => chain.on_success(redis_echo::with(message, None)),
        None => chain.on_success(redis_echo::after(None)),
    }
}

#[pikake::job(name = "t.integration.tasks.replace_with_chain_which_raises")]
async fn replace_with_chain_which_raises(value: Value, link_msg: Option<Value>) -> Workflow<Value> {
    let raises = Next::<Value, Value>::named("t.integration.tasks.raise_error", [(); 0]);
    let chain = identity::with(value).then(raises);
    match link_msg {
        Some(message) => chain.on_failure(redis_echo::with(message, None)),
        None => {
            let echo = Next::<String, ()>::named("t.integration.tasks.redis_echo", [(); 0]);
            chain.on_failure(echo)
        }
    }
}

/// A group after a job: a job that returns one.
#[pikake::job(name = "t.integration.tasks.add_one_twice")]
async fn add_one_twice(value: Value) -> Workflow<Vec<Value>> {
    map(|one| add::with(value.clone(), one.into(), None), [1, 1]).collect()
}

#[pikake::job(name = "t.integration.tasks.replace_with_chain_which_contains_a_group")]
async fn replace_with_chain_which_contains_a_group() -> Workflow<Vec<Value>> {
    add::with(1.into(), 2.into(), None).then(add_one_twice::after())
}

#[pikake::job(name = "t.integration.tasks.add_to_all")]
async fn add_to_all(nums: Vec<Value>, val: Value) -> Workflow<Vec<Value>> {
    map(|num| add::with(num, val.clone(), None), nums).collect()
}

#[pikake::job(name = "t.integration.tasks.add_to_all_to_chord")]
async fn add_to_all_to_chord(nums: Vec<Value>, val: Value) -> Returns<Value> {
    let members = nums.into_iter().map(|num| add::with(num, val.clone(), None).into());
    Returns::Members(0.into(), members.collect())
}

#[pikake::job(name = "t.integration.tasks.add_chord_to_chord")]
async fn add_chord_to_chord(nums: Vec<i64>, val: i64) -> Returns<i64> {
    let adds = map(|num| Call::<i64>::named("t.integration.tasks.add", (num, val)), nums);
    Returns::Members(0, vec![adds.then(tsum::after())])
}

#[pikake::job(name = "t.integration.tasks.second_order_replace1")]
fn second_order_replace1(state: Option<bool>) -> io::Result<Returns<()>> {
    if state == Some(true) {
        redis(&["RPUSH", "redis-echo", "Out A"])?;
        return Ok(Returns::Value(()));
    }
    redis(&["RPUSH", "redis-echo", "In A"])?;
    let inner = second_order_replace2::with(None);
    Ok(inner.then(second_order_replace1::with(Some(true))).into())
}

#[pikake::job(name = "t.integration.tasks.second_order_replace2")]
fn second_order_replace2(state: Option<bool>) -> io::Result<Returns<()>> {
    if state == Some(true) {
        redis(&["RPUSH", "redis-echo", "Out B"])?;
        return Ok(Returns::Value(()));
    }
    redis(&["RPUSH", "redis-echo", "In B"])?;
    let inner = redis_echo::with("In/Out C".into(), None);
    Ok(inner.then(second_order_replace2::with(Some(true))).into())
}

#[pikake::job(name = "t.integration.tasks.fail_replaced")]
async fn fail_replaced() -> Workflow<Value> {
    fail().into()
}

/// The stamp is that of Python's `StampOnReplace`.
#[pikake::job(name = "t.integration.tasks.replace_with_stamped_task")]
async fn replace_with_stamped_task(replace_with: Option<Value>) -> Workflow<Value> {
    let name = replace_with.as_ref().and_then(|signature| signature["task"].as_str());
    let call = Call::named(name.unwrap_or("t.integration.tasks.replaced_with_me"), [(); 0]);
    let stamps = json!({ "StampOnReplace": "This is the replaced task" });
    call.header("stamped_headers", ["StampOnReplace"]).header("stamps", stamps).into()
}

pub(crate) const JOBS: [Definition; 14] = [
    add_replaced::JOB,
    record_replaced_task_nesting::JOB,
    add_replaced_with_chain::JOB,
    replace_with_chain::JOB,
    replace_with_chain_which_raises::JOB,
    add_one_twice::JOB,
    replace_with_chain_which_contains_a_group::JOB,
    add_to_all::JOB,
    add_to_all_to_chord::JOB,
    add_chord_to_chord::JOB,
    second_order_replace1::JOB,
    second_order_replace2::JOB,
    fail_replaced::JOB,
    replace_with_stamped_task::JOB,
];
