//! A world whose hosts have three kernels, which begin each other's work: requests, calls, tasks
//! and members of groups.
//!
//! Each work has a key and a script: it waits, computes, cleans up, and returns or panics. A
//! [`Ticket`] travels with work that has not begun, and a [`Live`] with work that has. Whatever
//! fails:
//!
//! * work begins at most once, and work that is spawned begins or is withdrawn;
//! * an answer is that of its script, and comes once;
//! * a task's outcome is that of its work: a value, a panic, or an end after a cancel;
//! * a group returns after all of its members have ended;
//! * in the end no work is left, and no task of a request or call.
//!
//! `PIKAKE_RUNS=10000 cargo test -p pikake-http anywhere` runs ten thousand seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use hyper::Uri;
use pikake::http::axum::local;
use pikake::http::{serve, serve_on_all};
use pikake::kernel::inspect::tasks_from;
use pikake::net::TcpStream;
use pikake::random::range;
use pikake::rpc::{CallFailure, Client, Server};
use pikake::sim::{FaultMix, Runs, Sim, busy_for, sometimes};
use pikake::task::spawn_anywhere;
use pikake::traps::Peers;
use pikake::{
    Bound, Interrupted, KernelHandle, TaskError, TimedOut, on_kernels, other_kernels, shield,
    sleep, spawn, timeout_after, try_task_group, yield_now,
};

const SERVER: &str = "server";
const CLIENTS: [&str; 2] = ["client0", "client1"];
/// The tasks of a client host that have work done, and the pieces of work of each.
const WORKERS: u64 = 3;
const PIECES: u64 = 6;
/// The most members of a group.
const MEMBERS: u64 = 4;
/// Faults happen before this moment.
const FAULTS_END: Duration = Duration::from_secs(2);
/// The time in which connections of clients that have gone end.
const RECOVERY: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
/// The names of the tasks that are left on a kernel of a server without clients.
const STAY: [&str; 5] = ["server", "waits for work", "http server", "http limits", ""];

fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

/// The events on all hosts.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<History>>);

#[derive(Default)]
struct History {
    last_key: u64,
    spawned: BTreeSet<u64>,
    begun: BTreeMap<u64, u64>,
    withdrawn: BTreeMap<u64, u64>,
    live: BTreeMap<u64, String>,
    moved: u64,
    finished: BTreeSet<String>,
    is_checked: bool,
}

impl Record {
    fn with<R>(&self, use_it: impl FnOnce(&mut History) -> R) -> R {
        use_it(&mut self.0.lock().unwrap())
    }

    fn key(&self) -> u64 {
        self.with(|happened| {
            happened.last_key += 1;
            happened.last_key
        })
    }

    fn has_begun(&self, key: u64) -> bool {
        self.with(|happened| happened.begun.contains_key(&key))
    }

    fn assert_ended(&self, key: u64) {
        let is_live = self.with(|happened| happened.live.contains_key(&key));
        assert!(!is_live, "work {key} has outlived its task");
    }

    /// The rules for the end.
    fn audit(&self) {
        self.with(|happened| {
            let History { begun, withdrawn, live, spawned, .. } = happened;
            assert!(live.is_empty(), "left: {live:?}");
            assert!(begun.values().all(|count| *count == 1), "begun twice: {begun:?}");
            for key in &*spawned {
                let count = begun.get(key).unwrap_or(&0) + withdrawn.get(key).unwrap_or(&0);
                assert_eq!(count, 1, "work {key} is lost or withdrawn after its begin");
            }
            happened.is_checked = true;
        });
    }
}

/// Goes with work that has not begun.
struct Ticket {
    record: Record,
    key: u64,
    script: String,
    home: KernelHandle,
    is_used: bool,
}

impl Ticket {
    fn new(record: &Record, script: &str) -> Self {
        let (key, script) = (record.key(), script.to_owned());
        record.with(|happened| happened.spawned.insert(key));
        let home = KernelHandle::current();
        Self { record: record.clone(), key, script, home, is_used: false }
    }

    async fn work(mut self) -> Result<String, Interrupted> {
        self.is_used = true;
        let is_moved = self.home.id() != KernelHandle::current().id();
        self.record.with(|happened| happened.moved += u64::from(is_moved));
        work(&self.record, self.key, &self.script).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_used {
            self.record.with(|happened| *happened.withdrawn.entry(self.key).or_default() += 1);
        }
    }
}

/// Work that has begun and not ended.
struct Live(Record, u64);

impl Live {
    fn new(record: &Record, key: u64, script: &str) -> Self {
        let is_first = record.with(|happened| {
            *happened.begun.entry(key).or_default() += 1;
            happened.live.insert(key, script.to_owned()).is_none() && happened.begun[&key] == 1
        });
        assert!(is_first, "work {key} begins twice");
        Self(record.clone(), key)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.with(|happened| happened.live.remove(&self.1));
    }
}

/// A random script: `w`aits, computes for `s`hort or `l`ong, `y`ields, `c`leans up when it is
/// interrupted, s`h`ields a wait, waits `f`or ever, `p`anics. A request that ends with `b` has a
/// long body.
fn script() -> String {
    let steps = (0..range(0..5)).map(|_| match range(0..16) {
        0..5 => 'w',
        5..8 => 's',
        8 => 'l',
        9..11 => 'y',
        11..14 => 'c',
        _ => 'h',
    });
    let mut script: String = steps.collect();
    match range(0..8) {
        0 => script.push('p'),
        1..4 => script.push('b'),
        _ => script.push('.'),
    }
    script
}

/// A script that lasts until it is interrupted or dropped, every second time.
fn endless() -> String {
    let mut script = script();
    if range(0..2) == 0 {
        script.pop();
        script.push_str("f.");
    }
    script
}

fn panics(script: &str) -> bool {
    script.ends_with('p')
}

fn answer(key: u64, script: &str) -> String {
    format!("{key}:{script};")
}

async fn work(record: &Record, key: u64, script: &str) -> Result<String, Interrupted> {
    let _live = Live::new(record, key, script);
    for step in script.chars() {
        match step {
            'w' => sleep(ms(3)).await?,
            's' => busy_for(Duration::from_micros(300)),
            'l' => busy_for(ms(4)),
            'y' => yield_now().await?,
            'c' => {
                if let Err(why) = sleep(ms(5)).await {
                    // The second wait is not interrupted.
                    sleep(ms(2)).await.expect("a cause is returned once");
                    return Err(why);
                }
            }
            'f' => sleep(10_000 * SECOND).await?,
            'h' => shield(sleep(ms(4))).await?,
            'p' => resume_unwind(Box::new("as it must be")),
            _ => {}
        }
    }
    Ok(answer(key, script))
}

// --- the server --------------------------------------------------------------------------------

#[pikake::service]
trait Works {
    async fn work(&self, key: u64, script: String) -> Result<String, String>;
}

#[derive(Clone)]
struct Worker(Record);

impl Works for Worker {
    async fn work(&self, key: u64, script: String) -> Result<String, String> {
        work(&self.0, key, &script).await.map_err(|why| why.to_string())
    }
}

/// Answers `/KEY/SCRIPT`.
fn router(record: &Record) -> Router {
    let record = record.clone();
    let answer = async move |uri: Uri| -> Response {
        let mut parts = uri.path().split('/').skip(1);
        let key: u64 = parts.next().unwrap().parse().unwrap();
        let script = parts.next().unwrap();
        let text = match work(&record, key, script).await {
            Ok(text) => text,
            Err(why) => return why.to_string().into_response(),
        };
        if !script.ends_with('b') {
            return text.into_response();
        }
        let live = Live(record.clone(), key);
        record.with(|happened| happened.live.insert(key, "body".into()));
        let parts = text.bytes().collect::<Vec<u8>>().into_iter();
        let parts = stream::unfold((parts, live), async |(mut parts, live)| {
            let part = parts.next()?;
            let slept = sleep(Duration::from_micros(700)).await.map_err(io::Error::from);
            Some((slept.map(|()| vec![part]), (parts, live)))
        });
        let mut parts = Bound::new(Box::pin(parts));
        let parts = stream::poll_fn(move |cx| parts.get_mut().poll_next_unpin(cx));
        Body::from_stream(parts).into_response()
    };
    Router::new().fallback(local(answer))
}

async fn server(record: Record) {
    let (site, worker) = (record.clone(), Worker(record.clone()));
    let http = serve_on_all("0.0.0.0:80", &other_kernels(), move |listener| {
        serve(listener, router(&site)).header_timeout(2 * SECOND).stall_timeout(2 * SECOND)
    });
    let calls = pikake::net::serve_on_all("0.0.0.0:7000", &other_kernels(), move |listener| {
        Server::new().add(WorksServer::new(worker.clone())).serve(listener)
    });
    let (http, calls) = (spawn(http), spawn(calls));
    while record.with(|happened| happened.finished.len()) < CLIENTS.len() {
        sleep(SECOND).await.unwrap();
    }
    sleep(RECOVERY).await.unwrap();
    // No server has ended, and no task of a request, call or body is left.
    assert!(!http.is_finished() && !calls.is_finished());
    let names = on_kernels(&other_kernels(), || async {
        let tasks = tasks_from(0, 1000).tasks;
        Ok::<_, TaskError>(tasks.iter().map(|task| task.name().to_owned()).collect::<Vec<_>>())
    });
    for names in names.await {
        let names = names.unwrap();
        let stays = |name: &String| STAY.contains(&name.as_str());
        assert!(names.iter().all(stays), "{names:?}");
    }
    record.audit();
    sleep(1000 * SECOND).await.unwrap();
}

// --- the clients -------------------------------------------------------------------------------

/// The status and the body of an answer.
async fn ask(key: u64, script: &str) -> io::Result<(u16, String)> {
    let stream = TcpStream::connect("server:80").await?;
    let head = format!("GET /{key}/{script} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 1024];
        match stream.read(&mut part).await? {
            0 => break,
            length => bytes.extend_from_slice(&part[..length]),
        }
    }
    let text = String::from_utf8(bytes).unwrap();
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let header = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| line.to_lowercase().strip_prefix(name).map(str::to_owned))
    };
    if let Some(length) = header("content-length: ") {
        let is_whole = body.len() == length.parse::<usize>().unwrap();
        return is_whole.then(|| (status, body.to_owned())).ok_or_else(broken);
    }
    assert!(header("transfer-encoding: chunked").is_some(), "{head}");
    let (mut whole, mut rest) = (String::new(), body);
    loop {
        let (length, after) = rest.split_once("\r\n").ok_or_else(broken)?;
        let length = usize::from_str_radix(length, 16).map_err(|_| broken())?;
        if length == 0 {
            return Ok((status, whole));
        }
        whole.push_str(after.get(..length).ok_or_else(broken)?);
        rest = after.get(length + 2..).ok_or_else(broken)?;
    }
}

/// Waits for an answer, which a server without power does not send.
async fn patiently<F: Future>(is_calm: bool, answer: F) -> Result<F::Output, TimedOut> {
    let answered = timeout_after(RECOVERY, answer).await;
    assert!(!is_calm || answered.is_ok(), "no answer");
    answered
}

/// Asks by HTTP, and may leave.
async fn request(record: &Record, is_calm: bool) {
    let leaves = range(0..3) == 0;
    // No server learns that a client has lost its power while the answer is being made.
    let (key, script) = (record.key(), if leaves && is_calm { endless() } else { script() });
    let asked = match leaves {
        true => timeout_after(Duration::from_micros(range(500..25_000)), ask(key, &script)).await,
        false => patiently(is_calm, ask(key, &script)).await,
    };
    match asked {
        Ok(Ok((200, body))) => {
            assert!(!panics(&script));
            assert_eq!(body, answer(key, &script));
            assert!(record.has_begun(key));
        }
        Ok(Ok((status, body))) => {
            assert!(status == 500 && panics(&script), "{script}: {status} {body}");
            assert!(record.has_begun(key));
        }
        Ok(Err(error)) => assert!(!is_calm || error.kind() == io::ErrorKind::TimedOut, "{error}"),
        Err(_) => {}
    }
}

async fn call(record: &Record, works: &WorksClient, is_calm: bool) {
    let leaves = range(0..3) == 0;
    let (key, script) = (record.key(), if leaves { endless() } else { script() });
    let call = works.work(key, script.clone());
    let called = match leaves {
        true => timeout_after(Duration::from_micros(range(500..25_000)), call).await,
        false => patiently(is_calm, call).await,
    };
    match called {
        Ok(Ok(text)) => {
            assert!(!panics(&script));
            assert_eq!(text, answer(key, &script));
        }
        Ok(Err(pikake::rpc::Error::Call(error))) => match error.failure {
            CallFailure::Panicked => assert!(panics(&script) && record.has_begun(key)),
            CallFailure::Interrupted(_) => {}
            failure => assert!(!is_calm, "{failure:?}"),
        },
        // The handler was interrupted: its caller has gone, or the connection.
        Ok(Err(error)) => assert!(!is_calm, "{error:?}"),
        Err(_) => {}
    }
}

/// Work of a task of its own, which is joined, cancelled, aborted or dropped.
async fn task(record: &Record) {
    let manner = range(0..6);
    let script = if manner > 1 { endless() } else { script() };
    let ticket = Ticket::new(record, &script);
    let key = ticket.key;
    let task = spawn_anywhere(move || ticket.work());
    if manner > 1 {
        match range(0..3) {
            0 => {}
            1 => drop(yield_now().await),
            _ => drop(sleep(Duration::from_micros(range(1..20_000))).await),
        }
    }
    let is_aborted = manner == 4;
    match manner {
        2 | 3 => task.request_cancel("by the model"),
        4 => task.abort(),
        5 => return drop(task.cancel_on_drop()),
        _ => {}
    }
    let was_asked = manner > 1;
    let outcome = match (manner, timeout_after(ms(range(1..10)), async {}).await) {
        // The handle survives a wait that is given up.
        (1, _) => {
            let mut task = task;
            match timeout_after(ms(range(1..10)), &mut task).await {
                Ok(outcome) => outcome,
                Err(_) => task.await,
            }
        }
        _ => timeout_after(RECOVERY, task).await.expect("a cancel or an abort ends the work"),
    };
    match outcome {
        Ok(Ok(text)) => {
            assert!(!panics(&script));
            assert_eq!(text, answer(key, &script));
        }
        Ok(Err(why)) => assert!(was_asked && why.is_cancel(), "{why}"),
        Err(TaskError::Panicked(_)) => assert!(panics(&script)),
        Err(TaskError::Cancelled(why)) => {
            assert!(was_asked, "{why}");
            let is_withdrawn = record.with(|happened| happened.withdrawn.contains_key(&key));
            assert!(is_aborted || is_withdrawn, "{script}: {why} of work that has begun");
        }
        Err(error) => panic!("{error}"),
    }
    if !is_aborted {
        record.assert_ended(key);
    }
    let count = record.with(|happened| {
        happened.begun.get(&key).unwrap_or(&0) + happened.withdrawn.get(&key).unwrap_or(&0)
    });
    assert!(is_aborted || count == 1, "work {key} is lost: {count}");
}

/// A group, which may fail, be cancelled by its members, or time out.
async fn group(record: &Record) {
    let tickets: Vec<_> =
        (0..range(1..MEMBERS + 1)).map(|_| Ticket::new(record, &script())).collect();
    let keys: Vec<_> = tickets.iter().map(|ticket| ticket.key).collect();
    let any_panics = tickets.iter().any(|ticket| panics(&ticket.script));
    let fails = range(0..4) == 0;
    let body = try_task_group(async |group| {
        for ticket in tickets {
            group.spawn_anywhere(move || async move {
                ticket.work().await.map(drop).map_err(io::Error::from)
            });
            if range(0..3) == 0 {
                yield_now().await?;
            }
        }
        if fails {
            return Err(io::Error::other("as it must be"));
        }
        Ok(())
    });
    let ended = match range(0..3) {
        0 => timeout_after(Duration::from_micros(range(1..20_000)), body).await,
        _ => Ok(body.await),
    };
    match ended {
        Ok(Ok(())) => assert!(!fails && !any_panics),
        Ok(Err(_)) => assert!(fails || any_panics),
        Err(_) => {}
    }
    for key in keys {
        record.assert_ended(key);
    }
}

async fn client(name: &'static str, record: Record, is_calm: bool) {
    sleep(ms(20)).await.unwrap();
    let workers = (0..WORKERS).map(|worker| {
        let record = record.clone();
        let run = move || async move {
            let works = Client::builder().tcp("server:7000").attempts(1).build();
            let works = WorksClient::new(works);
            for _ in 0..PIECES {
                match range(0..7) {
                    0 | 1 => request(&record, is_calm).await,
                    2 | 3 => call(&record, &works, is_calm).await,
                    4 | 5 => task(&record).await,
                    _ => group(&record).await,
                }
                sleep(Duration::from_micros(range(0..3_000))).await.unwrap();
            }
        };
        let kernels = Peers::current().unwrap().handles();
        let kernel = &kernels[worker as usize % kernels.len()];
        spawn(kernel.call(run))
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap().unwrap();
    }
    record.with(|happened| happened.finished.insert(name.into()));
    while !record.with(|happened| happened.is_checked) {
        sleep(SECOND).await.unwrap();
    }
}

fn world(sim: &mut Sim) {
    let record = Record::default();
    let is_calm = sim.seed() % 2 == 0;
    if !is_calm {
        let mut mix = FaultMix::new(FAULTS_END);
        mix.long_steps = 4;
        sim.fault_mix(mix);
    }
    sim.tolerate_panics();
    let served = record.clone();
    sim.host(SERVER, move || server(served.clone())).kernels(SERVER, 3);
    for name in CLIENTS {
        let record = record.clone();
        sim.client(name, move || client(name, record.clone(), is_calm)).kernels(name, 3);
    }
    sim.invariant("some work moves", move || {
        let moved = record.with(|happened| happened.moved);
        sometimes!(moved > 10, "ten pieces of work have moved");
    });
}

#[test]
fn work_moves_between_kernels_of_failing_hosts() {
    Runs::new("anywhere::").seeds(200).expect(["ten pieces of work have moved"]).run(world);
}
