//! Faults that only the connection itself can simulate: a full disk, a read-only file, a failing
//! read.

use pikake_kernel::Kernel;
use pikake_traps::{sleep, spawn, timeout_after};
use tempfile::TempDir;

use super::*;
use crate::broker::bus::{Notice, Topic};
use crate::brokers::sqlite::statements::OUTCOME_LIFE;

/// Runs a test with a database of its own, in which there is a queue.
fn on_database(test: impl AsyncFnOnce(SqliteBroker, &Path)) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    Kernel::new().unwrap().run(async {
        let broker = SqliteBroker::open(&path).await.unwrap();
        broker.declare("work", &QueueOptions::default()).await.unwrap();
        test(broker, &path).await;
    });
}

#[test]
fn a_full_disk_loses_nothing() {
    on_database(async |broker, _| {
        broker.publish("work", Message::default(), None).await.unwrap();
        limit(&broker, 40).await;
        let big = Message { body: vec![0; 1 << 20], ..Message::default() };
        let error = broker.publish("work", big.clone(), None).await.unwrap_err();
        assert!(!error.is_uncertain, "{error}");
        assert!(matches!(
            &error.cause,
            PublishFailure::Broker(BrokerError::Io(error))
                if error.kind() == std::io::ErrorKind::StorageFull
        ));
        assert!(*error.message == big);
        // What was there can be taken still.
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        broker.ack(delivery.receipt).await.unwrap();
        limit(&broker, 1 << 20).await;
        broker.publish("work", *error.message, None).await.unwrap();
        assert_eq!(deliveries.next().await.unwrap().unwrap().message, big);
    });
}

/// The row is inserted although nobody waits for it any more.
#[test]
fn interrupted_subscription_leaves_no_subscriber() {
    on_database(async |broker, _| {
        for _ in 0..10 {
            let subscribing = broker.subscribe(Topic::Commands, "one@here");
            let _ = timeout_after(Duration::ZERO, subscribing).await;
        }
        assert_eq!(broker.workers().await.unwrap().unwrap(), [""; 0]);
    });
}

#[pikake_macros::job(crate = crate)]
async fn grows(length: usize) -> String {
    "x".repeat(length)
}

#[test]
fn a_worker_outlives_a_full_disk() {
    on_database(async |broker, _| {
        let app =
            crate::App::on(Rc::new(broker.clone())).jobs([grows::JOB]).connect().await.unwrap();
        let worker = spawn(app.run_worker());
        limit(&broker, 60).await;
        // There is no room for its value, and none for what comes after it.
        let handle = grows::delay(1 << 20).await.unwrap();
        let early = timeout_after(Duration::from_secs(3), handle.wait()).await;
        assert!(early.is_err() && !worker.is_finished(), "{:?}", early.map(|it| it.is_ok()));
        let is_disk_full = async || broker.0.link.call(|of| Ok(of.is_disk_full)).await.unwrap();
        assert!(is_disk_full().await, "the worker says so");
        limit(&broker, 1 << 20).await;
        assert_eq!(handle.wait().await.unwrap().len(), 1 << 20);
        assert!(!is_disk_full().await, "the worker says that it goes on");
        assert_eq!(grows::delay(3).await.unwrap().wait().await.unwrap(), "xxx");
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

/// Its handle was first awaited more than a day after the job had ended.
#[test]
fn an_outcome_that_is_gone_for_its_age_is_not_waited_for() {
    on_database(async |broker, path| {
        let other = SqliteBroker::open(path).await.unwrap();
        let a_day_ago = micros(wall_time() - OUTCOME_LIFE - Duration::from_secs(1));
        for job in ["ended", "delayed"] {
            broker.0.link.watches.expect(JobId(job.to_owned()), None, a_day_ago);
        }
        let message =
            |job: &str| Message { correlation_id: Some(job.into()), ..Message::default() };
        other.store(&message("ended"), Outcome::success(1.into())).await.unwrap();
        let later = wall_time() + 2 * OUTCOME_LIFE;
        broker.publish("work", message("delayed"), Some(later)).await.unwrap();
        let a_day_later = micros(wall_time() + Duration::from_secs(1));
        let removed =
            broker.0.link.call(move |database| Ok(sql::forget_before(&database.db, a_day_later)?));
        removed.await.unwrap();
        for (job, is_known_to_be_gone) in [("ended", true), ("delayed", false)] {
            let waited =
                timeout_after(Duration::from_secs(1), broker.wait(&JobId(job.into()))).await;
            let is_gone = matches!(waited, Ok(Err(BrokerError::NoOutcome)));
            assert_eq!(is_gone, is_known_to_be_gone, "{job}: {waited:?}");
        }
    });
}

#[test]
fn a_purge_goes_on_where_it_was() {
    on_database(async |broker, _| {
        for job in ["a", "b", "c", "d"] {
            let message = Message { correlation_id: Some(job.into()), ..Message::default() };
            broker.publish("work", message, None).await.unwrap();
        }
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let taken = deliveries.next().await.unwrap().unwrap();
        let mut last = 0;
        for expected in [2, 1, 0] {
            let purged = broker.0.link.call(move |database| {
                let (queue, _) = queue(&database.db, "work")?;
                Ok(database.purge(queue, last, 2, wall_now())?)
            });
            let (count, next) = purged.await.unwrap();
            assert_eq!(count, expected);
            last = next;
        }
        for (job, is_purged) in [("a", false), ("b", true), ("c", true), ("d", true)] {
            let outcome = broker.outcome(&JobId(job.to_owned())).await.unwrap();
            assert_eq!(outcome.is_some(), is_purged, "{job}: {outcome:?}");
        }
        broker.ack(taken.receipt).await.unwrap();
    });
}

async fn limit(broker: &SqliteBroker, pages: u32) {
    let limited = broker.0.link.call(move |database| {
        database.db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        Ok(())
    });
    limited.await.unwrap();
}

async fn execute(broker: &SqliteBroker, sql: &'static str) -> Result<(), BrokerError> {
    broker.0.link.call(move |database| Ok(database.db.execute_batch(sql)?)).await
}

#[test]
fn a_file_that_cannot_be_written_any_more() {
    on_database(async |broker, path| {
        execute(&broker, "PRAGMA query_only = 1").await.unwrap();
        let error = broker.publish("work", Message::default(), None).await.unwrap_err();
        assert!(!error.is_uncertain, "{error}");
        assert!(error.to_string().contains("have to be writable"), "{error}");
        broker.close().await.unwrap();
        let broker = SqliteBroker::open(path).await.unwrap();
        broker.publish("work", *error.message, None).await.unwrap();
        assert_eq!(broker.counts("work").await.unwrap().ready, 1);
    });
}

/// The one read failed that would have found the change; no other change comes.
#[test]
fn an_outcome_that_could_not_be_read_is_read_again() {
    on_database(async |one, path| {
        let other = SqliteBroker::open(path).await.unwrap();
        for (number, hidden) in ["outcome", "message"].into_iter().enumerate() {
            one.declare("work", &QueueOptions::default()).await.unwrap();
            let mut message =
                Message { correlation_id: Some(number.to_string()), ..Message::default() };
            one.expect(&mut message).await.unwrap();
            let job = JobId(number.to_string());
            let waiting = spawn({
                let (one, job) = (one.clone(), job.clone());
                async move { one.wait(&job).await }
            });
            let mut deliveries = one.consume("work", 1).await.unwrap();
            let idle =
                spawn(
                    async move { while let Err(BrokerError::Io(_)) = deliveries.next().await {} },
                );
            sleep(Duration::from_millis(100)).await.unwrap();
            let hide: &'static str = match hidden {
                "outcome" => "CREATE TEMP TABLE outcome (it)",
                _ => "CREATE TEMP TABLE message (it)",
            };
            execute(&one, hide).await.unwrap();
            other.store(&message, Outcome::success(number.into())).await.unwrap();
            sleep(Duration::from_millis(100)).await.unwrap();
            assert!(!waiting.is_finished(), "nothing could be read");
            execute(
                &one,
                if number == 0 { "DROP TABLE temp.outcome" } else { "DROP TABLE temp.message" },
            )
            .await
            .unwrap();
            let waited = timeout_after(ASK_AGAIN / 2, waiting).await.expect("an outcome");
            assert_eq!(waited.unwrap().unwrap(), Outcome::success(number.into()));
            idle.cancel().await.ok();
        }
    });
}

/// A call that fails rolls back its transaction, and the heartbeat must not be in it.
#[test]
fn failing_calls_do_not_end_the_lease() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    Kernel::new().unwrap().run(async {
        let lease = Duration::from_secs(2);
        let holder = SqliteBroker::open_with_lease(&path, lease).await.unwrap();
        let other = SqliteBroker::open_with_lease(&path, lease).await.unwrap();
        holder.declare("work", &QueueOptions::default()).await.unwrap();
        holder.publish("work", Message::default(), None).await.unwrap();
        let mut deliveries = holder.consume("work", 1).await.unwrap();
        let held = deliveries.next().await.unwrap().unwrap();
        let mut others = other.consume("work", 1).await.unwrap();
        limit(&holder, 60).await;
        let big = Message { body: vec![0; 1 << 20], ..Message::default() };
        for _ in 0..10 {
            holder.publish("work", big.clone(), None).await.unwrap_err();
            let taken = timeout_after(lease / 4, others.next()).await;
            assert!(taken.is_err(), "{taken:?}");
        }
        holder.ack(held.receipt).await.unwrap();
    });
}

#[test]
fn a_failing_heartbeat_is_retried_after_a_pause() {
    on_database(async |broker, _| {
        execute(&broker, "CREATE TEMP TABLE lease (it)").await.unwrap();
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let mut errors = 0;
        let counted = timeout_after(Duration::from_secs(1), async {
            while let Err(BrokerError::Io(_)) = deliveries.next().await {
                errors += 1;
            }
        });
        counted.await.unwrap_err();
        assert!((1..50).contains(&errors), "{errors} in a second");
    });
}

/// The id of an outcome that was rolled back is that of the next one, of another process.
#[test]
fn an_outcome_after_a_rollback_is_noticed() {
    on_database(async |broker, path| {
        let other = SqliteBroker::open(path).await.unwrap();
        let mut message = Message { correlation_id: Some("job".into()), ..Message::default() };
        broker.expect(&mut message).await.unwrap();
        let job = JobId("job".to_owned());
        let rolled_back = broker.0.link.call(move |database| {
            let (db, outcomes) = (&database.db, &mut database.outcomes);
            let lost = Outcome::success(0.into());
            outcomes.store(db, JobId("lost".to_owned()), lost, wall_now())?;
            outcomes.ask(db, &JobId("job".to_owned()))?;
            let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
            Err::<(), _>(rusqlite::Error::SqliteFailure(full, None).into())
        });
        rolled_back.await.unwrap_err();
        let waiting = spawn({
            let (broker, job) = (broker.clone(), job.clone());
            async move { broker.wait(&job).await }
        });
        sleep(Duration::from_millis(100)).await.unwrap();
        other.store(&message, Outcome::success(1.into())).await.unwrap();
        let waited = timeout_after(ASK_AGAIN / 2, waiting).await.expect("an outcome");
        assert_eq!(waited.unwrap().unwrap(), Outcome::success(1.into()));
    });
}

/// With transactions one after the other, and each as long as on a slow disk.
#[test]
fn a_busy_process_leaves_gaps_for_others() {
    on_database(async |busy, path| {
        let other = SqliteBroker::open(path).await.unwrap();
        let is_over = Rc::new(std::cell::Cell::new(false));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (busy, is_over) = (busy.clone(), is_over.clone());
                spawn(async move {
                    while !is_over.get() {
                        let slow = busy.0.link.call(|database| {
                            sql::set_clock(&database.db, 0)?;
                            std::thread::sleep(Duration::from_millis(100));
                            Ok(())
                        });
                        slow.await.unwrap();
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(150)).await.unwrap();
        for _ in 0..10 {
            other.publish("work", Message::default(), None).await.unwrap();
        }
        is_over.set(true);
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// Another process removes the row of a subscriber, as after a step of the wall clock.
#[test]
fn a_subscriber_that_was_removed_comes_back() {
    on_database(async |broker, _| {
        let bus = broker.bus().unwrap();
        let mut notices = bus.subscribe(Topic::Commands, "one@here").await.unwrap();
        execute(&broker, "DELETE FROM subscriber").await.unwrap();
        while bus.workers().await.unwrap() != Some(vec!["one@here".to_owned()]) {
            sleep(Duration::from_millis(20)).await.unwrap();
        }
        bus.notify(Notice::new(Topic::Commands, "", b"{}".to_vec())).await.unwrap();
        assert_eq!(notices.next().await.unwrap().body, b"{}");
    });
}
