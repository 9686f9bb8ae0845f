//! The leader of schedules under `kill -9`: no moment is left out, and a kill repeats no more than
//! the moments that were due together. On a machine that stands still, several are.
//!
//! The leaders are processes of this test itself, told by the environment. Each kill meets the
//! process that was started first of those that live, which leads.

use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{App, Broker, Call, Missed, Schedule, SqliteBroker};
use pikake_kernel::Kernel;
use pikake_traps::{sleep, timeout_after};
use tempfile::TempDir;
use xtask::Server;

const URL: &str = "PIKAKE_LEADERS_URL";
const INTERVAL: Duration = Duration::from_millis(100);
/// Short, so that the messages of a killed leader come back in the time of the test.
const LEASE: Duration = Duration::from_secs(1);
const KILLS: usize = 4;
/// How many moments a leader has before it is killed.
const MOMENTS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(120);
const QUIET: Duration = Duration::from_secs(2);

async fn broker(url: &str) -> Rc<dyn Broker> {
    match url.strip_prefix("sqlite://") {
        Some(path) => Rc::new(SqliteBroker::open_with_lease(path, LEASE).await.unwrap()),
        None => pikake_jobs::open(url).await.unwrap(),
    }
}

/// What a process does that was started by a test below; nothing in others.
pub(crate) fn play() {
    let Ok(url) = std::env::var(URL) else { return };
    Kernel::new().unwrap().run(async {
        let schedule = Schedule::every(INTERVAL, Call::<()>::named("beat", ()));
        let app = App::on(broker(&url).await).schedule(schedule.missed(Missed::RunAll));
        // The jobs stay in their queue.
        app.worker().queues(["idle"]).run().await.unwrap();
    });
}

fn start(url: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact"]).env(URL, url).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Waits until a queue has so many messages more; returns how many there are.
async fn more(broker: &dyn Broker, count: usize) -> usize {
    let (begun, mut wanted) = (Instant::now(), None);
    loop {
        let ready = broker.counts("pikake").await.unwrap().ready as usize;
        if ready >= *wanted.get_or_insert(ready + count) {
            return ready;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody leads: {ready} jobs were sent");
        sleep(INTERVAL).await.unwrap();
    }
}

fn no_moment_is_left_out(url: &str) {
    Kernel::new().unwrap().run(async {
        let app = App::on(broker(url).await).queue("idle", Default::default());
        let app = app.connect().await.unwrap();
        let broker = app.broker().unwrap();
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(start(url));
            // The first one leads before the next one starts.
            if workers.len() == 1 {
                more(&*broker, 1).await;
            }
        }
        for _ in 0..KILLS {
            more(&*broker, MOMENTS).await;
            let mut leader = workers.remove(0);
            leader.kill().unwrap();
            leader.wait().unwrap();
            workers.push(start(url));
        }
        more(&*broker, MOMENTS).await;
        for mut worker in workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let mut jobs = broker.consume("pikake", u16::MAX).await.unwrap();
        let mut moments = Vec::new();
        while let Ok(delivery) = timeout_after(QUIET, jobs.next()).await {
            let delivery = delivery.unwrap().unwrap();
            let id = delivery.message.job().unwrap();
            moments.push(id.strip_prefix("beat@").unwrap().parse::<jiff::Timestamp>().unwrap());
        }
        let sent = moments.len();
        moments.sort();
        moments.dedup();
        println!("{KILLS} kills, {} moments, {sent} jobs", moments.len());
        assert!(moments.len() >= (KILLS + 1) * MOMENTS, "{}", moments.len());
        // Two leaders at a time would send each twice.
        assert!(sent <= moments.len() + KILLS * MOMENTS / 2, "{sent} of {}", moments.len());
        for two in moments.windows(2) {
            let length = two[1].duration_since(two[0]).unsigned_abs();
            assert_eq!(length, INTERVAL, "after {}", two[0]);
        }
        app.close().await.unwrap();
    });
}

#[test]
fn a_killed_leader_on_sqlite() {
    let directory = TempDir::new().unwrap();
    no_moment_is_left_out(&format!("sqlite://{}", directory.path().join("jobs.db").display()));
}

#[test]
fn a_killed_leader_on_rabbitmq() {
    let Some(rabbit) = Server::start_or_skip(xtask::Kind::RabbitMq) else { return };
    no_moment_is_left_out(&rabbit.fresh_url());
}
