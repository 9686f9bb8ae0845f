//! Batches: one run of a function for several messages, each of which keeps its own outcome.

use std::collections::BTreeMap;

use pikake_jobs::{Broker, Call, JobError, MemoryStore, current_batch, try_current_job};
use pikake_macros::job;
use pikake_traps::{Interrupted, shield, sleep, timeout_after};

use crate::{Running, SECOND, Stage, add, app, in_worlds, nap, note, noted, stage};

/// Doubles numbers. An odd number fails the first time, and 13 for good; 66 fails all, and 99
/// panics.
#[job(crate = pikake_jobs, name = "tests.double", batch(size = 3, wait = "10s"), backoff(first = 0, cap = 0))]
async fn double(numbers: Vec<u32>) -> Result<Vec<Result<u32, String>>, String> {
    // Messages that come at a time begin in any order.
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    note(&format!("{sorted:?}"));
    assert!(!numbers.contains(&99), "ninety-nine");
    if numbers.contains(&66) {
        return Err("none of them".to_owned());
    }
    let jobs = current_batch();
    let one = |(number, retries): (u32, u32)| match number {
        13 => Err("thirteen".to_owned()),
        _ if number % 2 == 1 && retries == 0 => Err("odd".to_owned()),
        _ => Ok(number * 2),
    };
    Ok(numbers.into_iter().zip(jobs.iter().map(|job| job.retries())).map(one).collect())
}

/// Sleeps for as long as the largest number says.
#[job(crate = pikake_jobs, name = "tests.slow", batch(size = 2, wait = "5s"))]
async fn slow(seconds: Vec<u64>) -> Result<(), Interrupted> {
    note(&format!("begins {seconds:?}"));
    let slept = sleep(SECOND * seconds.iter().max().copied().unwrap_or(0) as u32).await;
    note(if slept.is_ok() { "ends" } else { "is interrupted" });
    slept
}

#[job(crate = pikake_jobs, batch(size = 2, wait = "5s"), soft_limit = "3s", hard_limit = "6s")]
async fn limited(stubborn: Vec<bool>) -> Vec<u32> {
    let slept = sleep(60 * SECOND).await;
    note(if slept.is_ok() { "ends" } else { "is interrupted" });
    if stubborn.contains(&true) {
        drop(shield(sleep(60 * SECOND)).await);
    }
    stubborn.iter().map(|_| 7).collect()
}

#[job(crate = pikake_jobs, batch(size = 2, wait = "1s"), acks = "early", rate = "6/m")]
async fn early(seconds: Vec<u64>) {
    note(&format!("{seconds:?}"));
    sleep(SECOND * seconds[0] as u32).await.unwrap();
}

#[job(crate = pikake_jobs, batch(size = 2, wait = "1s"))]
async fn short(numbers: Vec<u32>) -> Vec<u32> {
    numbers.into_iter().skip(1).collect()
}

#[job(crate = pikake_jobs, batch(size = 2, wait = "1s"))]
async fn sends(numbers: Vec<i64>) -> Vec<i64> {
    assert!(try_current_job().is_none());
    let sum = add::delay(numbers[0], 1).await.unwrap();
    let sum = timeout_after(60 * SECOND, sum.wait()).await.unwrap().unwrap();
    numbers.iter().map(|number| number + sum).collect()
}

async fn ready_and_taken(store: &MemoryStore) -> (u64, Option<u64>) {
    let counts = store.open().counts("pikake").await.unwrap();
    (counts.ready, counts.taken)
}

#[test]
fn a_full_batch_runs_at_once_and_the_rest_after_its_wait() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let mut jobs = Vec::new();
        for numbers in [[2, 4, 6].as_slice(), &[8, 10]] {
            for number in numbers {
                jobs.push(double::delay(*number).await.unwrap());
            }
            sleep(SECOND).await.unwrap();
        }
        assert_eq!(ready_and_taken(&store).await, (0, Some(2)));
        let mut values = Vec::new();
        for job in &jobs {
            values.push(job.wait().await.unwrap());
        }
        assert_eq!(values, [4, 8, 12, 16, 20]);
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.running), (5, 0));
        assert_eq!(*events.borrow(), ["0 [2, 4, 6]", "11 [8, 10]"]);
        assert_eq!(ready_and_taken(&store).await, (0, Some(0)));
    });
}

#[test]
fn each_message_has_its_own_outcome_and_retry() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let retried = double::with(5).retries(1).send().await.unwrap();
        let failed = double::delay(13).await.unwrap();
        let done = double::delay(4).await.unwrap();
        assert_eq!(done.wait().await.unwrap(), 8);
        let Err(JobError::Failed(failure)) = failed.wait().await else { panic!("it failed") };
        assert_eq!(failure.message, "thirteen");
        assert_eq!(retried.wait().await.unwrap(), 10);
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.failed, stats.retried), (2, 1, 1));
        assert_eq!(*events.borrow(), ["0 [4, 5, 13]", "10 [5]"]);
    });
}

#[test]
fn a_failure_of_the_function_fails_each_message() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([double::JOB, short::JOB])).await;
        let failed = double::delay(66).await.unwrap();
        let retried = double::with(66).retries(1).send().await.unwrap();
        let also = double::delay(2).await.unwrap();
        for job in [failed, also, retried] {
            let Err(JobError::Failed(failure)) = job.wait().await else { panic!("it failed") };
            assert_eq!(failure.message, "none of them");
        }
        let panicked = double::with(99).retries(5).send().await.unwrap();
        let Err(JobError::Failed(failure)) = panicked.wait().await else { panic!("it panicked") };
        assert_eq!((&*failure.kind, &*failure.message), ("Panic", "ninety-nine"));
        let both = [short::delay(1).await.unwrap(), short::delay(2).await.unwrap()];
        for job in both {
            let Err(JobError::Failed(failure)) = job.wait().await else { panic!("it panicked") };
            assert_eq!(failure.message, "the batch returned 1 values for 2 messages");
        }
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.failed, stats.retried, stats.done), (6, 1, 0));
        assert_eq!(*events.borrow(), ["0 [2, 66, 66]", "10 [66]", "20 [99]"]);
    });
}

#[test]
fn wrong_arguments_concern_their_message_alone() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let wrong = Call::<u32>::named("tests.double", ("two",)).send().await.unwrap();
        let right = Call::<u32>::named("tests.double", (2,)).send().await.unwrap();
        let named = Call::<u32>::named("tests.double", [(); 0]);
        let named = named.kwargs(BTreeMap::from([("numbers", 4)])).send().await.unwrap();
        let Err(JobError::Failed(failure)) = wrong.wait().await else { panic!("it is buried") };
        assert_eq!(failure.kind, "TypeError");
        assert_eq!((right.wait().await.unwrap(), named.wait().await.unwrap()), (4, 8));
        assert_eq!(worker.end().await.stats.all.dead, 1);
        assert_eq!(*events.borrow(), ["0 [2, 4]"]);
        assert_eq!(store.open().counts("pikake").await.unwrap().dead, 1);
    });
}

#[test]
fn a_message_that_expires_or_is_cancelled_while_it_gathers_is_revoked() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let expires = double::with(2).expires(5 * SECOND).send().await.unwrap();
        let cancelled = double::delay(4).await.unwrap();
        sleep(SECOND).await.unwrap();
        cancelled.cancel();
        let waited = timeout_after(SECOND, cancelled.wait()).await.expect("it is revoked at once");
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
        let stays = double::delay(6).await.unwrap();
        let (expired, value) = (expires.wait().await, stays.wait().await);
        assert!(matches!(expired, Err(JobError::Revoked(_))), "{expired:?}");
        assert_eq!(value.unwrap(), 12);
        assert_eq!(worker.end().await.stats.all.revoked, 2);
        assert_eq!(*events.borrow(), ["10 [6]"]);
    });
}

#[test]
fn a_batch_that_all_have_left_gives_way_to_another() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let first = double::delay(2).await.unwrap();
        sleep(5 * SECOND).await.unwrap();
        first.cancel();
        sleep(SECOND).await.unwrap();
        assert_eq!(double::delay(4).await.unwrap().wait().await.unwrap(), 8);
        worker.end().await;
        assert_eq!(*events.borrow(), ["16 [4]"]);
    });
}

#[test]
fn a_running_batch_goes_on_until_all_its_messages_are_cancelled() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([slow::JOB])).await;
        let [first, second] = [slow::delay(60).await.unwrap(), slow::delay(60).await.unwrap()];
        sleep(SECOND).await.unwrap();
        first.cancel();
        let waited = timeout_after(SECOND, first.wait()).await.expect("it leaves at once");
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
        sleep(SECOND).await.unwrap();
        second.cancel();
        let waited = second.wait().await;
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
        let [first, second] = [slow::delay(10).await.unwrap(), slow::delay(10).await.unwrap()];
        sleep(SECOND).await.unwrap();
        first.cancel();
        second.wait().await.unwrap();
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.revoked, stats.done), (3, 1));
        let all = ["0 begins [60, 60]", "2 is interrupted", "2 begins [10, 10]", "12 ends"];
        assert_eq!(*events.borrow(), all);
    });
}

#[test]
fn limits_count_from_the_begin_of_the_batch() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([limited::JOB])).await;
        let gathers = limited::delay(false).await.unwrap();
        assert_eq!(gathers.wait().await.unwrap(), 7);
        let dropped = [limited::delay(true).await.unwrap(), limited::delay(true).await.unwrap()];
        for job in dropped {
            let Err(JobError::Failed(failure)) = job.wait().await else { panic!("it is dropped") };
            assert_eq!(failure.kind, "TimeLimitExceeded");
        }
        note("is dropped");
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.failed), (1, 2));
        let all = ["8 is interrupted", "11 is interrupted", "14 is dropped"];
        assert_eq!(*events.borrow(), all);
    });
}

#[test]
fn the_function_has_a_permit_and_messages_that_gather_have_none() {
    in_worlds(async || {
        let Stage { worker, events, .. } =
            stage(|app| app.jobs([double::JOB, slow::JOB, nap::JOB]).concurrency(1)).await;
        let first = double::delay(2).await.unwrap();
        assert_eq!(nap::delay(4).await.unwrap().wait().await.unwrap(), "slept");
        // Begins at 9 s, and keeps the other batch waiting.
        let long = slow::delay(20).await.unwrap();
        sleep(8 * SECOND).await.unwrap();
        let second = double::delay(4).await.unwrap();
        for job in [first, second] {
            job.wait().await.unwrap();
        }
        long.wait().await.unwrap();
        worker.end().await;
        let all = ["9 begins [20]", "29 ends", "29 [2]", "39 [4]"];
        assert_eq!(*events.borrow(), all);
    });
}

#[test]
fn a_prefetch_below_the_size_makes_smaller_batches() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([double::JOB]).prefetch(2)).await;
        for number in [2, 4, 6, 8] {
            double::with(number).ignore_result().send().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 4);
        assert_eq!(*events.borrow(), ["0 [2, 4]", "0 [6, 8]"]);
    });
}

#[test]
fn batches_have_the_rate_and_are_acknowledged_early_when_they_begin() {
    in_worlds(async || {
        let (app, store) = app();
        let worker = Running::start(&app.jobs([early::JOB]), 60 * SECOND).await;
        let events = noted();
        for _ in 0..3 {
            early::delay(3).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert_eq!(ready_and_taken(&store).await, (0, Some(1)));
        sleep(10 * SECOND).await.unwrap();
        assert_eq!(ready_and_taken(&store).await, (0, Some(0)));
        assert_eq!(worker.end().await.stats.all.done, 3);
        assert_eq!(*events.borrow(), ["0 [3, 3]", "10 [3]"]);
    });
}

#[test]
fn a_warm_shutdown_runs_what_has_gathered() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        let job = double::delay(2).await.unwrap();
        sleep(SECOND).await.unwrap();
        let report = worker.end().await;
        assert_eq!((report.stats.all.done, report.left.len()), (1, 0));
        assert_eq!(*events.borrow(), ["1 [2]"]);
        assert_eq!(ready_and_taken(&store).await, (0, Some(0)));
        drop(job);
    });
}

#[test]
fn a_shutdown_interrupts_what_is_too_slow_and_requeues_it() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([slow::JOB, double::JOB]).concurrency(1);
        let worker = Running::start(&app, 5 * SECOND).await;
        let events = noted();
        // Gathers, and has no permit when it is hurried.
        double::delay(2).await.unwrap();
        sleep(SECOND).await.unwrap();
        for _ in 0..2 {
            slow::delay(60).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        let report = worker.end().await;
        assert_eq!((report.stats.all.done, report.left.len()), (0, 3));
        assert_eq!(*events.borrow(), ["1 begins [60, 60]", "7 is interrupted"]);
        assert_eq!(ready_and_taken(&store).await, (3, Some(0)));
    });
}

#[test]
fn a_batch_follows_a_job_and_sends_jobs() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([add::JOB, sends::JOB])).await;
        let jobs = [
            add::with(1, 2).then(sends::after()).send().await.unwrap(),
            add::with(3, 4).then(sends::after()).send().await.unwrap(),
        ];
        let mut values = Vec::new();
        for job in &jobs {
            values.push(job.wait().await.unwrap());
        }
        values.sort_unstable();
        assert!(values == [7, 11] || values == [11, 15], "{values:?}");
        worker.end().await;
    });
}

#[test]
fn messages_of_one_id_run_in_batches_of_their_own() {
    in_worlds(async || {
        let Stage { store, worker, events, .. } = stage(|app| app.jobs([double::JOB])).await;
        for _ in 0..3 {
            double::with(2).id("same").ignore_result().send().await.unwrap();
        }
        sleep(35 * SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 3);
        assert_eq!(*events.borrow(), ["10 [2]", "20 [2]", "30 [2]"]);
        assert_eq!(ready_and_taken(&store).await, (0, Some(0)));
    });
}
