//! A console that sees very many workers, on the broker for tests, in virtual time.
//!
//! One connection plays all workers: their heartbeats come every two seconds, and each answers each
//! question.

use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::{AmqpBroker, App, Broker, Notice, Topic};
use pikake_traps::{Interrupted, elapsed_since, now, sleep, spawn};
use serde_json::{Value, json};

use super::fake::{SECOND, in_a_world, serving};

const URL: &str = "amqp://127.0.0.1";
/// How many workers there are: 10,000 take half a minute without optimizations.
const WORKERS: &str = "PIKAKE_TEST_WORKERS";
const FEW: usize = 500;
/// Heartbeats go out so often, some at a time.
const BEAT: Duration = Duration::from_millis(20);
/// So many of these are an interval of a worker.
const BEATS: usize = 100;

fn name(number: usize) -> String {
    format!("worker-{number:05}@here")
}

async fn send_heartbeats(broker: Rc<AmqpBroker>, count: usize) -> Result<(), Interrupted> {
    let bus = broker.bus().unwrap();
    for turn in 0.. {
        for number in (turn % BEATS..count).step_by(BEATS) {
            let event = json!({
                "type": "worker-heartbeat", "hostname": name(number), "freq": 2.0, "active": 1, "processed": turn,
                "clock": turn, "pid": number, "sw_ident": "pikake", "loadavg": [0.1, 0.2, 0.3],
            });
            let body = event.to_string().into_bytes();
            bus.notify(Notice::new(Topic::Events, "worker.heartbeat", body)).await.unwrap();
        }
        sleep(BEAT).await?;
    }
    Ok(())
}

async fn answer_all(broker: Rc<AmqpBroker>, count: usize) {
    let bus = broker.bus().unwrap();
    let mut commands = bus.subscribe(Topic::Commands, "all@here").await.unwrap();
    while let Ok(command) = commands.next().await {
        let command: Value = serde_json::from_slice(&command.body).unwrap();
        let to = command["reply_to"]["routing_key"].as_str().unwrap();
        let ticket = command["ticket"].as_str().unwrap();
        let told = match command["method"].as_str().unwrap() {
            "ping" => json!({"ok": "pong"}),
            "stats" => json!({"pid": 1, "total": {"job": 7}, "pool": {"max-concurrency": 8}}),
            "active_queues" => json!([{"name": "pikake"}]),
            _ => json!([]),
        };
        for number in 0..count {
            let body = json!({name(number): &told}).to_string().into_bytes();
            let reply = Notice::new(Topic::Replies, to, body).header("ticket", ticket);
            bus.notify(reply).await.unwrap();
        }
    }
}

/// The memory of this process, in megabytes, where the system tells it.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kilobytes = line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok());
    kilobytes.unwrap_or_default() / 1_000
}

#[test]
fn console_knows_all_workers() {
    let count = std::env::var(WORKERS).map_or(FEW, |count| count.parse().unwrap());
    in_a_world(async {
        let server = Server::new();
        let _serving = serving(&server).await.cancel_on_drop();
        let workers = Rc::new(AmqpBroker::open(URL).await.unwrap());
        let answering = spawn(answer_all(workers.clone(), count)).cancel_on_drop();
        let app = App::new(URL).unwrap().connect().await.unwrap();
        let control = app.control().wait(60 * SECOND);
        let before = resident();
        // It begins to read heartbeats, of which there are none.
        app.control().wait(SECOND / 10).ping().await.unwrap();
        let beating = spawn(send_heartbeats(workers, count)).cancel_on_drop();
        let began = Instant::now();
        sleep(10 * SECOND).await.unwrap();
        let heard = began.elapsed();

        let (asked, began) = (now(), Instant::now());
        assert_eq!(control.ping().await.unwrap().len(), count);
        let pinged = began.elapsed();
        let all = control.workers().await.unwrap();
        let listed = began.elapsed() - pinged;
        assert!(elapsed_since(asked) < 60 * SECOND, "all are known, and none is waited for");
        let names: Vec<_> = all.iter().map(|worker| &*worker.name).collect();
        assert_eq!(names, (0..count).map(name).collect::<Vec<_>>());
        assert!(all.iter().all(|worker| worker.processed == 7 && worker.queues == ["pikake"]));
        println!(
            "{count} workers: 10 s of heartbeats {heard:?}, ping {pinged:?}, workers {listed:?}, {} MB more",
            resident().saturating_sub(before)
        );

        // Heartbeats cease, and the workers are forgotten.
        drop((beating, answering));
        sleep(10 * SECOND).await.unwrap();
        assert_eq!(app.control().workers().await.unwrap(), []);
        app.close().await.unwrap();
    });
}
