//! Jobs that print, wait, or send other jobs.

use std::time::Duration;

use pikake::jobs::{Definition, SendError};
use pikake::{Interrupted, sleep};
use serde_json::Value;

use crate::numbers::add;

#[pikake::job(name = "t.integration.tasks.print_unicode")]
async fn print_unicode(log_message: Option<Value>, print_message: Option<Value>) {
    eprintln!("{}", log_message.unwrap_or_else(|| "håå®ƒ valmuefrø".into()));
    println!("{}", print_message.unwrap_or_else(|| "hiöäüß".into()));
}

/// Acknowledged early, as Celery acknowledges by default: a test looks at that.
#[pikake::job(name = "t.integration.tasks.sleeping", acks = "early")]
async fn sleeping(i: f64) -> Result<(), Interrupted> {
    sleep(Duration::from_secs_f64(i)).await
}

#[pikake::job(name = "t.integration.tasks.return_exception")]
async fn return_exception(e: Value) -> (Value, bool) {
    (e, true)
}

#[pikake::job(name = "t.integration.tasks.chain_add")]
async fn chain_add(x: Value, y: Value) -> Result<(), SendError> {
    add::with(x.clone(), x, None).then(add::after(y, None)).send().await.map(drop)
}

#[pikake::job(name = "t.integration.tasks.replaced_with_me")]
async fn replaced_with_me() -> bool {
    true
}

pub(crate) const JOBS: [Definition; 5] = [
    print_unicode::JOB,
    sleeping::JOB,
    return_exception::JOB,
    chain_add::JOB,
    replaced_with_me::JOB,
];
