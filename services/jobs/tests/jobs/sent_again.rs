//! Jobs of workflows that are sent or run twice, since a worker or a connection was lost: nothing
//! is lost, nothing of two runs mixes, and of two runs of a job one at least has an attempt above
//! 0.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use pikake_jobs::{
    App, Broker, BrokerError, MemoryStore, Returns, Workflow, current_job, group, map,
};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_traps::{sleep, spawn, timeout_after};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, add};

thread_local! {
    /// The attempt of each run of a job, by its name and id.
    static RUNS: RefCell<BTreeMap<String, Vec<u32>>> = const { RefCell::new(BTreeMap::new()) };
}

fn count(job: &str) {
    let (name, attempt) = (format!("{job} {}", current_job().id()), current_job().attempt());
    RUNS.with_borrow_mut(|runs| runs.entry(name).or_default().push(attempt));
}

/// Whoever runs a second time can know it.
fn assert_known(when: &str) {
    RUNS.with_borrow(|runs| {
        let firsts = |runs: &Vec<u32>| runs.iter().filter(|attempt| **attempt == 0).count();
        assert!(runs.values().all(|runs| firsts(runs) <= 1), "{when}: {runs:?}");
    });
}

#[job(crate = pikake_jobs, name = "again.square")]
async fn square(number: i64) -> i64 {
    count("square");
    number * number
}

#[job(crate = pikake_jobs, name = "again.sum")]
async fn sum(numbers: Vec<i64>) -> i64 {
    count("sum");
    numbers.into_iter().sum()
}

#[job(crate = pikake_jobs, name = "again.values")]
async fn values(numbers: Vec<i64>) -> Vec<i64> {
    count("values");
    numbers
}

/// The sum of the squares up to a number.
#[job(crate = pikake_jobs, name = "again.squares")]
async fn squares(to: i64) -> Workflow<i64> {
    count("squares");
    map(square::with, 1..=to).then(sum::after())
}

#[job(crate = pikake_jobs, name = "again.list")]
async fn list(to: i64) -> Workflow<Vec<i64>> {
    map(square::with, 0..to).collect()
}

#[job(crate = pikake_jobs, name = "again.first")]
async fn first(numbers: Vec<i64>) -> i64 {
    numbers[0]
}

#[job(crate = pikake_jobs, name = "again.adds")]
async fn adds(numbers: Vec<i64>) -> Returns<i64> {
    count("adds");
    let members = numbers.into_iter().map(|number| square::with(number).into());
    Returns::Members(-1, members.collect())
}

/// Other members in another run.
#[job(crate = pikake_jobs, name = "again.adds_others")]
async fn adds_others() -> Returns<i64> {
    let numbers = match current_job().attempt() {
        0 => vec![1, 2],
        _ => vec![10, 20, 30],
    };
    Returns::Members(-1, numbers.into_iter().map(|number| square::with(number).into()).collect())
}

#[job(crate = pikake_jobs, name = "again.fails")]
async fn fails() -> Result<i64, String> {
    count("fails");
    Err("no".into())
}

#[job(crate = pikake_jobs, name = "again.fails_once", retries = 1)]
async fn fails_once() -> Result<i64, String> {
    current_job().retry_in(5 * SECOND);
    if current_job().retries() == 0 { Err("no".into()) } else { Ok(3) }
}

#[job(crate = pikake_jobs, name = "again.after")]
async fn after(number: i64) -> i64 {
    count("after");
    number
}

#[job(crate = pikake_jobs, name = "again.errback")]
async fn errback(_id: String) {
    count("errback");
}

fn with_jobs(app: App) -> App {
    app.jobs([add::JOB, square::JOB, sum::JOB, values::JOB, squares::JOB, list::JOB, first::JOB])
        .jobs([adds::JOB, adds_others::JOB, fails::JOB, fails_once::JOB, after::JOB])
        .jobs([errback::JOB])
}

#[track_caller]
fn in_a_world(program: impl Future) {
    let ran = Sim::new(0).run_here("test", program);
    ran.unwrap_or_else(|failure| panic!("{failure}")).outcome.unwrap();
}

/// A program that sends through an application, and waits.
type Program = fn(App) -> Pin<Box<dyn Future<Output = Vec<i64>>>>;

/// Runs a program with a worker that is lost at one of its calls of the broker, before or after the
/// call was carried out; for each of its calls. Another worker ends the jobs.
fn each_lost(program: Program, is_right: fn(&[i64]) -> bool) {
    for has_arrived in [false, true] {
        let mut call = 0;
        let was_lost = Rc::new(Cell::new(true));
        while was_lost.replace(false) {
            in_a_world(lost_at(call, has_arrived, was_lost.clone(), program, is_right));
            assert_known(&format!("lost at call {call}, {has_arrived}"));
            call += 1;
        }
        assert!(call > 5, "{call} calls");
    }
}

async fn lost_at(
    at: u32,
    has_arrived: bool,
    was_lost: Rc<Cell<bool>>,
    program: Program,
    is_right: fn(&[i64]) -> bool,
) {
    RUNS.take();
    let store = MemoryStore::new();
    let sender = with_jobs(App::on(Rc::new(store.open()))).connect().await.unwrap();
    let inner: Rc<dyn Broker> = Rc::new(store.open());
    // A worker that is lost asks nothing more.
    let calls = Rc::new(Cell::new(0));
    let (before, after) = (calls.clone(), calls);
    let answer = move |calls: &Cell<u32>| match calls.get() > at {
        true => {
            was_lost.set(true);
            Err(BrokerError::Closed)
        }
        false => Ok(()),
    };
    let (answer_before, answer_after) = (answer.clone(), answer);
    let broker = Meddled::new(inner.clone(), move |_| {
        before.set(before.get() + u32::from(!has_arrived));
        at_once(answer_before(&before))
    });
    let broker = broker.after(move |_| {
        after.set(after.get() + u32::from(has_arrived));
        answer_after(&after)
    });
    let worker = spawn(with_jobs(App::on(Rc::new(broker))).concurrency(3).run_worker());
    let running = spawn(program(sender));
    sleep(SECOND / 2).await.unwrap();
    inner.close().await.unwrap();
    drop(worker.cancel_on_drop());
    let other = Running::start(&with_jobs(App::on(Rc::new(store.open()))), SECOND).await;
    let values = running.await.unwrap();
    assert!(is_right(&values), "lost at call {at}, {has_arrived}: {values:?}");
    sleep(100 * SECOND).await.unwrap();
    let counts = store.open().counts("pikake").await.unwrap();
    assert_eq!((counts.ready, counts.taken, counts.dead), (0, Some(0), 0), "call {at}");
    other.end().await;
}

#[test]
fn nothing_is_lost_with_a_worker() {
    let program: Program = |app| {
        Box::pin(async move {
            let call = || adds::with(vec![2]).on(&app);
            let workflow = group(vec![call(), squares::with(2).on(&app)]).then(sum::after());
            let handle = workflow.then(after::after()).on(&app).send().await.unwrap();
            vec![handle.wait().await.unwrap()]
        })
    };
    // -1 and 4, and 1 + 4.
    each_lost(program, |values| *values == [8]);
}

#[test]
fn members_of_two_runs_do_not_mix() {
    let program: Program = |app| {
        Box::pin(async move {
            let workflow = group(vec![adds_others::with().on(&app)]).then(values::after());
            workflow.on(&app).send().await.unwrap().wait().await.unwrap()
        })
    };
    each_lost(program, |values| [&[-1, 1, 4][..], &[-1, 100, 400, 900]].contains(&values));
}

#[test]
fn errbacks_of_a_chord_know() {
    let program: Program = |app| {
        Box::pin(async move {
            let chain = fails::with().on(&app).then(after::after());
            let workflow = group(vec![chain]).then(values::after()).on_failure(errback::after());
            let handle = workflow.on(&app).send().await.unwrap();
            assert!(handle.wait().await.is_err());
            Vec::new()
        })
    };
    each_lost(program, <[i64]>::is_empty);
}

#[test]
fn followers_of_a_retry_know() {
    let program: Program = |app| {
        Box::pin(async move {
            let workflow = fails_once::with().on(&app).then(after::after());
            vec![workflow.send().await.unwrap().wait().await.unwrap()]
        })
    };
    each_lost(program, |values| *values == [3]);
}

/// The connection breaks when a publish has arrived, and before it is confirmed; for each publish.
#[test]
fn jobs_that_are_published_twice_know() {
    let was_cut = Rc::new(Cell::new(true));
    let mut at = 0;
    while was_cut.replace(false) {
        let cut = was_cut.clone();
        in_a_world(async move {
            RUNS.take();
            let store = MemoryStore::new();
            let calls = Cell::new(0);
            let broker = Meddled::new(Rc::new(store.open()), |_| at_once(Ok(())));
            let broker = broker.after(move |asked| {
                calls.set(calls.get() + u32::from(matches!(asked, Asked::Publish(_))));
                match calls.get() > at && !cut.replace(true) {
                    true => Err(lost()),
                    false => Ok(()),
                }
            });
            let worker = Running::start(&with_jobs(App::on(Rc::new(broker))), SECOND).await;
            let sender = with_jobs(App::on(Rc::new(store.open()))).connect().await.unwrap();
            let handle = square::with(2).then(after::after()).on(&sender).send().await.unwrap();
            assert_eq!(handle.wait().await.unwrap(), 4);
            sleep(10 * SECOND).await.unwrap();
            worker.end().await;
        });
        assert_known(&format!("cut at publish {at}"));
        at += 1;
    }
}

/// The broker refuses a message; for each message of a workflow that a job has returned, and of
/// members that it has added.
#[test]
fn refused_messages_are_failures() {
    for adds_members in [false, true] {
        let was_refused = Rc::new(Cell::new(true));
        let mut at = 0;
        while was_refused.replace(false) {
            in_a_world(refused_at(at, was_refused.clone(), adds_members));
            at += 1;
        }
        assert!(at > 5, "{at} messages");
    }
}

async fn refused_at(at: u32, was_refused: Rc<Cell<bool>>, adds_members: bool) {
    let store = MemoryStore::new();
    let sender = with_jobs(App::on(Rc::new(store.open()))).connect().await.unwrap();
    let (calls, refused) = (Cell::new(0), was_refused.clone());
    let broker = Meddled::new(Rc::new(store.open()), move |asked| {
        let is_publish = matches!(asked, Asked::Publish(_));
        let is_refused = is_publish && calls.get() == at;
        calls.set(calls.get() + u32::from(is_publish));
        refused.set(refused.get() || is_refused);
        at_once(match is_refused {
            true => Err(BrokerError::Refused("too large".into())),
            false => Ok(()),
        })
    });
    let worker = Running::start(&with_jobs(App::on(Rc::new(broker))), SECOND).await;
    let sums = match adds_members {
        true => {
            let call = || adds::with(vec![2, 3]).on(&sender);
            group(vec![call(), call()]).then(sum::after())
        }
        false => {
            let call = || list::with(3).on(&sender).then(first::after());
            group(vec![call(), call()]).then(sum::after())
        }
    };
    let sums = sums.on_failure(errback::after()).then(after::after()).on(&sender);
    let handle = sums.send().await.unwrap();
    let ended = timeout_after(100 * SECOND, handle.wait()).await.expect("it ends");
    assert_eq!(ended.is_err(), was_refused.get(), "message {at}");
    sleep(10 * SECOND).await.unwrap();
    let counts = store.open().counts("pikake").await.unwrap();
    assert_eq!((counts.ready, counts.taken), (0, Some(0)), "message {at}");
    worker.end().await;
}
