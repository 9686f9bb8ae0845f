//! Messages that expire at RabbitMQ while no worker is there. On the broker for tests, in virtual
//! time.

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::{App, Broker, Unique};
use pikake_traps::{sleep, wall_time};

use super::fake::{SECOND, in_a_world, message, on_a_broker, serving};
use crate::{Running, nap};

/// Somebody may wait for the outcome in Redis, so a worker has to revoke the job.
#[test]
fn expired_message_with_an_outcome_stays() {
    on_a_broker(async |_server, broker| {
        for is_ignored in [false, true] {
            let mut sent = message("expired");
            sent.expires = Some(wall_time() + SECOND);
            if is_ignored {
                sent.headers.insert("ignore_result".to_owned(), true.into());
            }
            broker.publish("jobs", sent, None).await.unwrap();
        }
        sleep(3 * SECOND).await.unwrap();
        assert_eq!(broker.counts("jobs").await.unwrap().ready, 1);
    });
}

#[test]
fn expired_unique_job_releases_its_lock() {
    in_a_world(async {
        let _serving = serving(&Server::new()).await.cancel_on_drop();
        let app = App::new("amqp://127.0.0.1").unwrap().jobs([nap::JOB]).connect().await.unwrap();
        let broker = app.broker().unwrap();
        // The broker for tests keeps the message of a lock, and refuses no second one.
        let is_locked = async || {
            let lock = broker.counts("pikake.unique.tests.nap:k").await;
            lock.is_ok_and(|counts| counts.ready > 0)
        };
        let job = nap::with(1).unique("k", Unique::new(600 * SECOND)).ignore_result();
        job.expires(SECOND).on(&app).send().await.unwrap();
        sleep(3 * SECOND).await.unwrap();
        assert!(is_locked().await);
        let worker = Running::start(&app, SECOND).await;
        sleep(3 * SECOND).await.unwrap();
        assert!(!is_locked().await);
        worker.end().await;
    });
}
