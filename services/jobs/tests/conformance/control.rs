//! Control over workers: the same on every broker.

use std::time::Duration;

use pikake_jobs::{App, AppError, Control, Handle, JobError, Report};
use pikake_macros::job;
use pikake_traps::{Interrupted, Task, sleep, spawn, timeout_after};
use serde_json::json;

use crate::help::PATIENCE;
use crate::place::Place;

#[job(crate = pikake_jobs, name = "control.nap")]
async fn nap(millis: u64) -> Result<u64, Interrupted> {
    sleep(Duration::from_millis(millis)).await?;
    Ok(millis)
}

const LONG: u64 = 1_000_000;

async fn client(place: &dyn Place) -> App {
    App::on(place.open().await).connect().await.unwrap()
}

type Running = Task<Result<Report, AppError>>;

async fn worker(place: &dyn Place, name: &str) -> (App, Running) {
    let app = App::on(place.open().await).named(name).jobs([nap::JOB]);
    let task = spawn(app.worker().run());
    let asked = app.clone().connect().await.unwrap().control().to([app.worker_name()]);
    until(async || !asked.ping().await.unwrap().is_empty()).await;
    (app, task)
}

/// Waits until something is so.
async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = timeout_after(2 * PATIENCE, async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await.unwrap();
        }
    });
    waited.await.expect("it comes to be so");
}

async fn send(app: &App, millis: u64) -> Handle<u64> {
    nap::with(millis).on(app).send().await.unwrap()
}

async fn end(control: &Control, workers: Vec<Running>) {
    control.shutdown().await.unwrap();
    for worker in workers {
        timeout_after(2 * PATIENCE, worker).await.expect("it ends").unwrap().unwrap();
    }
}

pub(crate) async fn workers_and_jobs_are_listed(place: &dyn Place) {
    let app = client(place).await;
    let control = app.control().wait(PATIENCE / 4);
    let (_one, one) = worker(place, "one@here").await;
    let (_two, two) = worker(place, "two@here").await;
    assert_eq!(control.ping().await.unwrap(), ["one@here", "two@here"]);
    let workers = control.workers().await.unwrap();
    let seen: Vec<_> = workers.iter().map(|it| (&*it.name, it.concurrency, &it.queues)).collect();
    let queues = vec!["pikake".to_owned()];
    assert_eq!(seen, [("one@here", Some(64), &queues), ("two@here", Some(64), &queues)]);
    let job = send(&app, LONG).await;
    until(async || control.running().await.unwrap().len() == 1).await;
    let found = control.query(&job.id().0).await.unwrap();
    assert_eq!((&*found[0].name, &*found[0].arguments), ("control.nap", "1000000"));
    let answers = control.revoke(&job.id().0, true).await.unwrap();
    let terminated = Ok(json!({"ok": format!("terminate: {}", job.id())}));
    assert_eq!(answers.iter().filter(|answer| answer.result == terminated).count(), 1);
    let outcome = timeout_after(PATIENCE, job.wait()).await.unwrap();
    assert!(matches!(outcome, Err(JobError::Revoked(_))), "{outcome:?}");
    let only = control.clone().to(["two@here"]).set_concurrency(3).await.unwrap();
    assert_eq!((only.len(), &*only[0].worker), (1, "two@here"));
    end(&control, vec![one, two]).await;
}

pub(crate) async fn a_revoke_is_known_later(place: &dyn Place) {
    let app = client(place).await;
    let control = app.control().wait(PATIENCE / 4);
    let (_one, one) = worker(place, "one@here").await;
    control.pause("pikake").await.unwrap();
    let (job, other) = (send(&app, 7).await, send(&app, 8).await);
    control.revoke(&job.id().0, false).await.unwrap();
    let (_two, two) = worker(place, "two@here").await;
    end(&control.clone().to(["one@here"]), vec![one]).await;
    assert_eq!(control.paused().await.unwrap(), ["pikake"]);
    let early = timeout_after(Duration::from_millis(300), other.wait()).await;
    assert!(early.is_err(), "the queue is paused");
    control.resume("pikake").await.unwrap();
    assert_eq!(timeout_after(PATIENCE, other.wait()).await.unwrap().unwrap(), 8);
    let outcome = timeout_after(PATIENCE, job.wait()).await.unwrap();
    assert!(matches!(outcome, Err(JobError::Revoked(_))), "{outcome:?}");
    end(&control, vec![two]).await;
}

pub(crate) async fn events_are_delivered(place: &dyn Place) {
    let app = client(place).await;
    let control = app.control().wait(PATIENCE / 4);
    let mut events = control.events().await.unwrap();
    let (_one, one) = worker(place, "one@here").await;
    control.enable_events(true).await.unwrap();
    let job = send(&app, 7).await;
    job.wait().await.unwrap();
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "task-succeeded") {
        let event = timeout_after(PATIENCE, events.next()).await.expect("an event").unwrap();
        if event.job.as_ref() == Some(&job.id().0) {
            kinds.push(event.kind);
        }
    }
    assert_eq!(kinds, ["task-received", "task-started", "task-succeeded"]);
    end(&control, vec![one]).await;
}
