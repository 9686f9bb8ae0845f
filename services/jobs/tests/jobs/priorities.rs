//! Priorities: in a queue that has them, the higher goes first.

use std::cell::RefCell;

use pikake_jobs::{QueueOptions, group};
use pikake_macros::job;
use pikake_traps::sleep;

use crate::{Running, SECOND, app, in_worlds};

thread_local!(static RAN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });

#[job(crate = pikake_jobs)]
async fn notes(number: u8) {
    RAN.with_borrow_mut(|all| all.push(number));
}

/// Of a priority that its definition says.
#[job(crate = pikake_jobs, priority = 7)]
async fn urgent(number: u8) {
    notes(number).await;
}

#[test]
fn the_higher_goes_first() {
    in_worlds(async || {
        RAN.take();
        let (app, _) = app();
        let mut options = QueueOptions::default();
        options.max_priority = 9;
        let app =
            app.jobs([notes::JOB, urgent::JOB]).queue("pikake", options).concurrency(1).prefetch(1);
        let app = app.connect().await.unwrap();
        for (number, priority) in [(1, 0), (2, 5), (3, 9), (4, 5)] {
            notes::with(number).priority(priority).send().await.unwrap();
        }
        urgent::delay(5).await.unwrap();
        let worker = Running::start(&app, SECOND).await;
        sleep(SECOND).await.unwrap();
        worker.end().await;
        assert_eq!(RAN.take(), [3, 5, 2, 4, 1]);
    });
}

/// It would not be kept.
#[test]
fn priority_in_queue_without_is_an_error() {
    in_worlds(async || {
        let (app, _) = app();
        let _app = app.jobs([notes::JOB, urgent::JOB]).connect().await.unwrap();
        let calls = [notes::with(1).priority(5).send().await, urgent::with(1).send().await];
        for refused in calls {
            let why = refused.map(drop).unwrap_err().to_string();
            assert!(why.contains("has no priorities"), "{why}");
        }
        notes::with(1).send().await.unwrap();
        urgent::with(1).priority(0).send().await.unwrap();
    });
}

/// Of each job of a workflow, and not only of the first.
#[test]
fn priority_in_workflow_is_an_error_as_well() {
    in_worlds(async || {
        let (app, _) = app();
        let _app = app.jobs([notes::JOB, urgent::JOB]).connect().await.unwrap();
        let plain = || notes::with(1);
        let workflows = [
            plain().then(urgent::with(2)),
            urgent::with(1).then(plain()),
            group(vec![urgent::with(1)]).then(plain()),
            plain().on_success(urgent::with(2)),
        ];
        for workflow in workflows {
            let why = workflow.send().await.map(drop).unwrap_err().to_string();
            assert!(why.contains("has no priorities"), "{why}");
        }
        let why = group(vec![urgent::with(1)]).send().await.map(drop).unwrap_err().to_string();
        assert!(why.contains("has no priorities"), "{why}");
    });
}
