//! A sender, a waiter and a worker, interrupted at each suspension by both kinds of cancel and by a
//! timeout: no job is lost, every job ends, and nothing stays behind.

use std::rc::Rc;

use pikake::jobs::{App, Broker, JobError, MemoryStore, OutcomeState};
use pikake::testing::interrupt_everywhere;
use pikake::{Kernel, sleep, spawn};

use crate::support::insist::ms;

#[pikake::job]
async fn work(number: u64) -> Result<u64, String> {
    sleep(ms(number)).await.map_err(|why| why.to_string())?;
    Ok(number)
}

const JOBS: u64 = 4;

#[test]
fn a_worker_loses_no_job() {
    let stores = std::cell::RefCell::new(Vec::new());
    let report = interrupt_everywhere(
        || {
            let store = MemoryStore::new();
            stores.borrow_mut().push(store.clone());
            async move {
                let sender = App::on(Rc::new(store.open())).connect().await.ok()?;
                for number in 0..JOBS {
                    work.with(number).on(&sender).ignore_result().send().await.ok()?;
                }
                let app = App::on(Rc::new(store.open())).jobs(work).concurrency(2);
                let ender = app.clone();
                let worker = app.worker().grace(ms(1)).on_start(move |shutdown| {
                    spawn(async move {
                        while ender.stats().all.done < JOBS && sleep(ms(1)).await.is_ok() {}
                        shutdown.warm();
                    })
                    .detach();
                });
                Some(worker.run().await.ok()?.stats.all.done)
            }
        },
        |run| {
            let store = stores.borrow_mut().pop().expect("one a run");
            let done = run.output.flatten().unwrap_or(0);
            if run.interruption.is_none() {
                assert_eq!(done, JOBS);
            }
            // Another kernel finds what was not done.
            let counts = std::thread::spawn(move || {
                Kernel::new().unwrap().run(async { store.open().counts("pikake").await.unwrap() })
            });
            let counts = counts.join().unwrap();
            assert_eq!((counts.ready + done, counts.taken), (JOBS, Some(0)));
        },
    );
    assert!(report.cancels > 2 && report.timeouts > 0, "{report:?}");
}

#[test]
fn interrupted_wait_for_a_job_can_repeat() {
    let report = interrupt_everywhere(
        || async {
            let store = MemoryStore::new();
            let app = App::on(Rc::new(store.open())).jobs(work);
            let _worker = spawn(app.run_worker()).cancel_on_drop();
            let app = app.connect().await.expect("not an interruption point here");
            let handle = work.with(3).on(&app).send().await.expect("nor is this");
            loop {
                match handle.wait().await {
                    Ok(value) => break (value, handle.status().await.unwrap()),
                    Err(JobError::Interrupted(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        },
        |run| {
            let found = run.output.expect("it is never dropped");
            assert_eq!(found, (3, Some(OutcomeState::Success)));
        },
    );
    assert!(report.cancels > 0, "{report:?}");
}
