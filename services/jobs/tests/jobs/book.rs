//! The tests of the book's page *Test your jobs*.

// ANCHOR: jobs
use pikake::jobs::{App, JobError, MemoryStore, Missed, Schedule, current_job};
use pikake::time::Instant;
use std::rc::Rc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// Charges a customer. The bank has time for the third attempt.
#[pikake::job(retries = 5, backoff(first = "10m", cap = "2h"))]
async fn charge(order: u64) -> Result<String, String> {
    match current_job().retries() {
        0 | 1 => Err("the bank is busy".to_owned()),
        _ => Ok(format!("order {order} is paid")),
    }
}

/// Asks a bank that never answers.
#[pikake::job(soft_limit = "30s")]
async fn balance() -> Result<i64, pikake::Interrupted> {
    pikake::sleep(24 * HOUR).await?;
    Ok(0)
}
// ANCHOR_END: jobs

// ANCHOR: retries
#[pikake::sim(seeds = 20)]
async fn a_charge_is_made_after_an_hour_and_two_retries() {
    let app = App::new("memory://").unwrap().jobs([charge::JOB]).connect().await.unwrap();
    let worker = pikake::spawn(app.run_worker());
    let begin = Instant::now();

    let job = charge::with(7).countdown(HOUR).send().await.unwrap();
    assert_eq!(job.wait().await.unwrap(), "order 7 is paid");
    assert!((HOUR..HOUR + Duration::from_secs(30 * 60)).contains(&begin.elapsed()));

    worker.request_cancel("the test is over");
    let report = worker.await.unwrap().unwrap();
    assert_eq!((report.stats.all.done, report.stats.all.retried), (1, 2));
}
// ANCHOR_END: retries

// ANCHOR: limit
#[pikake::sim(seeds = 20)]
async fn a_job_without_an_answer_fails_after_its_limit() {
    let app = App::new("memory://").unwrap().jobs([balance::JOB]).connect().await.unwrap();
    let worker = pikake::spawn(app.run_worker()).cancel_on_drop();

    let failed = match balance::delay().await.unwrap().wait().await {
        Err(JobError::Failed(failure)) => failure.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed, "SoftTimeLimitExceeded");
    drop(worker);
}
// ANCHOR_END: limit

// ANCHOR: crash
#[pikake::sim(seeds = 20)]
async fn a_charge_survives_its_worker() {
    let store = MemoryStore::new();
    let worker_of = || {
        let app = App::on(Rc::new(store.open())).jobs([charge::JOB]);
        pikake::spawn(app.run_worker())
    };
    let first = worker_of();
    let shop = App::on(Rc::new(store.open())).connect().await.unwrap();
    let job = charge::with(7).on(&shop).send().await.unwrap();
    pikake::sleep(Duration::from_secs(1)).await.unwrap();

    // The first worker ends without a word, in the middle of its retries.
    first.abort();
    let second = worker_of();
    assert_eq!(job.wait().await.unwrap(), "order 7 is paid");
    second.request_cancel("the test is over");
    second.await.unwrap().unwrap();
}
// ANCHOR_END: crash

// ANCHOR: schedule
#[pikake::sim(seeds = 20)]
async fn the_balance_is_asked_for_each_hour() {
    let hourly = Schedule::cron("0 * * * *", "UTC", balance::with()).unwrap();
    let app = App::new("memory://").unwrap().jobs([balance::JOB]);
    let app = app.schedule(hourly.missed(Missed::Skip));
    let worker = pikake::spawn(app.run_worker());
    pikake::sleep(3 * HOUR + HOUR / 2).await.unwrap();
    worker.request_cancel("the test is over");
    assert_eq!(worker.await.unwrap().unwrap().stats.all.failed, 3);
}
// ANCHOR_END: schedule

// ANCHOR: sent
#[pikake::sim(seeds = 20)]
async fn a_charge_is_sent_and_not_run() {
    let store = MemoryStore::new();
    let app = App::on(Rc::new(store.open())).connect().await.unwrap();
    charge::delay(7).await.unwrap();

    let broker = app.broker().unwrap();
    assert_eq!(broker.counts("pikake").await.unwrap().ready, 1);
    let mut messages = broker.consume("pikake", 1).await.unwrap();
    let message = messages.next().await.unwrap().unwrap().message;
    assert_eq!(
        message.body,
        br#"[[7],{},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]"#
    );
}
// ANCHOR_END: sent
