//! A run: sends jobs, makes the faults meanwhile, and counts.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::{App, SendError, map};
use pikake_kernel::Kernel;
use pikake_net::TcpListener;
use pikake_traps::{blocking, random, sleep, spawn};
use serde_json::{Value, json};
use xtask::Server;
use xtask::needs::{CELERY, Need, PYTHON};

use crate::plan::{Audit, Counts, Kind, Plan, Work};
use crate::proxy::{Weather, proxy};
use crate::roles::{
    append_to, end_of_chain, fails, fan_out, line, link, record, record_early, start, sum, unwanted,
};

/// Tasks that send, each one job at a time.
const SENDERS: u64 = 200;
/// After a message was not confirmed.
const AGAIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(2);
/// How long a job is pending that is revoked before it begins,
const PENDING: Duration = Duration::from_secs(2);
/// and how long after it was sent another one is revoked.
const RUNNING: Duration = Duration::from_millis(300);
/// How long the queue is paused.
const PAUSED: Duration = Duration::from_secs(1);
/// How long what is left over may take to be gone.
const LEFT_PATIENCE: Duration = Duration::from_secs(60);
const QUEUE: &str = "pikake";
const DATABASE: &str = "jobs.db";

/// The Python that counts: one with an AMQP client where the broker is RabbitMQ.
pub(crate) fn python(kind: Kind) -> Need {
    match kind {
        Kind::Sqlite => PYTHON,
        Kind::Rabbit => CELERY,
    }
}

/// On SQLite, or on a RabbitMQ on which nothing has run.
pub(crate) fn run(plan: &Plan, rabbit: Option<Server>) -> Counts {
    let folder = tempfile::tempdir().expect("a folder");
    let counts = Kernel::new().expect("a kernel").run(async {
        match rabbit {
            None => {
                let url = format!("sqlite://{}", folder.path().join(DATABASE).display());
                under_faults(plan, &url, &url, None, folder.path()).await
            }
            Some(rabbit) => {
                let direct = rabbit.fresh_url();
                under_faults(plan, &direct.clone(), &direct, Some(rabbit), folder.path()).await
            }
        }
    });
    if !counts.is_good() {
        eprintln!("the files of the run are in {}", folder.keep().display());
    }
    counts
}

/// What all tasks that send share.
struct Sending {
    plan: Plan,
    app: App,
    calls: Cell<usize>,
    sent: File,
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
    let workers: Vec<_> = (0..plan.workers).map(|slot| start(url, place, slot)).collect();
    let workers = Rc::new(RefCell::new(workers));
    let killing = spawn(kill(
        plan.kills.clone(),
        workers.clone(),
        url.to_owned(),
        place.to_owned(),
        is_over.clone(),
    ));
    let restarting = spawn(restart(rabbit.clone(), plan.restarts, is_over.clone()));

    let app = loop {
        match App::new(url).expect("a URL").connect().await {
            Ok(app) => break app,
            Err(error) => eprintln!("the sender is not let in yet: {error}"),
        }
        sleep(AGAIN).await.expect("nobody interrupts it");
    };
    let pausing = spawn(pause(app.clone(), plan.pauses, is_over.clone()));
    let sent = append_to(&place.join("sent"));
    let sending = Rc::new(Sending { plan: plan.clone(), app, calls: Cell::new(0), sent });
    let senders: Vec<_> = (0..SENDERS).map(|first| spawn(send(first, sending.clone()))).collect();
    for sender in senders {
        sender.await.expect("it sends");
    }
    // What is left is done in worse weather for a while, and then in better.
    let python = python(if rabbit.is_some() { Kind::Rabbit } else { Kind::Sqlite });
    let python = python.find().expect("the caller has looked for it");
    let (mut before, mut since) = (0, Instant::now());
    loop {
        sleep(LOOK).await.expect("nobody interrupts it");
        let told = json!({"dead": null, "queues": []});
        let open = audit(&python, place, told).await.open;
        if open != before {
            (before, since) = (open, Instant::now());
        }
        if open == 0 || since.elapsed() > plan.patience {
            break;
        }
    }
    is_over.set(true);
    weather.is_bad.set(false);
    let kills = killing.await.expect("it kills");
    let restarts = restarting.await.expect("it restarts");
    let pauses = pausing.await.expect("it pauses");
    let calls = sending.calls.get();
    drop(sending);
    let audit = final_audit(&python, place, rabbit).await;
    for worker in workers.borrow_mut().iter_mut() {
        end(worker);
    }
    Counts {
        calls,
        kills,
        restarts,
        cuts: weather.cuts.get(),
        pauses,
        time: begun.elapsed(),
        audit,
    }
}

/// Sends each of its jobs until it is confirmed.
async fn send(first: u64, sending: Rc<Sending>) {
    let plan = &sending.plan;
    for number in (first..plan.jobs as u64).step_by(SENDERS as usize) {
        let work = if plan.is_early { Work::Plain } else { Work::of(number) };
        let (kind, values) = match work {
            Work::Plain => ("plain", Vec::new()),
            Work::Later | Work::Endless => ("revoked", Vec::new()),
            Work::Fails => ("fails", Vec::new()),
            Work::Chain => ("chain", vec![number + 2]),
            Work::Chord(size) => ("chord", vec![size, size * (size + 1) / 2]),
            Work::Returned(size) => ("returned", vec![2 * size, size * size]),
        };
        let mut file = &sending.sent;
        file.write_all(line(kind, number, &values).as_bytes()).expect("it is written");
        while let Err(error) = send_once(&sending, number, work).await {
            eprintln!("{kind} {number} is sent again: {error}");
            sleep(AGAIN).await.expect("nobody interrupts it");
        }
        if matches!(work, Work::Later | Work::Endless) {
            let is_running = work == Work::Endless;
            if is_running {
                sleep(RUNNING).await.expect("nobody interrupts it");
            }
            let control = sending.app.control();
            while let Err(error) = control.revoke(&format!("job-{number}"), is_running).await {
                eprintln!("job {number} is revoked again: {error}");
                sleep(AGAIN).await.expect("nobody interrupts it");
            }
        }
        sleep(plan.pause).await.expect("nobody interrupts it");
    }
}

async fn send_once(sending: &Sending, number: u64, work: Work) -> Result<(), SendError> {
    let (app, id) = (&sending.app, format!("job-{number}"));
    sending.calls.set(sending.calls.get() + 1);
    match work {
        Work::Plain => {
            let is_early = sending.plan.is_early;
            let call = if is_early { record_early::with(number) } else { record::with(number) };
            let call = call.id(id).on(app);
            // Most ignore their value, and for some an outcome is sent.
            let call = if number % 10 == 0 { call } else { call.ignore_result() };
            call.send().await.map(drop)
        }
        Work::Later => {
            unwanted::with(number).id(id).countdown(PENDING).on(app).send().await.map(drop)
        }
        Work::Endless => unwanted::with(number).id(id).on(app).send().await.map(drop),
        Work::Fails => fails::with(number).id(id).on(app).send().await.map(drop),
        Work::Chain => {
            let chain = link::with(number).then(link::after()).then(end_of_chain::after(number));
            chain.on(app).send().await.map(drop)
        }
        Work::Chord(size) => {
            let chord = map(link::with, 0..size).then(sum::after(number));
            chord.on(app).send().await.map(drop)
        }
        Work::Returned(size) => fan_out::with(size, number).id(id).on(app).send().await.map(drop),
    }
}

/// Pauses the queue for a while, and then again.
async fn pause(app: App, every: Duration, is_over: Rc<Cell<bool>>) -> usize {
    let (mut pauses, control) = (0, app.control());
    loop {
        sleep(every).await.expect("nobody interrupts it");
        if is_over.get() {
            return pauses;
        }
        if control.pause(QUEUE).await.is_ok_and(|told| !told.is_empty()) {
            pauses += 1;
            sleep(PAUSED).await.expect("nobody interrupts it");
        }
        // Without an answer, no worker may have got it.
        while control.resume(QUEUE).await.map_or(true, |told| told.is_empty()) {
            sleep(AGAIN).await.expect("nobody interrupts it");
        }
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
        workers[at] = start(&url, &place, at);
        kills += 1;
    }
}

/// RabbitMQ 3.10 saves who leads a quorum queue every five seconds. Killed before it has, it never
/// finds a leader again; and the queues for delayed jobs are made when the first job fails.
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

/// What the files of a run say, and the broker where `told` says how it is asked.
async fn audit(python: &Path, place: &Path, told: Value) -> Audit {
    let mut command = Command::new(python);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/faults/audit.py");
    command.arg(script).arg(place).stdin(Stdio::piped()).stdout(Stdio::piped());
    let said = blocking(move || {
        let mut child = command.spawn().expect("Python runs");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(told.to_string().as_bytes()).expect("it reads");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "the audit has failed");
        output.stdout
    });
    serde_json::from_slice(&said.await.expect("nobody interrupts it")).expect("an audit")
}

/// The same once the workers have had the time to acknowledge.
async fn final_audit(python: &Path, place: &Path, rabbit: Option<Server>) -> Audit {
    let (mut before, mut since) = (u64::MAX, Instant::now());
    loop {
        let told = match &rabbit {
            None => json!({"dead": {"file": place.join(DATABASE)}, "queues": []}),
            Some(rabbit) => {
                let (asked, port) = (rabbit.clone(), rabbit.port());
                let list = "ctl list_queues -p case1 name messages --no-table-headers";
                // Also those that were delivered and not acknowledged.
                let queues = blocking(move || asked.command(list)).await;
                let queues = queues.expect("nobody interrupts it");
                json!({"dead": {"port": port, "host": "case1"}, "queues": queues})
            }
        };
        let audit = audit(python, place, told).await;
        if audit.left != before {
            (before, since) = (audit.left, Instant::now());
        }
        let is_done = audit.left == 0 && audit.wrong.is_empty();
        if is_done || since.elapsed() > LEFT_PATIENCE {
            return audit;
        }
        sleep(LOOK).await.expect("nobody interrupts it");
    }
}
