//! Consumers of a worker that is paused and resized, and one that starts while the broker takes no
//! messages.

use std::rc::Rc;

use pikake_jobs::App;
use pikake_traps::{sleep, spawn, timeout_after};

use super::fake::{SECOND, in_a_world, on_a_broker, serving};
use crate::{Running, add, nap};

#[test]
fn ended_consumers_of_a_busy_queue_are_dropped() {
    on_a_broker(async |server, broker| {
        let app =
            App::on(Rc::new(broker.clone())).default_queue("jobs").jobs([nap::JOB]).concurrency(4);
        let worker = Running::start(&app, SECOND).await;
        sleep(10 * SECOND).await.unwrap();
        for _ in 0..500 {
            nap::with(3).on(&app).ignore_result().send().await.unwrap();
        }
        let before = server.channels();
        for _ in 0..40 {
            app.control().pause("jobs").await.unwrap();
            app.control().resume("jobs").await.unwrap();
            sleep(2 * SECOND).await.unwrap();
        }
        assert!(server.channels() <= before + 4, "{before} and {}", server.channels());
        assert!(server.unacked("jobs") > 0);
        worker.shutdown.cold();
        worker.task.await.unwrap().unwrap();
    });
}

#[test]
fn a_larger_prefetch_requeues_nothing() {
    on_a_broker(async |server, broker| {
        let app =
            App::on(Rc::new(broker.clone())).default_queue("jobs").jobs([nap::JOB]).concurrency(1);
        let worker = Running::start(&app, SECOND).await;
        for _ in 0..200 {
            nap::with(1_000).on(&app).ignore_result().send().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert_eq!((server.consumers("jobs"), server.unacked("jobs")), (1, 2));
        for concurrency in 2..=40 {
            app.control().set_concurrency(concurrency).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert!(server.consumers("jobs") <= 7, "{}", server.consumers("jobs"));
        let taken = server.unacked("jobs");
        assert!((80..160).contains(&taken), "{taken}");
        assert_eq!(app.stats().all.given_back, 0);
        // A little smaller, and larger again.
        app.control().set_concurrency(30).await.unwrap();
        app.control().set_concurrency(40).await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!((server.unacked("jobs"), app.stats().all.given_back), (taken, 0));
        worker.shutdown.cold();
        worker.task.await.unwrap().unwrap();
    });
}

#[test]
fn a_worker_starts_while_the_broker_takes_nothing() {
    in_a_world(async {
        let server = pikake_amqp_testing::Broker::new();
        let _serving = serving(&server).await.cancel_on_drop();
        let app = || App::new("amqp://127.0.0.1").unwrap().default_queue("jobs").jobs([add::JOB]);
        let first = app().named("first@here").connect().await.unwrap();
        let other = Running::start(&first, SECOND).await;
        sleep(5 * SECOND).await.unwrap();
        first.control().pause("jobs").await.unwrap();
        first.control().revoke("revoked", false).await.unwrap();
        for number in 0..10 {
            add::with(number, 1).on(&first).ignore_result().send().await.unwrap();
        }
        server.block(Some("memory"));
        let app = app().named("second@here").connections(2).connect().await.unwrap();
        let worker = spawn(app.run_worker());
        sleep(5 * SECOND).await.unwrap();
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
        assert_eq!(app.stats().all.done, 10, "it does not know of the pause yet");
        server.block(None);
        sleep(10 * SECOND).await.unwrap();
        // What the other one knows has come late.
        add::with(1, 1).on(&first).ignore_result().send().await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(server.ready("jobs"), 1);
        first.control().resume("jobs").await.unwrap();
        let revoked = add::with(1, 1).id("revoked").on(&first).send().await.unwrap();
        let revoked = timeout_after(10 * SECOND, revoked.wait()).await.unwrap();
        assert!(revoked.is_err(), "{revoked:?}");
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        other.end().await;
    });
}
