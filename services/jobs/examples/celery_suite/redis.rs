//! Jobs that leave something in Redis, where the tests look for it.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

use pikake::jobs::{Definition, current_job};
use serde_json::Value;

/// Gives Redis a command whose answer has one line.
pub(crate) fn redis(command: &[&str]) -> io::Result<()> {
    let [host, port] = ["REDIS_HOST", "REDIS_PORT"].map(|name| env::var(name).unwrap_or_default());
    let mut stream = TcpStream::connect(format!("{host}:{port}"))?;
    let words = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    write!(stream, "*{}\r\n{}", command.len(), words.collect::<String>())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    match answer.starts_with(':') {
        true => Ok(()),
        false => Err(io::Error::other(answer)),
    }
}

/// A value as Python writes it into Redis. Bytes are an object in the JSON of Celery.
fn text(value: &Value) -> String {
    let value = value.get("__value__").unwrap_or(value);
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[pikake::job(name = "t.integration.tasks.redis_echo")]
pub(crate) fn redis_echo(message: Value, redis_key: Option<String>) -> io::Result<()> {
    redis(&["RPUSH", redis_key.as_deref().unwrap_or("redis-echo"), &text(&message)])
}

#[pikake::job(name = "t.integration.tasks.redis_echo_group_id")]
fn redis_echo_group_id(_value: Value, redis_key: Option<String>) -> io::Result<()> {
    let key = redis_key.as_deref().unwrap_or("redis-group-ids");
    redis(&["RPUSH", key, current_job().group().unwrap_or_default()])
}

#[pikake::job(name = "t.integration.tasks.redis_count")]
fn redis_count(redis_key: Option<String>) -> io::Result<()> {
    redis(&["INCR", redis_key.as_deref().unwrap_or("redis-count")])
}

#[pikake::job(name = "t.integration.tasks.sum_and_record")]
fn sum_and_record(values: Vec<i64>, redis_key: String) -> io::Result<i64> {
    redis(&["RPUSH", &redis_key, current_job().id()])?;
    Ok(values.into_iter().sum())
}

#[pikake::job(name = "t.integration.tasks.errback_old_style")]
fn errback_old_style(request_id: String) -> io::Result<String> {
    redis(&["INCR", &request_id])?;
    Ok(request_id)
}

#[pikake::job(name = "t.integration.tasks.errback_old_style_with_args")]
fn errback_old_style_with_args(request_id: String, label: String) -> io::Result<()> {
    redis(&["RPUSH", &request_id, &label])
}

#[pikake::job(name = "t.integration.tasks.errback_new_style")]
fn errback_new_style(request: Value, exc: Value, tb: Value) -> io::Result<String> {
    drop((exc, tb));
    errback_old_style(text(&request["id"]))
}

#[pikake::job(name = "t.integration.tasks.errback_new_style_with_args")]
fn errback_new_style_with_args(
    request: Value,
    exc: Value,
    tb: Value,
    label: String,
) -> io::Result<()> {
    drop((exc, tb));
    redis(&["RPUSH", &text(&request["id"]), &label])
}

pub(crate) const JOBS: [Definition; 8] = [
    redis_echo::JOB,
    redis_echo_group_id::JOB,
    redis_count::JOB,
    sum_and_record::JOB,
    errback_old_style::JOB,
    errback_old_style_with_args::JOB,
    errback_new_style::JOB,
    errback_new_style_with_args::JOB,
];
