//! Sending, waiting, cancelling.

use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{
    App, Broker, Call, Cancelled, Definition, Handle, JobError, MemoryStore, OutcomeState,
    QueueOptions, SendError, current_job, group,
};
use pikake_macros::job;
use pikake_traps::{TimedOut, sleep, spawn, timeout_after, wall_time};

use crate::meddled::{Asked, Meddled, at_once};
use crate::{Running, SECOND, Stage, add, app, in_worlds, nap, stage};

#[job(crate = pikake_jobs)]
async fn greet(name: String, greeting: Option<String>) -> String {
    format!("{} {name}", greeting.as_deref().unwrap_or("hello"))
}

#[job(crate = pikake_jobs, ignore_result)]
fn shout(word: String) -> String {
    word.to_uppercase()
}

#[job(crate = pikake_jobs)]
fn count(words: Vec<String>) -> usize {
    words.len()
}

#[job(crate = pikake_jobs)]
async fn facts() -> (String, u32, String) {
    let job = current_job();
    (job.id().to_owned(), job.retries(), job.queue().to_owned())
}

#[job(crate = pikake_jobs)]
async fn parent() -> i64 {
    add::delay(20, 1).await.unwrap().wait().await.unwrap() * 2
}

/// Limits, priority and whether it has an eta; then those whom it follows, and its group.
type Seen = (Option<Duration>, Option<Duration>, u8, bool, String, Option<String>, Option<String>);

#[job(crate = pikake_jobs, hard_limit = "60s")]
async fn see() -> Seen {
    let job = current_job();
    let others = (job.parent_id().map(str::to_owned), job.group().map(str::to_owned));
    let (priority, has_eta) = (job.priority(), job.eta().is_some());
    let root = job.root_id().to_owned();
    (job.soft_limit(), job.hard_limit(), priority, has_eta, root, others.0, others.1)
}

#[job(crate = pikake_jobs)]
async fn see_from_here() -> Seen {
    see::with().id("child").send().await.unwrap().wait().await.unwrap()
}

#[test]
fn a_job_sees_its_message() {
    in_worlds(async || {
        let queue = QueueOptions::new().max_priority(9);
        let Stage { worker, .. } =
            stage(|app| app.queue("pikake", queue).jobs([see::JOB, see_from_here::JOB])).await;
        let call = see::with().id("one").soft_limit(SECOND).priority(3).countdown(SECOND);
        let seen = call.send().await.unwrap().wait().await.unwrap();
        let limits = (Some(SECOND), Some(60 * SECOND));
        assert_eq!(seen, (limits.0, limits.1, 3, true, "one".to_owned(), None, None));
        let seen = see_from_here::with().id("root").send().await.unwrap().wait().await.unwrap();
        let root = "root".to_owned();
        assert_eq!(seen, (None, limits.1, 0, false, root.clone(), Some(root), None));
        let (one, two) = group((see::with(), see::with())).send().await.unwrap();
        let groups = (one.wait().await.unwrap().6, two.wait().await.unwrap().6);
        assert!(groups.0.is_some() && groups.0 == groups.1, "{groups:?}");
        worker.end().await;
    });
}

#[test]
fn a_job_gives_its_value() {
    in_worlds(async || {
        let Stage { worker, .. } =
            stage(|app| app.jobs([add::JOB, greet::JOB, count::JOB, facts::JOB, parent::JOB]))
                .await;
        let handle = add::delay(2, 3).await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), 5);
        assert_eq!(handle.wait().await.unwrap(), 5, "as often as it is asked");
        assert_eq!(handle.status().await.unwrap(), Some(OutcomeState::Success));
        assert_eq!(
            count::delay(vec!["a".into(), "b".into()]).await.unwrap().wait().await.unwrap(),
            2
        );
        assert_eq!(parent::delay().await.unwrap().wait().await.unwrap(), 42);
        let call = facts::with().id("seventeen").queue("elsewhere");
        let handle = call.send().await.unwrap();
        assert_eq!(
            timeout_after(SECOND, handle.wait()).await.unwrap_err(),
            TimedOut,
            "nobody consumes it"
        );
        let handle = facts::with().id("eighteen").send().await.unwrap();
        let all = ("eighteen".to_owned(), 0, "pikake".to_owned());
        assert_eq!(handle.wait().await.unwrap(), all);
        let report = worker.end().await;
        assert_eq!((report.stats.all.done, report.stats.all.running), (5, 0));
        assert_eq!(report.stats.by_job["tests.add"].done, 2);
    });
}

#[test]
fn arguments_by_name_as_celery_sends_them() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([greet::JOB])).await;
        let name = "jobs::sending::greet";
        let call = Call::<String>::named(name, ("ann",));
        assert_eq!(call.clone().send().await.unwrap().wait().await.unwrap(), "hello ann");
        let named = serde_json::json!({"greeting": "hi", "name": "bob"});
        let call = Call::<String>::named(name, ()).kwargs(named);
        assert_eq!(call.send().await.unwrap().wait().await.unwrap(), "hi bob");
        worker.end().await;
    });
}

#[test]
fn the_function_itself_is_called() {
    in_worlds(async || {
        assert_eq!(add(1, 2).await, 3);
        assert_eq!(shout("hey".into()), "HEY");
    });
}

#[test]
fn without_an_application_an_error_says_what_to_do() {
    in_worlds(async || {
        let error = add::delay(1, 2).await.unwrap_err();
        assert!(matches!(error, SendError::NoApp));
        assert!(error.to_string().contains("App::connect"), "{error}");
        let (app, _) = app();
        let app = app.connect().await.unwrap();
        assert!(add::delay(1, 2).await.is_ok());
        drop(app);
        assert!(matches!(add::delay(1, 2).await.unwrap_err(), SendError::NoApp));
        assert!(App::new("nonsense").unwrap_err().to_string().contains("memory://"));
        let error = App::new("carrier-pigeon://loft").unwrap_err();
        assert!(error.to_string().contains("carrier-pigeon"), "{error}");
    });
}

#[test]
fn a_wait_that_timed_out_is_made_again() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([nap::JOB])).await;
        let handle = nap::delay(5).await.unwrap();
        for _ in 0..3 {
            assert_eq!(timeout_after(SECOND, handle.wait()).await.unwrap_err(), TimedOut);
        }
        assert_eq!(handle.wait().await.unwrap(), "slept");
        worker.end().await;
    });
}

#[test]
fn an_ignored_outcome_is_not_stored() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([shout::JOB])).await;
        let handle = shout::delay("x".into()).await.unwrap();
        assert!(matches!(handle.wait().await, Err(JobError::Ignored)));
        sleep(SECOND).await.unwrap();
        assert_eq!(store.open().outcome(handle.id()).await.unwrap(), None);
        assert_eq!(worker.end().await.stats.all.done, 1);
    });
}

#[test]
fn countdown_eta_and_expiry() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([add::JOB, nap::JOB]).concurrency(1)).await;
        let late = add::with(1, 1).countdown(3 * SECOND).send().await.unwrap();
        assert_eq!(timeout_after(2 * SECOND, late.wait()).await.unwrap_err(), TimedOut);
        assert_eq!(timeout_after(2 * SECOND, late.wait()).await.unwrap().unwrap(), 2);
        let past = add::with(2, 2).eta(wall_time() - SECOND).send().await.unwrap();
        assert_eq!(timeout_after(SECOND, past.wait()).await.unwrap().unwrap(), 4);
        // It is stuck behind another one until it is worth nothing.
        nap::delay(5).await.unwrap();
        let stale = add::with(3, 3).expires(2 * SECOND).send().await.unwrap();
        let outcome = timeout_after(Duration::from_secs(9), stale.wait()).await;
        if let Ok(outcome) = outcome {
            assert!(matches!(outcome, Err(JobError::Revoked(_))), "{outcome:?}");
        }
        let report = worker.end().await;
        assert_eq!((report.stats.all.done, report.stats.all.failed), (3, 0));
    });
}

#[test]
fn an_eta_that_only_the_header_says_is_kept() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([add::JOB])).await;
        // As Celery sends it: delivered at once, to be held back by the worker.
        let sender = App::on(std::rc::Rc::new(store.open())).connect().await.unwrap();
        let scratch = add::with(1, 2).eta(wall_time() + 60 * SECOND).queue("scratch").id("held");
        scratch.on(&sender).send().await.unwrap();
        sleep(61 * SECOND).await.unwrap();
        let mut taken = store.open().consume("scratch", 1).await.unwrap();
        let mut message = taken.next().await.unwrap().unwrap().message;
        message.headers.insert("eta".into(), eta_in(5 * SECOND).into());
        let begin = wall_time();
        store.open().publish("pikake", message, None).await.unwrap();
        let job = pikake_jobs::JobId("held".into());
        while store.open().outcome(&job).await.unwrap().is_none() {
            sleep(SECOND / 10).await.unwrap();
        }
        let waited = wall_time().duration_since(begin).unwrap();
        assert!(waited > 4 * SECOND && waited < 6 * SECOND, "{waited:?}");
        worker.end().await;
    });
}

fn eta_in(length: Duration) -> String {
    let stamp = jiff::Timestamp::try_from(wall_time() + length).unwrap();
    stamp.to_string()
}

#[test]
fn cancelling() {
    in_worlds(async || {
        let (app, _) = app();
        let app = app.jobs([nap::JOB, add::JOB]).concurrency(1);
        let unreached =
            nap::with(1).on(&app.clone().connect().await.unwrap()).send().await.unwrap();
        assert_eq!(unreached.cancel(), Cancelled::Asked);
        let worker = Running::start(&app, SECOND).await;
        assert!(matches!(unreached.wait().await, Err(JobError::Revoked(_))), "it began later");
        let (running, waiting) = (nap::delay(60).await.unwrap(), nap::delay(60).await.unwrap());
        sleep(SECOND).await.unwrap();
        assert_eq!(running.cancel(), Cancelled::Running);
        assert_eq!(waiting.cancel(), Cancelled::Waiting);
        for handle in [running, waiting] {
            assert!(matches!(handle.wait().await, Err(JobError::Revoked(_))));
        }
        assert_eq!(add::delay(1, 1).await.unwrap().wait().await.unwrap(), 2);
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.revoked), (1, 3));
    });
}

#[test]
fn what_was_declared_at_one_broker_is_declared_anew_at_the_next() {
    in_worlds(async || {
        let broker = Meddled::new(Rc::new(MemoryStore::new().open()), |asked| match asked {
            Asked::Declare => Box::pin(async { Ok(sleep(SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let app = App::on(Rc::new(broker)).connect().await.unwrap();
        let declaring = app.clone();
        let declaring = spawn(async move {
            declaring.declare("another", &QueueOptions::default()).await.unwrap();
        });
        sleep(SECOND / 2).await.unwrap();
        app.close().await.unwrap();
        MemoryStore::fresh("the next");
        let app = app.at("memory://the next").unwrap().connect().await.unwrap();
        declaring.await.unwrap();
        add::with(1, 2).queue("another").on(&app).ignore_result().send().await.unwrap();
    });
}

#[test]
fn handle_from_id_gets_the_value() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } = stage(|app| app.jobs([add::JOB, nap::JOB])).await;
        let other = App::on(Rc::new(store.open())).connect().await.unwrap();
        let id = nap::with(90).on(&app).send().await.unwrap().id().clone();
        let found = Handle::<String>::from_id(&other, id);
        assert_eq!(found.status().await.unwrap(), None);
        assert!(timeout_after(SECOND, found.wait()).await.is_err(), "it naps");
        assert_eq!(found.wait().await.unwrap(), "slept");
        // Dropping the handle leaves the outcome to others.
        let again = Handle::<String>::from_id(&other, found.id().clone());
        drop(found);
        assert_eq!(again.status().await.unwrap(), Some(OutcomeState::Success));
        worker.end().await;
    });
}

#[test]
fn lists_of_jobs_are_registered() {
    let (app, _) = app();
    let names = |app: &App| app.stats().by_job.into_keys().collect::<Vec<_>>();
    let renamed = Definition::new("tests.plus", add::JOB.options, add::JOB.runner);
    let app = app.jobs(vec![add::JOB, renamed]).jobs([nap::JOB]);
    assert_eq!(names(&app), ["tests.add", "tests.nap", "tests.plus"]);
}
