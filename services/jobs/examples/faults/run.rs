//! A run: sends jobs, makes the faults meanwhile, and counts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{App, open};
use pikake_kernel::Kernel;
use pikake_net::TcpListener;
use pikake_traps::{blocking, random, sleep, spawn};
use xtask::Server;

use crate::plan::{Counts, Plan};
use crate::proxy::{Weather, proxy};
use crate::roles::{record, record_early, recorded, start};

/// Tasks that send, each one job at a time.
const SENDERS: u64 = 200;
/// After a message was not confirmed.
const AGAIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(500);
/// How long what is left over may take to be gone.
const LEFT_PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "pikake";

/// On SQLite, or on a RabbitMQ on which nothing has run.
pub(crate) fn run(plan: &Plan, rabbit: Option<Server>) -> Counts {
    let folder = tempfile::tempdir().expect("a folder");
    Kernel::new().expect("a kernel").run(async {
        match rabbit {
            None => {
                let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
                under_faults(plan, &url, &url, None, folder.path()).await
            }
            Some(rabbit) => {
                let direct = rabbit.fresh_url();
                under_faults(plan, &direct.clone(), &direct, Some(rabbit), folder.path()).await
            }
        }
    })
}

struct Sending {
    sent: Cell<usize>,
    confirmed: Cell<usize>,
}

async fn under_faults(
    plan: &Plan,
    direct: &str,
    mut url: &str,
    rabbit: Option<Server>,
    place: &Path,
) -> Counts {
    let begun = Instant::now();
    let weather = Rc::new(Weather::default());
    // The queue is there before anything fails.
    drop(App::new(direct).expect("a URL").connect().await.expect("it connects"));
    let mut through = String::new();
    let mut background = Vec::new();
    if let Some(rabbit) = &rabbit {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        through = direct.replace(&format!(":{}/", rabbit.port()), &format!(":{port}/"));
        url = &through;
        let passing = proxy(listener, rabbit.port(), plan.lives.clone(), weather.clone());
        background.push(spawn(passing).cancel_on_drop());
    }
    let _ = &through;
    weather.is_bad.set(true);
    let is_over = Rc::new(Cell::new(false));
    let workers: Vec<_> = (0..plan.workers).map(|_| start(url, place)).collect();
    let workers = Rc::new(RefCell::new(workers));
    let killing = spawn(kill(
        plan.kills.clone(),
        workers.clone(),
        url.to_owned(),
        place.to_owned(),
        is_over.clone(),
    ));
    let restarting = spawn(restart(rabbit.clone(), plan.restarts, is_over.clone()));

    let sending = Rc::new(Sending { sent: Cell::new(0), confirmed: Cell::new(0) });
    let app = loop {
        match App::new(url).expect("a URL").connect().await {
            Ok(app) => break app,
            Err(error) => eprintln!("the sender is not let in yet: {error}"),
        }
        sleep(AGAIN).await.expect("nobody interrupts it");
    };
    let senders: Vec<_> = (0..SENDERS)
        .map(|first| spawn(send(app.clone(), first, plan.clone(), sending.clone())))
        .collect();
    for sender in senders {
        sender.await.expect("it sends");
    }
    // What is left is done in worse weather for a while, and then in better.
    let (jobs, mut before, mut since) = (plan.jobs, 0, Instant::now());
    loop {
        sleep(LOOK).await.expect("nobody interrupts it");
        let done = recorded(place).into_iter().collect::<BTreeSet<_>>().len();
        if done != before {
            (before, since) = (done, Instant::now());
        }
        if done == jobs || since.elapsed() > plan.patience {
            break;
        }
    }
    is_over.set(true);
    weather.is_bad.set(false);
    let kills = killing.await.expect("it kills");
    let restarts = restarting.await.expect("it restarts");
    drop(app);
    let (left, dead) = leftovers(direct, rabbit).await;
    for worker in workers.borrow_mut().iter_mut() {
        end(worker);
    }
    let all = recorded(place);
    let done = all.iter().collect::<BTreeSet<_>>().len();
    Counts {
        jobs,
        sent: sending.sent.get(),
        confirmed: sending.confirmed.get(),
        done,
        duplicates: all.len() - done,
        kills,
        restarts,
        cuts: weather.cuts.get(),
        left,
        dead,
        time: begun.elapsed(),
    }
}

/// Sends each of its jobs until it is confirmed.
async fn send(app: App, first: u64, plan: Plan, counts: Rc<Sending>) {
    for number in (first..plan.jobs as u64).step_by(SENDERS as usize) {
        let call = if plan.is_early { record_early.with(number) } else { record.with(number) };
        let call = call.id(format!("job-{number}")).on(&app);
        // Most ignore their value, and for some an outcome is sent.
        let call = if number % 10 == 0 { call } else { call.ignore_result() };
        loop {
            counts.sent.set(counts.sent.get() + 1);
            match call.clone().send().await {
                Ok(_) => break,
                Err(error) => eprintln!("job {number} is sent again: {error}"),
            }
            sleep(AGAIN).await.expect("nobody interrupts it");
        }
        counts.confirmed.set(counts.confirmed.get() + 1);
        sleep(plan.pause).await.expect("nobody interrupts it");
    }
}

fn end(worker: &mut Child) {
    drop(worker.kill());
    drop(worker.wait());
}

/// Kills one worker after the other, with another in its place.
async fn kill(
    every: std::ops::Range<u64>,
    workers: Rc<RefCell<Vec<Child>>>,
    url: String,
    place: std::path::PathBuf,
    is_over: Rc<Cell<bool>>,
) -> usize {
    let mut kills = 0;
    loop {
        sleep(Duration::from_millis(random::range(every.clone())))
            .await
            .expect("it is not interrupted");
        if is_over.get() {
            return kills;
        }
        let mut workers = workers.borrow_mut();
        let at = random::range(0..workers.len() as u64) as usize;
        end(&mut workers[at]);
        workers[at] = start(&url, &place);
        kills += 1;
    }
}

/// RabbitMQ 3.10 saves who leads a quorum queue every five seconds. Killed before it has, it never finds a
/// leader again; and the queues for delayed jobs are made when the first job fails.
const QUORUM_SAVES: Duration = Duration::from_secs(6);

/// Kills the broker and starts it again.
async fn restart(rabbit: Option<Server>, every: Duration, is_over: Rc<Cell<bool>>) -> usize {
    let (mut restarts, mut since) = (0, Instant::now() + QUORUM_SAVES);
    while !is_over.get() {
        sleep(AGAIN).await.expect("it is not interrupted");
        if since.elapsed() < every {
            continue;
        }
        let Some(rabbit) = rabbit.clone() else { continue };
        let back = blocking(move || {
            rabbit.command("kill");
            std::thread::sleep(AGAIN * 10);
            rabbit.command("start");
        });
        back.await.expect("it comes back");
        (restarts, since) = (restarts + 1, Instant::now());
    }
    restarts
}

/// So many of the dead are shown.
const SHOWN: usize = 20;

/// What is left at the broker once the workers have had the time to acknowledge.
async fn leftovers(url: &str, rabbit: Option<Server>) -> (u64, u64) {
    let broker = open(url).await.expect("it connects");
    broker.declare(QUEUE, &Default::default()).await.expect("it is there");
    let (mut before, mut since) = (u64::MAX, Instant::now());
    loop {
        let counts = broker.counts(QUEUE).await.expect("they are counted");
        let mut left = counts.ready + counts.taken.unwrap_or(0) + counts.delayed;
        if let Some(rabbit) = &rabbit {
            // Also those that were delivered and not acknowledged.
            let queues = rabbit.command("ctl list_queues -p case1 messages --no-table-headers");
            let all: u64 = queues.iter().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
            // They are counted one after the other.
            left = all.saturating_sub(counts.dead);
        }
        if left != before {
            (before, since) = (left, Instant::now());
        }
        if left == 0 || since.elapsed() > LEFT_PATIENCE {
            for dead in broker.dead(QUEUE, SHOWN).await.expect("they are read") {
                eprintln!("{} is dead: {}", dead.message.job().unwrap_or_default(), dead.reason);
            }
            return (left, counts.dead);
        }
        sleep(LOOK).await.expect("nobody interrupts it");
    }
}
