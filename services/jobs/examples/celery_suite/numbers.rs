//! Jobs that count.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use pikake::jobs::{Definition, Failure};
use pikake::{Interrupted, sleep};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Python's `+` of numbers, of texts and of lists.
fn plus(x: &Value, y: &Value) -> Result<Value, Failure> {
    match (x, y) {
        (Value::String(x), Value::String(y)) => Ok(format!("{x}{y}").into()),
        (Value::Array(x), Value::Array(y)) => Ok([&x[..], y].concat().into()),
        _ => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => Ok((x + y).into()),
            _ => Err(Failure::new("TypeError", "builtins", format!("unsupported: {x} + {y}"))),
        },
    }
}

#[pikake::job(name = "t.integration.tasks.add")]
pub(crate) async fn add(x: Value, y: Value, z: Option<Value>) -> Result<Value, Failure> {
    let sum = plus(&x, &y)?;
    z.map_or(Ok(sum.clone()), |z| plus(&sum, &z))
}

#[pikake::job(name = "t.integration.tasks.mul")]
async fn mul(x: i64, y: i64) -> i64 {
    x * y
}

#[pikake::job(name = "t.integration.tasks.add_not_typed")]
async fn add_not_typed(x: i64, y: i64) -> i64 {
    x + y
}

#[pikake::job(name = "t.integration.tasks.add_ignore_result", ignore_result)]
async fn add_ignore_result(x: i64, y: i64) -> i64 {
    x + y
}

#[pikake::job(name = "t.integration.tasks.add_with_result")]
async fn add_with_result(x: i64, y: i64) -> i64 {
    x + y
}

#[pikake::job(name = "t.integration.tasks.tsum")]
pub(crate) async fn tsum(nums: Vec<i64>) -> i64 {
    nums.into_iter().sum()
}

/// A number, or a list of numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Summand {
    One(i64),
    Many(Vec<i64>),
}

#[pikake::job(name = "t.integration.tasks.xsum")]
async fn xsum(nums: Vec<Summand>) -> i64 {
    let sums = nums.into_iter().map(|summand| match summand {
        Summand::One(number) => number,
        Summand::Many(numbers) => numbers.into_iter().sum(),
    });
    sums.sum()
}

fn pause_of(pause_time: Option<f64>) -> Duration {
    Duration::from_secs_f64(pause_time.unwrap_or(1.0))
}

#[pikake::job(name = "t.integration.tasks.delayed_sum")]
async fn delayed_sum(numbers: Vec<i64>, pause_time: Option<f64>) -> Result<i64, Interrupted> {
    sleep(pause_of(pause_time)).await?;
    Ok(numbers.into_iter().sum())
}

#[pikake::job(name = "t.integration.tasks.delayed_sum_with_soft_guard")]
async fn delayed_sum_with_soft_guard(numbers: Vec<i64>, pause_time: Option<f64>) -> i64 {
    match sleep(pause_of(pause_time)).await {
        Ok(()) => numbers.into_iter().sum(),
        // The soft limit.
        Err(_) => 0,
    }
}

#[pikake::job(name = "t.integration.tasks.write_to_file_and_return_int")]
fn write_to_file_and_return_int(file_name: String, i: i64) -> std::io::Result<i64> {
    let mut file = OpenOptions::new().append(true).create(true).open(file_name)?;
    writeln!(file, "{i}")?;
    Ok(i)
}

#[derive(Serialize, Deserialize)]
struct Summands {
    x: i64,
    y: i64,
}

#[derive(Serialize, Deserialize)]
struct Sum {
    result: i64,
}

#[pikake::job(name = "t.integration.tasks.add_pydantic")]
async fn add_pydantic(data: Summands) -> Sum {
    Sum { result: data.x + data.y }
}

#[pikake::job(name = "t.integration.tasks.add_pydantic_string_annotations")]
async fn add_pydantic_string_annotations(data: Summands) -> Sum {
    add_pydantic(data).await
}

#[pikake::job(name = "t.integration.tasks.identity")]
pub(crate) async fn identity(x: Value) -> Value {
    x
}

pub(crate) const JOBS: [Definition; 13] = [
    add::JOB,
    mul::JOB,
    add_not_typed::JOB,
    add_ignore_result::JOB,
    add_with_result::JOB,
    tsum::JOB,
    xsum::JOB,
    delayed_sum::JOB,
    delayed_sum_with_soft_guard::JOB,
    write_to_file_and_return_int::JOB,
    add_pydantic::JOB,
    add_pydantic_string_annotations::JOB,
    identity::JOB,
];
