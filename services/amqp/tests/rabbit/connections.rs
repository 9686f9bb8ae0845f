//! Connections and their channels: how they end, and whom that concerns.

use std::time::{Duration, Instant};

use pikake_amqp::{Connection, ConsumeOptions, Error, Options, QueueOptions, persistent};
use pikake_traps::{sleep, spawn};

use crate::support::{HANG, connect, run};
use crate::{BROKER, until_it_has};

#[test]
fn an_error_of_one_channel_is_told_there_and_nowhere_else() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let good = connection.channel().await.unwrap();
        let queue = good.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let mut good_consumer = good.consume(&queue, ConsumeOptions::default()).await.unwrap();

        let bad = connection.channel().await.unwrap();
        let mut bad_consumer = bad.consume(&queue, ConsumeOptions::default()).await.unwrap();
        let (missing, after) =
            (bad.declare_queue("none", QueueOptions::passive()), bad.purge(&queue));
        let second = spawn(after);
        let error = missing.await.unwrap_err();
        assert_eq!(error.reason().map(|reason| reason.code), Some(404), "{error}");
        assert!(error.to_string().contains("no queue 'none'"), "{error}");
        // The one that was queued behind it, what waits, and what comes later.
        assert_eq!(second.await.unwrap().unwrap_err().reason().unwrap().code, 404);
        assert_eq!(bad_consumer.next().await.unwrap_err().reason().unwrap().code, 404);
        let late = bad.publish("", &queue, persistent(), b"mine".to_vec(), false).await;
        let back = late.unwrap_err().into_message().expect("it was not sent");
        assert_eq!(back.body, b"mine");

        good.publish("", &queue, persistent(), b"fine".to_vec(), true).await.unwrap();
        let delivery = good_consumer.next().await.unwrap();
        assert_eq!(delivery.body, b"fine");
        delivery.ack().unwrap();
    });
}

#[test]
fn who_is_not_let_in_is_told_why_at_once() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let open = async |url: String| {
            Connection::open(&url.parse().unwrap(), Options::default()).await.unwrap_err()
        };
        let port = broker.port();
        let wrong = open(format!("amqp://guest:wrong@127.0.0.1:{port}")).await.to_string();
        assert!(wrong.contains(&format!("127.0.0.1:{port}")) && wrong.contains("403"), "{wrong}");
        let wrong = open(format!("amqp://127.0.0.1:{port}/no%2Fsuch")).await.to_string();
        assert!(wrong.contains("530") && wrong.contains("no/such"), "{wrong}");
        let nobody = open("amqp://127.0.0.1:9".to_owned()).await;
        assert!(matches!(nobody, Error::Connect { .. }), "{nobody}");
        assert!(nobody.to_string().contains("127.0.0.1:9: "), "{nobody}");
    });
}

#[test]
fn the_last_handle_closes_the_connection() {
    let Some(broker) = BROKER.get() else { return };
    let address = broker.address();
    run(async {
        let connection = connect(&address).await;
        let channel = connection.channel().await.unwrap();
        drop(connection);
        channel.declare_queue("", QueueOptions::private()).await.unwrap();
        drop(channel);
        sleep(Duration::from_millis(200)).await.unwrap();
    });
    // Those of other tests may be there a moment longer.
    let begun = Instant::now();
    while !broker.command("ctl list_connections pid").is_empty() {
        assert!(begun.elapsed() < HANG, "a connection is still there");
    }
}

/// The broker has forgotten the channel when it would read what becomes of them.
#[test]
fn a_channel_that_is_closed_with_deliveries_under_way_costs_nothing_else() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let watching = spawn({
            let connection = connection.clone();
            async move { connection.changed().await }
        });
        let other = connection.channel().await.unwrap();
        other.declare_queue("under-way", QueueOptions::default()).await.unwrap();
        for _ in 0..300 {
            other.publish("", "under-way", persistent(), vec![b'x'; 100], true).await.unwrap();
        }
        for ended_after in 0..30 {
            let channel = connection.channel().await.unwrap();
            let consuming = spawn({
                let channel = channel.clone();
                async move { channel.consume("under-way", ConsumeOptions::default()).await }
            });
            sleep(ended_after * Duration::from_micros(50)).await.unwrap();
            channel.close().await.unwrap();
            drop(consuming.await);
        }
        assert!(!watching.is_finished(), "{:?}", watching.await);
        until_it_has(&other, "under-way", (300, 0)).await;
        other.delete_queue("under-way").await.unwrap();
    });
}
