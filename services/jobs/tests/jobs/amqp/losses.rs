//! What a broker takes away while jobs are under way: a queue, a connection, a channel. On the
//! broker for tests, in virtual time.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::SystemTime;

use pikake_amqp::State;
use pikake_amqp_testing::{Broker as Server, serve};
use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{
    AmqpBroker, App, Broker, BrokerError, ChordMember, JobError, JobId, Message, Outcome,
    QueueOptions,
};
use pikake_macros::job;
use pikake_net::TcpListener;
use pikake_traps::{Interrupted, sleep, spawn, timeout_after, wall_time};
use serde_json::Value;

use crate::Running;

use super::fake::{SECOND, delay_names, message, on_a_broker, without_delays};

#[test]
fn a_consumer_whose_queue_is_gone_has_come_to_its_end() {
    on_a_broker(async |_server, broker| {
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        channel.delete_queue("jobs").await.unwrap();
        let next = timeout_after(SECOND, deliveries.next()).await.unwrap();
        assert!(matches!(next, Ok(None)), "{next:?}");
    });
}

/// Also for a message that another one delays, whose way into the queue was deleted with the queue.
#[test]
fn a_worker_declares_its_deleted_queue_again() {
    on_a_broker(async |_server, broker| {
        let app = App::on(Rc::new(broker.clone())).default_queue("jobs").jobs([crate::add::JOB]);
        let worker = spawn(app.run_worker());
        let sender = App::on(Rc::new(broker.clone())).default_queue("jobs");
        let sender = sender.connect().await.unwrap();
        let add = || crate::add::with(2, 3).on(&sender);
        assert_eq!(add().send().await.unwrap().wait().await.unwrap(), 5);
        let later = add().countdown(10 * SECOND).send().await.unwrap();
        for _ in 0..2 {
            let channel = broker.connection().channel().await.unwrap();
            channel.delete_queue("jobs").await.unwrap();
            sleep(3 * SECOND).await.unwrap();
            let job = add().send().await.unwrap();
            let value = timeout_after(SECOND, job.wait()).await.expect("somebody works");
            assert_eq!(value.unwrap(), 5);
        }
        let value = timeout_after(10 * SECOND, later.wait()).await.expect("it comes");
        assert_eq!(value.unwrap(), 5);
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

/// It would be removed as a stranger's message, and its chord would never end.
#[test]
fn a_value_too_deep_to_be_read_is_refused_by_its_chord() {
    on_a_broker(async |server, broker| {
        let deep = (0..200).fold(Value::Null, |value, _| Value::Array(vec![value]));
        let outcome = Outcome::success(deep);
        let member = ChordMember::new("deep".to_owned(), 1, 0, "a".to_owned(), outcome);
        let joined = broker.join_chord(&member).await;
        let Err(BrokerError::Refused(why)) = joined else { panic!("{joined:?}") };
        assert!(why.contains("recursion limit"), "{why}");
        assert!(!server.queues().contains(&"pikake.chord.deep".to_owned()));
    });
}

thread_local!(static BEGUN: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });

#[job(crate = pikake_jobs, queue = "jobs", ignore_result)]
async fn slow(number: u32) -> Result<(), Interrupted> {
    BEGUN.with_borrow_mut(|begun| begun.push(number));
    sleep(10 * SECOND).await
}

/// Only what was running runs again: the broker requeues the others, which had not begun.
#[test]
fn waiting_messages_run_once_after_a_lost_connection() {
    on_a_broker(async |server, broker| {
        BEGUN.take();
        let app = App::on(Rc::new(broker)).default_queue("jobs").jobs([slow::JOB]);
        let worker = Running::start(&app.clone().concurrency(1).prefetch(4), SECOND).await;
        for number in 0..4 {
            slow::with(number).on(&app).send().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        server.cut();
        sleep(100 * SECOND).await.unwrap();
        assert_eq!(BEGUN.take(), [0, 0, 1, 2, 3]);
        assert_eq!((server.ready("jobs"), server.unacked("jobs")), (0, 0));
        worker.end().await;
    });
}

#[test]
fn who_waits_for_an_outcome_that_cannot_come_any_more_is_told() {
    on_a_broker(async |server, broker| {
        let app = App::on(Rc::new(broker)).default_queue("jobs").connect().await.unwrap();
        let job = pikake_jobs::Call::<i64>::named("none", ()).send().await.unwrap();
        let cut = spawn(async move {
            sleep(SECOND).await.unwrap();
            server.cut();
        });
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it waits for ever");
        assert!(matches!(waited, Err(JobError::Broker(BrokerError::NoOutcome))), "{waited:?}");
        // Nor is it another time.
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it waits for ever");
        assert!(matches!(waited, Err(JobError::Broker(BrokerError::NoOutcome))), "{waited:?}");
        cut.await.unwrap();
        drop(app);
    });
}

#[test]
fn who_looks_at_a_confirm_when_its_connection_has_gone_waits_for_no_outcome() {
    on_a_broker(async |server, broker| {
        let mut asks = message("a");
        broker.expect(&mut asks).await.unwrap();
        let mut publishing = pin!(broker.publish("jobs", asks, None));
        poll_fn(|cx| {
            assert!(publishing.as_mut().poll(cx).is_pending(), "it cannot be confirmed yet");
            Poll::Ready(())
        })
        .await;
        sleep(SECOND).await.unwrap();
        assert_eq!(server.ready("jobs"), 1);
        server.cut();
        while !matches!(broker.connection().changed().await, Ok(State::Open)) {}
        publishing.await.expect("it was confirmed");
        let job = JobId("a".to_owned());
        let waited = timeout_after(10 * SECOND, broker.wait(&job)).await.expect("it hangs");
        assert!(matches!(waited, Err(BrokerError::NoOutcome)), "{waited:?}");
        assert_eq!(server.ready("jobs"), 1, "it was not sent again");
    });
}

#[test]
fn a_message_that_costs_its_channel_does_not_cost_the_next_one_its_way() {
    on_a_broker(async |_server, broker| {
        let soon = || Some(wall_time() + SECOND);
        broker.publish("jobs", Message::default(), soon()).await.unwrap();
        let mut asked = Message::default();
        asked.correlation_id = Some("a".to_owned());
        broker.expect(&mut asked).await.unwrap();
        broker.publish("jobs", asked, None).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        for exchange in delay_names() {
            channel.delete_exchange(&exchange).await.unwrap();
        }
        broker.publish("jobs", Message::default(), soon()).await.expect_err("no exchange");
        broker.publish("jobs", Message::default(), None).await.expect("the next one goes");
        // Answers come to the channel that asked, which has gone.
        let job = pikake_jobs::JobId("a".to_owned());
        let waited = timeout_after(SECOND, broker.wait(&job)).await.expect("it waits for ever");
        assert!(matches!(waited, Err(BrokerError::NoOutcome)), "{waited:?}");
        // What is asked from here on is answered.
        let mut asked = Message::default();
        asked.correlation_id = Some("b".to_owned());
        broker.expect(&mut asked).await.unwrap();
        broker.publish("jobs", asked, None).await.unwrap();
        let mut deliveries = broker.consume("jobs", 10).await.unwrap();
        loop {
            let delivery = deliveries.next().await.unwrap().unwrap();
            broker.ack(delivery.receipt).await.unwrap();
            if delivery.message.job() == Some("b") {
                let outcome = pikake_jobs::Outcome::success(1.into());
                broker.store(&delivery.message, outcome).await.unwrap();
                break;
            }
        }
        let job = pikake_jobs::JobId("b".to_owned());
        assert!(timeout_after(SECOND, broker.wait(&job)).await.unwrap().is_ok());
    });
}

#[test]
fn of_all_that_are_under_way_only_the_message_to_blame_is_refused() {
    on_a_broker(async |server, broker| {
        without_delays(&broker).await;
        let publish = |mut message: Message, waits: bool, asks: bool| {
            let broker = broker.clone();
            spawn(async move {
                if asks {
                    broker.expect(&mut message).await.unwrap();
                }
                let time = waits.then(|| wall_time() + SECOND);
                broker.publish("jobs", message, time).await
            })
        };
        // Has the answers read that come to the channel, so that all go in the same turn.
        broker.expect(&mut message("nothing")).await.unwrap();
        let sent = [
            publish(message("before"), false, true),
            publish(message("to blame"), true, false),
            publish(message("asks"), false, true),
            publish(message("to blame, too"), true, true),
            publish(message("behind"), false, false),
        ];
        let mut told = Vec::new();
        for sent in sent {
            told.push(match sent.await.unwrap() {
                Ok(()) => "sent".to_owned(),
                Err(error) => format!("{} {}", error.is_uncertain, error.message.job().unwrap()),
            });
        }
        assert_eq!(told, ["sent", "true to blame", "sent", "true to blame, too", "sent"]);

        // Each came once, and whoever asked over a channel that is still there is answered.
        let mut deliveries = broker.consume("jobs", 10).await.unwrap();
        let mut came = Vec::new();
        while let Ok(delivery) = timeout_after(3 * SECOND, deliveries.next()).await {
            let delivery = delivery.unwrap().unwrap();
            let outcome = pikake_jobs::Outcome::success(1.into());
            broker.store(&delivery.message, outcome).await.unwrap();
            came.extend(delivery.message.job().map(str::to_owned));
            broker.ack(delivery.receipt).await.unwrap();
        }
        came.sort();
        assert_eq!(came, ["asks", "before", "behind"]);
        let job = pikake_jobs::JobId("asks".to_owned());
        assert!(timeout_after(SECOND, broker.wait(&job)).await.unwrap().is_ok());
        for job in ["asks", "before"] {
            broker.forget(&pikake_jobs::JobId(job.to_owned()));
        }
        drop(deliveries);
        sleep(SECOND).await.unwrap();
        // Channels that only answers were to come over are gone with who waited for them.
        assert_eq!(server.channels(), 1);
    });
}

#[test]
fn the_dead_have_a_queue_also_when_it_was_deleted() {
    on_a_broker(async |server, broker| {
        broker.publish("jobs", message("a"), None).await.unwrap();
        broker.publish("jobs", message("b"), None).await.unwrap();
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        let channel = broker.connection().channel().await.unwrap();
        channel.delete_queue("jobs.dead").await.unwrap();
        broker.bury(delivery.receipt, delivery.message, "why".to_owned()).await.unwrap();
        assert_eq!(server.ready("jobs.dead"), 1);
        let next = timeout_after(SECOND, deliveries.next()).await.expect("its place is free");
        assert_eq!(next.unwrap().unwrap().message.job(), Some("b"));
    });
}

#[test]
fn what_cannot_be_buried_is_given_back_after_a_while() {
    on_a_broker(async |server, broker| {
        let mut poison = message("poison");
        // It leaves no room in its frame for a reason, nor for the time.
        poison.headers.insert("large".to_owned(), "x".repeat(128 * 1024 - 60).into());
        // A classic queue adds no count of deliveries, for which there is no room either.
        let options = QueueOptions::default();
        broker.declare("classic", &options).await.unwrap();
        broker.publish("classic", poison, None).await.unwrap();
        let app = App::on(Rc::new(broker.clone())).default_queue("classic");
        let app = app.queue("classic", options).prefetch(1);
        let worker = spawn(app.run_worker());
        sleep(3 * SECOND).await.unwrap();
        assert_eq!((server.ready("classic"), server.unacked("classic")), (0, 1));
        // Its place is free again, and it is somebody else's turn.
        let mut deliveries = broker.consume("classic", 1).await.unwrap();
        let next = timeout_after(9 * SECOND, deliveries.next()).await.expect("it is given back");
        assert_eq!(next.unwrap().unwrap().message.job(), Some("poison"));
        worker.request_cancel("the test is over");
        let report = worker.await.unwrap().unwrap();
        assert_eq!((report.stats.all.dead, report.stats.all.given_back), (0, 2));
    });
}

/// It is no shortage of memory or disk.
#[test]
fn a_broker_that_cannot_be_reached_is_told_to_be_lost() {
    pikake_sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let serving = spawn(serve(Server::new(), listener));
        let broker = AmqpBroker::open("amqp://127.0.0.1").await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        serving.cancel().await.unwrap();
        sleep(SECOND).await.unwrap();
        let error = broker.publish("jobs", Message::default(), None).await.unwrap_err();
        assert!(!error.is_uncertain);
        assert!(
            matches!(&error.cause, PublishFailure::Broker(BrokerError::Lost(_))),
            "{:?}",
            error.cause
        );
        assert!(error.to_string().contains("no connection to 127.0.0.1:5672"), "{error}");
    });
}

/// It died at a worker whose clock is ahead, and does not stand in the way of those behind it.
#[test]
fn the_dead_of_a_clock_that_is_ahead_are_replayed_as_well() {
    on_a_broker(async |_server, broker| {
        let mut deliveries = broker.consume("jobs", 10).await.unwrap();
        for number in 0..3 {
            let mut message = Message::default();
            message.correlation_id = Some(number.to_string());
            if number == 1 {
                let since = (wall_time() + 60 * SECOND).duration_since(SystemTime::UNIX_EPOCH);
                let since = u64::try_from(since.unwrap().as_millis()).unwrap();
                message.headers.insert("pikake_since".to_owned(), since.into());
                broker.publish("jobs.dead", message, None).await.unwrap();
                continue;
            }
            broker.publish("jobs", message, None).await.unwrap();
            let came = deliveries.next().await.unwrap().unwrap();
            broker.bury(came.receipt, came.message, "why".to_owned()).await.unwrap();
        }
        assert_eq!(broker.replay("jobs", None).await.unwrap(), 3);
        for number in ["0", "1", "2"] {
            let came = deliveries.next().await.unwrap().unwrap();
            assert_eq!(came.message.job(), Some(number));
            broker.ack(came.receipt).await.unwrap();
        }
        assert_eq!(broker.counts("jobs").await.unwrap().dead, 0);
    });
}

/// Also when it was deleted in the meantime, and with it what led there.
#[test]
fn a_queue_that_is_declared_again_can_delay_again() {
    on_a_broker(async |_server, broker| {
        let later = || Some(wall_time() + SECOND);
        for time in ["first", "second"] {
            broker.publish("jobs", message(time), later()).await.unwrap();
            let mut deliveries = broker.consume("jobs", 1).await.unwrap();
            let came = timeout_after(3 * SECOND, deliveries.next()).await.expect("it is lost");
            let came = came.unwrap().unwrap();
            assert_eq!(came.message.job(), Some(time));
            broker.ack(came.receipt).await.unwrap();
            broker.connection().channel().await.unwrap().delete_queue("jobs").await.unwrap();
            broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        }
    });
}
