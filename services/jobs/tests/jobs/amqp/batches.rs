//! Batches over AMQP: the prefetch lets them be full, and a lost connection runs no message twice
//! in one of them.

use std::cell::RefCell;
use std::rc::Rc;

use pikake_jobs::App;
use pikake_macros::job;
use pikake_traps::{sleep, timeout_after};

use super::fake::{SECOND, on_a_broker};
use crate::Running;

thread_local!(static BATCHES: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) });

#[job(crate = pikake_jobs, queue = "jobs", batch(size = 50, wait = "600s"))]
async fn gather(numbers: Vec<u32>) -> Vec<u32> {
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    BATCHES.with_borrow_mut(|batches| batches.push(sorted));
    numbers
}

#[test]
fn a_batch_is_larger_than_the_concurrency() {
    on_a_broker(async |server, broker| {
        BATCHES.take();
        let app = App::on(Rc::new(broker.clone()))
            .default_queue("jobs")
            .jobs([gather::JOB])
            .concurrency(1);
        let worker = Running::start(&app, SECOND).await;
        let mut jobs = Vec::new();
        for number in 0..50 {
            jobs.push(gather::with(number).on(&app).send().await.unwrap());
        }
        for (number, job) in (0..).zip(&jobs) {
            let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is full");
            assert_eq!(waited.unwrap(), number);
        }
        assert_eq!(BATCHES.take(), [(0..50).collect::<Vec<_>>()]);
        worker.end().await;
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
    });
}

#[test]
fn a_lost_connection_runs_no_message_twice_in_a_batch() {
    on_a_broker(async |server, broker| {
        BATCHES.take();
        let app = App::on(Rc::new(broker.clone()))
            .default_queue("jobs")
            .jobs([gather::JOB])
            .concurrency(1);
        let worker = Running::start(&app, SECOND).await;
        for number in 0..10 {
            gather::with(number).on(&app).ignore_result().send().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        server.cut();
        sleep(60 * SECOND).await.unwrap();
        assert_eq!(server.unacked("jobs"), 10);
        sleep(600 * SECOND).await.unwrap();
        assert_eq!(BATCHES.take(), [(0..10).collect::<Vec<_>>()]);
        worker.end().await;
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
    });
}
