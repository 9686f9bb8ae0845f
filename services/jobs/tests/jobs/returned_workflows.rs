//! Jobs that return a workflow in the place of a value, and members for their chord.

use std::rc::Rc;

use pikake_jobs::{
    App, Broker, Call, JobError, JobId, MemoryStore, Outcome, Returns, Workflow, current_job,
    group, map,
};
use pikake_macros::job;
use pikake_traps::sleep;
use serde_json::json;

use crate::followed::{sent, signature};
use crate::{Running, SECOND, Stage, add, in_worlds, note, stage};

#[job(crate = pikake_jobs, name = "tests.square")]
async fn square(number: i64) -> i64 {
    number * number
}

#[job(crate = pikake_jobs, name = "tests.sum")]
async fn sum(numbers: Vec<i64>) -> i64 {
    numbers.into_iter().sum()
}

/// The sum of the squares up to a number.
#[job(crate = pikake_jobs, name = "tests.squares")]
async fn squares(to: i64) -> Workflow<i64> {
    map(square::with, 1..=to).then(sum::after())
}

#[job(crate = pikake_jobs, name = "tests.in_a_thread")]
fn in_a_thread(to: i64) -> Result<Workflow<i64>, String> {
    match to {
        0 => Err("none".to_owned()),
        to => Ok(map(square::with, 1..=to).then(sum::after())),
    }
}

#[job(crate = pikake_jobs, name = "tests.factorial")]
async fn factorial(number: i64, product: i64) -> Returns<i64> {
    note(&format!("{number} {}", current_job().replacements()));
    match number {
        0 => Returns::Value(product),
        number => factorial::with(number - 1, number * product).into(),
    }
}

/// The same workflow for each of some jobs one after the other.
#[job(crate = pikake_jobs, name = "tests.again")]
async fn again(total: i64, times: u32) -> Result<Returns<i64>, String> {
    Ok(match times {
        0 => Returns::Value(total),
        times => map(square::with, 1..=2).then(sum::after()).then(again::after(times - 1)).into(),
    })
}

#[job(crate = pikake_jobs, name = "tests.fails")]
async fn fails(text: String) -> Result<i64, String> {
    Err(text)
}

#[job(crate = pikake_jobs, name = "tests.then_fails")]
async fn then_fails() -> Workflow<i64> {
    add::with(1, 2).then(fails_after::after())
}

#[job(crate = pikake_jobs, name = "tests.fails_after")]
async fn fails_after(number: i64) -> Result<i64, String> {
    Err(format!("after {number}"))
}

#[job(crate = pikake_jobs, name = "tests.on_failure")]
async fn on_failure(id: String) {
    note(&format!("failed {id}"));
}

#[job(crate = pikake_jobs, name = "tests.on_success")]
async fn on_success(value: i64) {
    note(&format!("success {value}"));
}

/// Its own value, and a member for each other number.
#[job(crate = pikake_jobs, name = "tests.with_members")]
async fn with_members(numbers: Vec<i64>) -> Returns<i64> {
    let members = numbers.into_iter().map(|number| square::with(number).into());
    Returns::Members(1_000, members.chain([squares::with(2).into()]).collect())
}

#[job(crate = pikake_jobs, name = "tests.only_one", unique_for = "1h")]
async fn only_one() -> i64 {
    1
}

#[job(crate = pikake_jobs, name = "tests.not_unique")]
async fn not_unique() -> Workflow<i64> {
    only_one::with().then(add::after(1))
}

fn with_jobs(app: App) -> App {
    app.jobs([add::JOB, square::JOB, sum::JOB, squares::JOB, in_a_thread::JOB, factorial::JOB])
        .jobs([again::JOB, fails::JOB, then_fails::JOB, fails_after::JOB, on_failure::JOB])
        .jobs([on_success::JOB, with_members::JOB, only_one::JOB, not_unique::JOB])
        .jobs([squared::JOB, flat::JOB])
}

#[test]
fn workflow_takes_the_place_of_its_job() {
    in_worlds(async || {
        let Stage { app, worker, events, .. } = stage(with_jobs).await;
        let alone = squares::delay(3).await.unwrap();
        assert_eq!(alone.wait().await.unwrap(), 14);
        let followed = squares::with(3).on_success(on_success::after()).then(add::after(1));
        assert_eq!(followed.send().await.unwrap().wait().await.unwrap(), 15);
        let member = group(vec![squares::with(2), squares::with(3), square::with(10)]);
        let total = member.then(sum::after()).send().await.unwrap();
        assert_eq!(total.wait().await.unwrap(), 119);
        assert_eq!(in_a_thread::delay(3).await.unwrap().wait().await.unwrap(), 14);
        let failed = in_a_thread::delay(0).await.unwrap().wait().await;
        assert!(matches!(failed, Err(JobError::Failed(why)) if why.message == "none"));
        sleep(SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["0 success 14"]);
        let counts = app.broker().unwrap().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.dead), (0, Some(0), 0));
        worker.end().await;
    });
}

#[test]
fn job_of_the_workflow_returns_another_one() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(with_jobs).await;
        let handle = factorial::delay(3, 1).await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), 6);
        assert_eq!(*events.borrow(), ["0 3 0", "0 2 1", "0 1 2", "0 0 3"]);
        // Equal workflows have members of their own.
        assert_eq!(again::delay(0, 3).await.unwrap().wait().await.unwrap(), 5);
        worker.end().await;
    });
}

#[test]
fn values_of_a_group_are_those_of_a_job() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } = stage(with_jobs).await;
        let lists = group(vec![squared::with(vec![1, 2]), squared::with(vec![])]).collect();
        let handle = lists.then(flat::after()).send().await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), [1, 4]);
        // As Celery sends them.
        let task = signature("tests.add", json!([]), json!({}));
        for (id, name, items, values) in [
            ("some", "celery.starmap", json!([[1, 2], [3, 4]]), json!([3, 7])),
            ("none", "celery.starmap", json!([]), json!([])),
            ("lists", "celery.map", json!([[1, 2], [3]]), json!([3, 3])),
        ] {
            let task = match name {
                "celery.map" => signature("tests.sum", json!([]), json!({})),
                _ => task.clone(),
            };
            let mut message = sent(name, id, json!([task, items]), json!({}));
            let broker = store.open();
            broker.expect(&mut message).await.unwrap();
            broker.publish("pikake", message, None).await.unwrap();
            let outcome = broker.wait(&JobId(id.to_owned())).await.unwrap();
            assert_eq!(outcome, Outcome::success(values), "{id}");
        }
        assert!(app.job_names().contains(&"celery.map".to_owned()));
        worker.end().await;
    });
}

#[job(crate = pikake_jobs, name = "tests.squared")]
async fn squared(numbers: Vec<i64>) -> Workflow<Vec<i64>> {
    map(square::with, numbers).collect()
}

#[job(crate = pikake_jobs, name = "tests.flat")]
async fn flat(lists: Vec<Vec<i64>>) -> Vec<i64> {
    lists.concat()
}

#[test]
fn failure_of_the_workflow_is_that_of_its_job() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(with_jobs).await;
        let call = then_fails::with().id("replaced").on_failure(on_failure::after());
        let handle = call.then(add::after(1)).send().await.unwrap();
        let Err(JobError::Failed(failed)) = handle.wait().await else { panic!("it fails") };
        assert_eq!(failed.message, "after 3");
        sleep(SECOND).await.unwrap();
        assert_eq!(*events.borrow(), ["0 failed replaced"]);
        let refused = not_unique::delay().await.unwrap().wait().await;
        let Err(JobError::Failed(refused)) = refused else { panic!("it fails") };
        assert_eq!(
            refused.message,
            "job `tests.only_one` is unique, and a job of a workflow cannot be: send it alone"
        );
        worker.end().await;
    });
}

#[test]
fn members_are_added_to_a_chord() {
    in_worlds(async || {
        let Stage { app, worker, .. } = stage(with_jobs).await;
        // 1000 + 4 + 9 + (1 + 4) for each of two, and 25.
        let grown = || with_members::with(vec![2, 3]);
        let total = group(vec![grown(), square::with(5), grown()]).then(sum::after());
        assert_eq!(total.send().await.unwrap().wait().await.unwrap(), 2_061);
        let alone = grown().send().await.unwrap().wait().await;
        let Err(JobError::Failed(failed)) = alone else { panic!("it fails") };
        assert_eq!((&*failed.kind, &*failed.module), ("ValueError", "builtins"));
        let counts = app.broker().unwrap().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.dead), (0, Some(0), 0));
        worker.end().await;
    });
}

#[job(crate = pikake_jobs, name = "tests.quiet", ignore_result)]
async fn quiet(number: i64) -> i64 {
    number
}

#[job(crate = pikake_jobs, name = "tests.to_quiet")]
async fn to_quiet() -> Workflow<i64> {
    square::with(3).then(quiet::after())
}

#[job(crate = pikake_jobs, name = "tests.replacements")]
async fn replacements(_before: i64) -> u32 {
    current_job().replacements()
}

#[job(crate = pikake_jobs, name = "tests.early", acks = "early", unique_for = "1h")]
async fn early() -> Workflow<Vec<i64>> {
    map(square::with, 1..=2).collect()
}

#[test]
fn last_job_is_on_its_own_but_for_its_waiter() {
    in_worlds(async || {
        let jobs = |app| with_jobs(app).jobs([quiet::JOB, to_quiet::JOB, replacements::JOB]);
        let Stage { worker, .. } = stage(|app| jobs(app).jobs([early::JOB])).await;
        // The job ignores its result where nobody waits.
        assert_eq!(to_quiet::delay().await.unwrap().wait().await.unwrap(), 9);
        let followed = to_quiet::with().then(replacements::after());
        let count = followed.send().await.unwrap().wait().await.unwrap();
        assert_eq!(count, 0, "the job was sent as itself");
        for _ in 0..2 {
            // The lock ends with the job that returns the workflow.
            assert_eq!(early::delay().await.unwrap().wait().await.unwrap(), [1, 4]);
            sleep(SECOND).await.unwrap();
        }
        worker.end().await;
    });
}

#[job(crate = pikake_jobs, name = "tests.two_steps")]
async fn two_steps() -> Workflow<i64> {
    Call::<i64>::named("others.first", ()).queue("others").then(square::after())
}

#[job(crate = pikake_jobs, name = "others.first")]
async fn first_of_others() -> i64 {
    5
}

/// Another application, with another default queue, runs the first job, and sends the second one.
#[test]
fn queues_are_those_of_the_application() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = App::on(Rc::new(store.open())).jobs([two_steps::JOB, square::JOB]);
        let others = App::on(Rc::new(store.open())).default_queue("others");
        let others = others.jobs([first_of_others::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let other = Running::start(&others, SECOND).await;
        let handle = two_steps::with().on(&app).send().await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), 25);
        worker.end().await;
        other.end().await;
    });
}

/// Celery runs the items in the worker that has the message.
#[test]
fn map_stays_in_its_queue() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = with_jobs(App::on(Rc::new(store.open()))).default_queue("special");
        let worker = Running::start(&app, SECOND).await;
        let client = App::on(Rc::new(store.open())).connect().await.unwrap();
        let task = signature("tests.add", json!([]), json!({}));
        let call = Call::<Vec<i64>>::named("celery.starmap", (task, vec![(1, 2), (3, 4)]));
        let handle = call.queue("special").on(&client).send().await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), [3, 7]);
        worker.end().await;
    });
}
