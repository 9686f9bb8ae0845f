//! What the log says of a broker that is away. On the broker for tests, in virtual time.

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::App;
use pikake_traps::sleep;
use tracing::Level;

use super::fake::{SECOND, in_a_world, serving};
use crate::lines::Lines;
use crate::{Running, nap};

/// The targets of the client and of the worker.
const OURS: &[&str] = &["pikake_amqp::", "pikake_jobs", "pikake::jobs"];

#[test]
fn an_outage_of_a_minute_is_few_lines() {
    let (lines, _guard) = Lines::collect(OURS, Level::WARN);
    in_a_world(async {
        let server = Server::new();
        let task = serving(&server).await;
        let app = App::new("amqp://127.0.0.1").unwrap().jobs([nap::JOB]);
        let worker = Running::start(&app, SECOND).await;
        for seconds in [10, 10, 30] {
            nap::delay(seconds).await.unwrap();
        }
        sleep(2 * SECOND).await.unwrap();
        assert_eq!(lines.take(), Vec::<String>::new());

        task.cancel().await.unwrap();
        server.restart();
        sleep(60 * SECOND).await.unwrap();
        let away = lines.take();
        let is_warning = |line: &String| line.starts_with("warn no connection: broker=127.0.0.1");
        assert!(away.iter().all(is_warning), "{away:#?}");
        // At the loss, and about 1, 3, 7, 15 and 31 seconds later.
        assert_eq!(away.len(), 6, "{away:#?}");

        let task = serving(&server).await;
        sleep(10 * SECOND).await.unwrap();
        let back = lines.take();
        assert_eq!(back.len(), 1, "{back:#?}");
        assert!(back[0].starts_with("warn connected again: broker=127.0.0.1"), "{back:#?}");
        worker.end().await;
        drop(task);
    });
}

/// A broker that lets clients in and loses them at once is one outage.
#[test]
fn short_connections_are_one_outage() {
    let (lines, _guard) = Lines::collect(OURS, Level::WARN);
    in_a_world(async {
        let server = Server::new();
        let _serving = serving(&server).await.cancel_on_drop();
        let app = App::new("amqp://127.0.0.1").unwrap().jobs([nap::JOB]);
        let worker = Running::start(&app, SECOND).await;
        for _ in 0..200 {
            server.cut();
            sleep(SECOND / 10).await.unwrap();
        }
        sleep(10 * SECOND).await.unwrap();
        let lines = lines.take();
        let again = lines.iter().filter(|line| line.starts_with("warn connected again")).count();
        assert!(again == 1 && lines.len() <= 7, "{lines:#?}");
        worker.end().await;
    });
}
