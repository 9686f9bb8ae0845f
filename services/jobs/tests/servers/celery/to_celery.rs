//! Jobs that are sent from here and run by a Celery worker, which is one process without threads.

use std::time::{Duration, SystemTime};

use pikake_jobs::{Call, JobError, OutcomeState};
use pikake_traps::timeout_after;
use serde_json::{Value, json};

use super::{app, python, with_celery};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn values_and_failures_come_back() {
    with_celery(async |python, url| {
        let app = app(&url).connect().await.unwrap();
        let mut worker = python::Worker::start(&python, &url, super::QUEUE);
        let send = async |call: Call<Value>| call.send().await.unwrap();

        let sum = send(Call::named("tests.add", (2, 3))).await;
        let defaults = send(Call::named("tests.add", (2,))).await;
        let kwargs = json!({"x": null, "größe": [1, 2.5]});
        let named = Call::named("tests.sum_named", ("a", 1)).kwargs(&kwargs);
        let named = send(named).await;
        let flaky = send(Call::named("tests.flaky", (2,))).await;
        let bad = send(Call::named("tests.fail", ("no good",))).await;
        let two = send(Call::named("tests.fail", ("no", 7))).await;
        let wrong = send(Call::named("tests.add", (1, 2, 3))).await;
        let nope = send(Call::named("tests.nope", ())).await;
        let ignored = send(Call::named("tests.add", (1, 1)).ignore_result()).await;
        let limited = send(Call::named("tests.add", (20, 22)).soft_limit(5 * SECOND)).await;

        assert_eq!(sum.wait().await.unwrap(), 5);
        assert_eq!(defaults.wait().await.unwrap(), 2);
        assert_eq!(named.wait().await.unwrap(), json!({"args": ["a", 1], "kwargs": kwargs}));
        assert_eq!(flaky.wait().await.unwrap(), 2, "it was tried three times");
        assert_eq!(flaky.status().await.unwrap(), Some(OutcomeState::Success));
        let failure = |outcome| match outcome {
            Err(JobError::Failed(failure)) => failure,
            other => panic!("it was to fail: {other:?}"),
        };
        let bad = failure(bad.wait().await);
        assert_eq!(
            (&*bad.kind, &*bad.module, &*bad.message),
            ("ValueError", "builtins", "no good")
        );
        assert!(bad.traceback.unwrap().contains("raise ValueError(text, *more)"));
        let two = failure(two.wait().await);
        assert_eq!((&*two.kind, &*two.message), ("ValueError", "\"no\", 7"));
        let wrong = failure(wrong.wait().await);
        assert_eq!(wrong.kind, "TypeError");
        assert!(wrong.message.contains("positional arguments"), "{}", wrong.message);
        let nope = failure(nope.wait().await);
        assert_eq!((&*nope.kind, &*nope.message), ("NotRegistered", "tests.nope"));
        assert!(matches!(ignored.wait().await, Err(JobError::Ignored)));
        assert_eq!(limited.wait().await.unwrap(), 42);
        assert!(!worker.has_ended());
        app.close().await.unwrap();
    });
}

#[test]
fn times_are_kept() {
    with_celery(async |python, url| {
        let _app = app(&url).connect().await.unwrap();
        let _worker = python::Worker::start(&python, &url, super::QUEUE);
        let sent = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let later = Call::<f64>::named("tests.now", ()).countdown(2 * SECOND).send().await.unwrap();
        let at = SystemTime::now() + SECOND;
        let at = Call::<f64>::named("tests.now", ()).eta(at).expires(60 * SECOND);
        let at = at.send().await.unwrap();
        let now = Call::<f64>::named("tests.now", ()).send().await.unwrap();
        for (handle, wait) in [(later, 2.0), (at, 1.0), (now, 0.0)] {
            let took = handle.wait().await.unwrap() - sent;
            assert!(took >= wait - 0.01 && took < wait + 30.0, "{took} instead of {wait}");
        }
        // Of a process that naps, nothing else is taken in time.
        let nap = Call::<f64>::named("tests.nap", (2,)).send().await.unwrap();
        let expired = Call::<f64>::named("tests.now", ()).expires(SECOND).send().await.unwrap();
        assert_eq!(nap.wait().await.unwrap(), 2.0);
        let outcome = timeout_after(10 * SECOND, expired.wait()).await.expect("somebody says so");
        assert!(matches!(outcome, Err(JobError::Revoked(_))), "{outcome:?}");
    });
}
