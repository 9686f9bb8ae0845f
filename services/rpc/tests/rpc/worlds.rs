//! Simulated worlds of clients and servers in which the network, the hosts and the callers fail.
//!
//! Each world keeps a [`Record`] of its calls, handlers and channels. The record's rules are in
//! [`Record::audit`], and hold whatever fails:
//!
//! * each call ends, within its deadline if it has one;
//! * a handler runs at most once, unless its method is idempotent, and never for a call that was
//!   not executed;
//! * no handler runs on after the deadline and the grace, or for long after its caller has gone;
//! * items arrive in order, without doubles, and without loss before an error;
//! * in the end no task, call, place or item is left on any host, and nobody broke the protocol.
//!
//! `PIKAKE_RUNS=10000 cargo test -p pikake-rpc worlds` runs ten thousand seeds of each world.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::inspect::tasks_from;
use pikake::net::{Closing, Patience, TcpListener, serve_until};
use pikake::random::range;
use pikake::rpc::packets::{PacketError, PacketOptions};
use pikake::rpc::{
    Balance, CallError, CallFailure, Client, Codec, Error, Executed, Receiver, Sender, Server,
    channel, current_call,
};
use pikake::sim::{Fault, FaultMix, FaultPlan, Latency, Network, Runs, Sim};
use pikake::{Task, now, shield, sleep, spawn, timed, timeout_after};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const SERVERS: [&str; 2] = ["server0", "server1"];
const CLIENTS: [&str; 3] = ["client0", "client1", "client2"];
/// The tasks of a client host that make calls.
const WORKERS: u64 = 4;
/// Faults happen, and calls begin, before this moment.
const FAULTS_END: Duration = Duration::from_secs(6);
/// The time after the faults in which connections recover or are given up.
const RECOVERY: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_millis(400);
const SILENCE: Duration = Duration::from_millis(1500);
/// How long a handler that is interrupted cleans up.
const CLEANUP: Duration = Duration::from_millis(150);
/// How often hosts look whether others have ended.
const POLL: Duration = Duration::from_millis(100);
/// The steps of a busy host, and two ways through a network without faults.
const SLACK: Duration = Duration::from_millis(30);
/// The time in which a cancel arrives behind large requests, in a network without faults.
const QUEUED: Duration = Duration::from_millis(300);
/// The time in which a server learns that a caller has gone, by the cancel or by the silence, in a
/// network with faults.
const LEARNED: Duration = Duration::from_secs(6);

/// What a handler does.
#[derive(Clone, Serialize, Deserialize, Debug)]
struct Script {
    /// The lengths of its waits, in ms.
    waits: Vec<u16>,
    manner: Manner,
    end: End,
    padding: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
enum Manner {
    /// Ends at the first interruption, after some cleanup.
    Cleans,
    /// Ignores interruptions.
    Swallows,
    /// Waits in a shield.
    Shields,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
enum End {
    Value,
    Error,
    Panic,
}

impl Script {
    fn random() -> Self {
        let padding = match range(0..20) {
            0 => range(0..50_000),
            _ => range(0..200),
        };
        Self {
            waits: (0..range(0..4)).map(|_| range(0..300) as u16).collect(),
            manner: match range(0..6) {
                0 => Manner::Swallows,
                1 => Manner::Shields,
                _ => Manner::Cleans,
            },
            end: match range(0..8) {
                0 => End::Panic,
                1 => End::Error,
                _ => End::Value,
            },
            padding: vec![7; padding as usize],
        }
    }
}

thread_local! {
    static ITEMS: Cell<i64> = const { Cell::new(0) };
}

/// An item of a channel, which counts those that exist.
struct Item(u64, u64);

impl Item {
    fn new(key: u64, index: u64) -> Self {
        ITEMS.set(ITEMS.get() + 1);
        Self(key, index)
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        ITEMS.set(ITEMS.get() - 1);
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0, self.1).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (key, index) = Deserialize::deserialize(deserializer)?;
        Ok(Self::new(key, index))
    }
}

#[pikake::service]
trait Works {
    async fn once(&self, key: u64, script: Script) -> Result<u64, String>;
    #[idempotent]
    async fn again(&self, key: u64, script: Script) -> Result<u64, String>;
    #[notice]
    async fn note(&self, key: u64, script: Script);
    async fn upload(&self, key: u64, items: Receiver<Item>, script: Script) -> Result<u64, String>;
    async fn download(&self, key: u64, items: Sender<Item>, script: Script) -> Result<u64, String>;
    async fn both(&self, key: u64, from: Receiver<Item>, to: Sender<Item>) -> Result<u64, String>;
    /// Returns when so many calls of a round are here at once.
    async fn meet(&self, round: u64, count: u64) -> bool;
}

/// What a call has come to, for its caller.
#[derive(Debug)]
enum Outcome {
    Answered(Result<u64, String>),
    Sent,
    Failed(CallError),
}

/// The run of a handler.
struct Run {
    server: &'static str,
    begun: Duration,
    /// What was left of the caller's time, for the server.
    left: Option<Duration>,
    ended: Option<Duration>,
    /// Returned, or panicked as its script says.
    is_whole: bool,
    is_cleaning: bool,
}

struct Call {
    method: &'static str,
    host: &'static str,
    begun: Duration,
    limit: Option<Duration>,
    runs: Vec<Run>,
    outcome: Option<Outcome>,
    /// When the caller had its outcome, or was dropped.
    ended: Option<Duration>,
}

#[derive(Default)]
struct Flow {
    sent: u64,
    /// The sender has finished after so many items.
    ended_after: Option<u64>,
    received: u64,
}

/// What happens in a world.
#[derive(Default)]
struct Record {
    calls: RefCell<BTreeMap<u64, Call>>,
    flows: RefCell<BTreeMap<(u64, bool), Flow>>,
    wrong: RefCell<Vec<String>>,
    next: Cell<u64>,
    /// The time, for what is dropped outside a kernel.
    time: Cell<Duration>,
    /// The clients that have ended.
    finished: RefCell<BTreeSet<&'static str>>,
    gone: Cell<usize>,
    /// The calls of each round that are in `meet`.
    met: RefCell<BTreeMap<(&'static str, u64), u64>>,
}

impl Record {
    fn wrong(&self, what: impl Into<String>) {
        self.wrong.borrow_mut().push(what.into());
    }

    /// Now, also outside a kernel.
    fn now(&self) -> Duration {
        if pikake::traps::try_current().is_some() {
            self.time.set(Duration::from_nanos(now().get()));
        }
        self.time.get()
    }

    /// Understands the errors of a caller.
    fn ended(&self, key: u64, outcome: Outcome) {
        if let Outcome::Failed(error) = &outcome {
            let is_broken = matches!(
                &error.failure,
                CallFailure::Connection(PacketError::Malformed(_) | PacketError::Foreign)
                    | CallFailure::Arguments(_)
                    | CallFailure::Answer(_)
                    | CallFailure::UnknownMethod
            );
            if is_broken {
                self.wrong(format!("call {key}: {error}"));
            }
        }
        let now = self.now();
        let mut calls = self.calls.borrow_mut();
        let call = calls.get_mut(&key).expect("a call of this world");
        if call.outcome.replace(outcome).is_some() {
            self.wrong(format!("call {key} ended twice"));
        }
        call.ended = Some(now);
    }

    fn received(&self, key: u64, is_upload: bool, item: &Item) {
        let mut flows = self.flows.borrow_mut();
        let flow = flows.entry((key, is_upload)).or_default();
        if (item.0, item.1) != (key, flow.received) {
            self.wrong(format!("call {key}: item {} for {}", item.1, flow.received));
        }
        flow.received += 1;
    }

    fn receiver_ended(&self, key: u64, is_upload: bool) {
        let mut flows = self.flows.borrow_mut();
        let flow = flows.entry((key, is_upload)).or_default();
        if flow.ended_after != Some(flow.received) {
            self.wrong(format!("call {key}: ended, {} of {} items", flow.received, flow.sent));
        }
    }

    /// The rules that hold for each call of the world, once the world has come to rest.
    fn audit(&self, world: &World) -> Vec<String> {
        let mut wrong = self.wrong.take();
        for (key, call) in &*self.calls.borrow() {
            let Call { method, host, .. } = *call;
            let mut rule = |holds: bool, what: String| {
                if !holds {
                    wrong.push(format!("{method}, call {key} of {host}: {what}"));
                }
            };
            let runs = call.runs.len();
            let Some(ended) = call.ended else {
                rule(false, "lost without an error".to_owned());
                continue;
            };
            rule(method == "again" || runs <= 1, format!("{runs} handlers"));
            match &call.outcome {
                Some(Outcome::Answered(value)) => {
                    let is_whole = call.runs.iter().any(|run| run.is_whole);
                    rule(is_whole, format!("answered {value:?} without a handler that returned"));
                    let is_right = value.as_ref().is_ok_and(|value| *value == 3 * key);
                    rule(is_right || value.is_err(), format!("answered {value:?}"));
                }
                Some(Outcome::Failed(error)) => {
                    let is_right = match error.executed {
                        Executed::No => runs == 0,
                        Executed::Yes => runs > 0,
                        Executed::Maybe => true,
                    };
                    rule(is_right, format!("{runs} handlers, and {error}"));
                }
                Some(Outcome::Sent) | None => {}
            }
            let late = call.limit.map(|limit| ended.saturating_sub(call.begun + limit));
            let late = late.filter(|late| *late > SLACK + world.allowance(host));
            rule(late.is_none(), format!("the caller was {late:?} late"));
            for run in &call.runs {
                let Some(end) = run.ended else {
                    rule(false, format!("a handler of {} has not ended", run.server));
                    continue;
                };
                let allowance = world.allowance(run.server) + SLACK;
                let took = end - run.begun;
                let bound = run.left.map(|left| left + GRACE + allowance);
                rule(
                    bound.is_none_or(|bound| took <= bound),
                    format!("the handler took {took:?} of {bound:?}"),
                );
                let is_within = call.limit.is_none_or(|limit| run.left <= Some(limit));
                rule(is_within, format!("{:?} left of {:?}", run.left, call.limit));
                let is_silent = matches!(call.outcome, Some(Outcome::Sent)) || method == "note";
                let learned = if world.is_calm { QUEUED } else { LEARNED + world.allowance(host) };
                let bound = ended.max(run.begun) + learned + GRACE + allowance;
                rule(
                    is_silent || end <= bound,
                    format!("the caller ended at {ended:?}, and the handler at {end:?}"),
                );
                let is_alone = matches!(method, "once" | "again" | "note");
                let is_cut = run.is_cleaning && is_alone && world.is_calm;
                rule(!is_cut, "the handler was dropped in its cleanup".to_owned());
            }
        }
        if ITEMS.get() != 0 {
            wrong.push(format!("{} items are left", ITEMS.get()));
        }
        wrong
    }
}

/// The caller of a call. Its drop notes that it is gone.
struct Caller(Rc<World>, u64);

impl Drop for Caller {
    fn drop(&mut self) {
        let now = self.0.record.now();
        let mut calls = self.0.record.calls.borrow_mut();
        calls.get_mut(&self.1).expect("a call of this world").ended.get_or_insert(now);
    }
}

/// A handler. Its drop notes its end.
struct Handling {
    world: Rc<World>,
    key: u64,
    index: usize,
}

impl Handling {
    fn change(&self, change: impl FnOnce(&mut Run)) {
        let mut calls = self.world.record.calls.borrow_mut();
        let call = calls.get_mut(&self.key).expect("a call of this world");
        change(&mut call.runs[self.index]);
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let now = self.world.record.now();
        self.change(|run| run.ended = Some(now));
    }
}

/// The end of a channel that sends, in the record.
struct Feed {
    world: Rc<World>,
    place: (u64, bool),
    items: Sender<Item>,
}

impl Feed {
    fn new(world: &Rc<World>, key: u64, is_upload: bool, items: Sender<Item>) -> Self {
        world.record.flows.borrow_mut().entry((key, is_upload)).or_default();
        Self { world: world.clone(), place: (key, is_upload), items }
    }

    fn flow<R>(&self, change: impl FnOnce(&mut Flow) -> R) -> R {
        change(self.world.record.flows.borrow_mut().entry(self.place).or_default())
    }

    /// Sends some items, until nobody takes them. Returns whether it has sent all.
    async fn send(&self, count: u64) -> bool {
        for _ in 0..count {
            let index = self.flow(|flow| flow.sent);
            if self.items.send(Item::new(self.place.0, index)).await.is_err() {
                return false;
            }
            self.flow(|flow| flow.sent += 1);
            if range(0..10) == 0 && sleep(Duration::from_millis(range(0..30))).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Sends some items, and finishes if it has sent all.
    async fn send_all(self, count: u64) {
        if self.send(count).await {
            self.finish();
        }
    }

    fn finish(self) {
        self.flow(|flow| flow.ended_after = Some(flow.sent));
        self.items.finish();
    }
}

/// Receives items, until the end or so many. Returns their number.
async fn drain(
    world: &World,
    key: u64,
    is_upload: bool,
    items: &Receiver<Item>,
    most: u64,
) -> Result<u64, String> {
    let mut count = 0;
    while count < most {
        match items.recv().await {
            Ok(Some(item)) => world.record.received(key, is_upload, &item),
            Ok(None) => {
                world.record.receiver_ended(key, is_upload);
                break;
            }
            Err(error) => return Err(error.to_string()),
        }
        count += 1;
        if range(0..20) == 0 {
            let slept = sleep(Duration::from_millis(range(0..50))).await;
            slept.map_err(|interrupted| interrupted.to_string())?;
        }
    }
    Ok(count)
}

/// The service, on one host.
struct Worker {
    world: Rc<World>,
    server: &'static str,
}

impl Worker {
    fn begin(&self, key: u64, method: &'static str) -> Handling {
        let info = current_call().expect("a handler has a call");
        if !info.method.ends_with(method) {
            self.world.record.wrong(format!("{method}, call {key}: as {}", info.method));
        }
        let begun = self.world.record.now();
        let left = (!info.deadline.is_never())
            .then(|| Duration::from_nanos(info.deadline.ticks().get()).saturating_sub(begun));
        let (ended, is_whole, is_cleaning) = (None, false, false);
        let run = Run { server: self.server, begun, left, ended, is_whole, is_cleaning };
        let mut calls = self.world.record.calls.borrow_mut();
        let call = calls.get_mut(&key).expect("a call of this world");
        call.runs.push(run);
        Handling { world: self.world.clone(), key, index: call.runs.len() - 1 }
    }

    async fn act(&self, handling: &Handling, script: Script) -> Result<u64, String> {
        for wait in script.waits {
            let wait = sleep(Duration::from_millis(wait.into()));
            let waited = match script.manner {
                Manner::Shields => shield(wait).await,
                _ => wait.await,
            };
            if waited.is_err() && script.manner == Manner::Cleans {
                handling.change(|run| run.is_cleaning = true);
                if let Err(again) = sleep(CLEANUP).await {
                    self.world.record.wrong(format!("a cleanup was interrupted: {again}"));
                }
                handling.change(|run| (run.is_cleaning, run.is_whole) = (false, true));
                return Err("interrupted".to_owned());
            }
        }
        handling.change(|run| run.is_whole = true);
        match script.end {
            End::Value => Ok(3 * handling.key),
            End::Error => Err("an error of the service".to_owned()),
            // Without the message of a panic.
            End::Panic => resume_unwind(Box::new("by its script")),
        }
    }
}

impl Works for Worker {
    async fn once(&self, key: u64, script: Script) -> Result<u64, String> {
        let handling = self.begin(key, "once");
        self.act(&handling, script).await
    }

    async fn again(&self, key: u64, script: Script) -> Result<u64, String> {
        let handling = self.begin(key, "again");
        self.act(&handling, script).await
    }

    async fn note(&self, key: u64, script: Script) {
        let handling = self.begin(key, "note");
        let _ = self.act(&handling, script).await;
    }

    async fn upload(&self, key: u64, items: Receiver<Item>, script: Script) -> Result<u64, String> {
        let handling = self.begin(key, "upload");
        let most = if range(0..4) == 0 { range(0..20) } else { u64::MAX };
        let drained = drain(&self.world, key, true, &items, most).await;
        let ended = self.act(&handling, script).await;
        drained.and(ended)
    }

    async fn download(&self, key: u64, items: Sender<Item>, script: Script) -> Result<u64, String> {
        let handling = self.begin(key, "download");
        let feed = Feed::new(&self.world, key, false, items);
        feed.send_all(range(0..60)).await;
        self.act(&handling, script).await
    }

    async fn both(&self, key: u64, from: Receiver<Item>, to: Sender<Item>) -> Result<u64, String> {
        let handling = self.begin(key, "both");
        let feed = Feed::new(&self.world, key, false, to);
        let drained = loop {
            match drain(&self.world, key, true, &from, 1).await {
                Ok(1) => drop(feed.send(1).await),
                ended => break ended,
            }
        };
        if drained.is_ok() {
            feed.finish();
        }
        handling.change(|run| run.is_whole = true);
        drained.map(|_| 3 * key)
    }

    async fn meet(&self, round: u64, count: u64) -> bool {
        let place = (self.server, round);
        *self.world.record.met.borrow_mut().entry(place).or_default() += 1;
        while self.world.record.met.borrow()[&place] < count {
            if sleep(Duration::from_millis(5)).await.is_err() {
                return false;
            }
        }
        true
    }
}

struct World {
    record: Record,
    /// Nothing fails but callers and handlers, and servers do not end.
    is_calm: bool,
    calls: u64,
    all_calls: u64,
    /// Servers end and begin again.
    servers_end: bool,
    /// Servers serve each connection by itself, so that its error is seen.
    serves_singly: bool,
    is_text: bool,
    /// The time that pauses and long steps may take of each host.
    allowances: BTreeMap<String, Duration>,
}

impl World {
    fn allowance(&self, host: &str) -> Duration {
        self.allowances.get(host).copied().unwrap_or_default()
    }

    fn packets(&self) -> PacketOptions {
        PacketOptions::new().silence(SILENCE).stall(SILENCE)
    }

    fn server(self: &Rc<Self>, server: &'static str) -> Server {
        Server::new()
            .add(WorksServer::new(Worker { world: self.clone(), server }))
            .packets(self.packets())
            .calls(self.calls as usize)
            .all_calls(self.all_calls as usize)
            .grace(GRACE)
            .items(range(1..9) as usize)
            .patience(Patience { soft: Duration::from_millis(800), hard: GRACE * 2 })
    }

    fn client(&self, servers: &[&str]) -> Client {
        let mut builder = Client::builder().packets(self.packets());
        if self.is_text {
            builder = builder.codec(Codec::Json);
        }
        if range(0..2) == 0 {
            builder = builder.balance(Balance::LeastOutstanding);
        }
        if range(0..3) == 0 {
            builder = builder.hedge_after(Duration::from_millis(range(0..300)));
        }
        if range(0..3) == 0 {
            builder = builder.break_after(3, Duration::from_millis(range(1..500)));
        }
        builder = builder.connect_timeout(SILENCE * 2);
        for server in servers {
            builder = builder.tcp(&format!("{server}:7000"));
        }
        builder.build()
    }

    /// Makes a call, in the record.
    fn caller(
        self: &Rc<Self>,
        method: &'static str,
        host: &'static str,
        limit: Option<Duration>,
    ) -> Caller {
        let key = self.record.next.get() + 1;
        self.record.next.set(key);
        let (begun, runs) = (self.record.now(), Vec::new());
        let call = Call { method, host, begun, limit, runs, outcome: None, ended: None };
        self.record.calls.borrow_mut().insert(key, call);
        Caller(self.clone(), key)
    }
}

fn outcome(result: Result<u64, Error<String>>) -> Outcome {
    match result {
        Ok(value) => Outcome::Answered(Ok(value)),
        Err(Error::Service(text)) => Outcome::Answered(Err(text)),
        Err(Error::Call(error)) => Outcome::Failed(error),
    }
}

/// Makes a call of a random method, with a random limit.
async fn call(world: Rc<World>, host: &'static str, works: WorksClient) {
    let limit = (range(0..3) > 0).then(|| Duration::from_millis(range(0..800)));
    let method = ["once", "again", "note", "upload", "download", "both"][range(0..6) as usize];
    let caller = world.caller(method, host, limit);
    let key = caller.1;
    let body = async {
        let script = Script::random();
        let result = match method {
            "once" => works.once(key, script).await,
            "again" => works.again(key, script).await,
            "note" => {
                return match works.note(key, script).await {
                    Ok(()) => Outcome::Sent,
                    Err(error) => Outcome::Failed(error),
                };
            }
            "upload" => {
                let (sender, receiver) = channel(range(1..5) as usize);
                let feed = Feed::new(&world, key, true, sender);
                spawn(async move { feed.send_all(range(0..60)).await }).detach();
                works.upload(key, receiver, script).await
            }
            "download" => {
                let (sender, receiver) = channel(range(1..5) as usize);
                let draining = drain_alone(&world, key, receiver);
                let result = works.download(key, sender, script).await;
                drop(draining);
                result
            }
            _ => {
                let (sender, from) = channel(range(1..5) as usize);
                let (to, receiver) = channel(range(1..5) as usize);
                let feed = Feed::new(&world, key, true, sender);
                spawn(async move { feed.send_all(range(0..30)).await }).detach();
                drop(drain_alone(&world, key, receiver));
                works.both(key, from, to).await
            }
        };
        outcome(result)
    };
    let outcome = match limit {
        Some(limit) => timed(limit, body).await.output,
        None => Some(body.await),
    };
    match outcome {
        Some(outcome) => world.record.ended(key, outcome),
        None => world.record.wrong(format!("call {key} was dropped at its deadline")),
    }
}

/// Receives items in a task, and sometimes wants only a few. The task ends by itself.
fn drain_alone(world: &Rc<World>, key: u64, items: Receiver<Item>) -> Task<()> {
    let world = world.clone();
    let most = if range(0..4) == 0 { range(0..20) } else { u64::MAX };
    spawn(async move {
        let _ = drain(&world, key, false, &items, most).await;
    })
}

/// Makes calls until the faults end, some of which are cancelled or dropped.
async fn work(world: Rc<World>, host: &'static str, clients: Rc<[WorksClient; 3]>) {
    while world.record.now() < FAULTS_END {
        let works = clients[range(0..3) as usize].clone();
        let task = spawn(call(world.clone(), host, works));
        match range(0..6) {
            0 => {
                sleep(Duration::from_millis(range(0..500))).await.expect("nobody interrupts");
                task.request_cancel("by chance");
                drop(task.await);
            }
            1 => {
                sleep(Duration::from_millis(range(0..500))).await.expect("nobody interrupts");
                task.abort();
                drop(task.await);
            }
            // Several at once.
            2 => task.detach(),
            _ => task.await.expect("a call returns"),
        }
        sleep(Duration::from_millis(range(0..100))).await.expect("nobody interrupts");
    }
}

/// The names of the tasks of this host, without the current one.
fn other_tasks() -> Vec<String> {
    let own = pikake::current().id();
    let tasks = tasks_from(0, usize::MAX).tasks;
    let others = tasks.iter().filter(|task| task.id() != own);
    others.map(|task| task.name().to_owned()).collect()
}

/// Waits until no task is left but the current one.
async fn expect_no_tasks(world: &World, host: &str) {
    for _ in 0..100 {
        if other_tasks().is_empty() {
            return;
        }
        sleep(Duration::from_millis(100)).await.expect("nobody interrupts");
    }
    world.record.wrong(format!("{host}: the tasks {:?} are left", other_tasks()));
}

async fn client_host(world: Rc<World>, host: &'static str) {
    let both = world.client(&SERVERS);
    let [one, other] = SERVERS.map(|server| world.client(&[server]));
    let all = [one, other, both];
    let clients = Rc::new(all.each_ref().map(|client| WorksClient::new(client.clone())));
    let workers: Vec<_> =
        (0..WORKERS).map(|_| spawn(work(world.clone(), host, clients.clone()))).collect();
    for worker in workers {
        worker.await.expect("a worker returns");
    }
    let rest = (FAULTS_END + RECOVERY).saturating_sub(world.record.now());
    sleep(rest).await.expect("nobody interrupts");
    // All places of both servers are free: so many calls run at once. One client after the other.
    while world.record.finished.borrow().len() < CLIENTS.iter().position(|at| *at == host).unwrap()
    {
        sleep(POLL).await.expect("nobody interrupts");
    }
    for works in &clients[..2] {
        let round = world.record.next.get() + 1;
        world.record.next.set(round);
        let count = world.calls.min(world.all_calls);
        // The connection may have been lost in silence.
        drop(timeout_after(RECOVERY, works.meet(0, 0)).await);
        let meetings: Vec<_> = (0..count)
            .map(|_| {
                let works = works.clone();
                spawn(async move { timeout_after(RECOVERY, works.meet(round, count)).await })
            })
            .collect();
        for meeting in meetings {
            let met = meeting.await.expect("a meeting returns");
            if !matches!(met, Ok(Ok(true))) {
                let met = met.map_err(|_| "timed out");
                world.record.wrong(format!("{host}: not all places are free: {met:?}"));
            }
        }
    }
    drop(clients);
    for client in all {
        // Half of the connections end by a drop.
        if range(0..2) == 0 && timeout_after(RECOVERY, client.close()).await.is_err() {
            world.record.wrong(format!("{host}: a call is left"));
        }
    }
    expect_no_tasks(&world, host).await;
    world.record.finished.borrow_mut().insert(host);
    finish(&world);
}

/// The last host that ends looks at the record.
fn finish(world: &World) {
    world.record.gone.set(world.record.gone.get() + 1);
    if world.record.gone.get() == SERVERS.len() + CLIENTS.len() {
        let wrong = world.record.audit(world);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

async fn server_host(world: Rc<World>, host: &'static str) {
    let mut is_last = false;
    while !is_last {
        let listener = TcpListener::bind("0.0.0.0:7000").await.expect("a free port");
        let until = match world.servers_end {
            true => world.record.now() + Duration::from_millis(range(500..3000)),
            false => FAULTS_END,
        };
        is_last = until >= FAULTS_END;
        let closing = Closing::new();
        let (begins, asked) = (closing.clone(), world.clone());
        spawn(async move {
            let is_over = || match is_last {
                true => asked.record.finished.borrow().len() == CLIENTS.len(),
                false => asked.record.now() >= until,
            };
            while !is_over() {
                sleep(POLL).await.expect("nobody interrupts");
            }
            begins.begin();
        })
        .detach();
        match world.serves_singly {
            true => serve_singly(&world, host, listener, closing).await,
            false => {
                let served = world.server(host).closing(&closing).serve(listener).await;
                let report = served.expect("a listener does not fail");
                if is_last && world.is_calm && !report.farewell.is_clean() {
                    world.record.wrong(format!("{host}: {report}"));
                }
            }
        }
        // Dropped handlers have ended when their tasks are gone.
        expect_no_tasks(&world, host).await;
        for (key, call) in &*world.record.calls.borrow() {
            if call.runs.iter().any(|run| run.server == host && run.ended.is_none()) {
                world.record.wrong(format!("{host}: the handler of {key} outlived the server"));
            }
        }
    }
    finish(&world);
}

/// Serves, and sees the error of each connection.
async fn serve_singly(
    world: &Rc<World>,
    host: &'static str,
    listener: TcpListener,
    closing: Closing,
) {
    let patience = Patience { soft: Duration::from_millis(800), hard: GRACE * 2 };
    let (seen, begun) = (world.clone(), closing.clone());
    let serve = move |stream, _| {
        let (world, server) = (seen.clone(), seen.server(host).closing(&begun));
        async move {
            let served = server.serve_connection(stream).await;
            if let Err(error @ (PacketError::Malformed(_) | PacketError::Foreign)) = served {
                world.record.wrong(format!("{host}: {error}"));
            }
        }
    };
    serve_until(listener, 1_000, closing, patience, serve).await.expect("a listener does not fail");
}

#[derive(Clone, Copy, PartialEq)]
enum Weather {
    Calm,
    Network,
    Hosts,
}

fn world(sim: &mut Sim, weather: Weather) {
    ITEMS.set(0);
    let mut rng = sim.rng("world");
    let within = FAULTS_END - Duration::from_millis(1);
    let mix = match weather {
        Weather::Calm => None,
        Weather::Network => Some(FaultMix::network(within)),
        Weather::Hosts => Some(FaultMix::new(within)),
    };
    let hosts: Vec<String> = SERVERS.iter().chain(&CLIENTS).map(|name| (*name).into()).collect();
    let plan = mix.map_or_else(FaultPlan::new, |mix| mix.draw(sim.seed(), &hosts));
    let plan = plan.at(FAULTS_END, Fault::HealAll);
    let mut network = Network::default();
    let longest = rng.range(1..60);
    network.link.latency =
        Latency::Uniform(Duration::from_micros(500), Duration::from_millis(longest));
    if weather == Weather::Calm {
        network.link.latency =
            Latency::Uniform(Duration::from_micros(500), Duration::from_millis(5));
    } else if rng.chance(0.3) {
        network.link.loss = 0.05;
        network.link.reset = 0.002;
        network.link.refuse = 0.1;
    }
    network.short = if rng.chance(0.3) { 0.3 } else { 0.0 };
    if weather != Weather::Calm && rng.chance(0.3) {
        // Sockets take a part of what is written.
        network.stream_buffer = rng.range(4_000..16_000) as usize;
    }
    let mut allowances = BTreeMap::<String, Duration>::new();
    let mut paused = BTreeMap::new();
    for entry in plan.entries() {
        match &entry.fault {
            Fault::Pause(host) => drop(paused.insert(host.clone(), entry.at)),
            Fault::Resume(host) => {
                let length = entry.at - paused.remove(host).unwrap_or(entry.at);
                *allowances.entry(host.clone()).or_default() += length;
            }
            Fault::LongStep(host, length) => {
                *allowances.entry(host.clone()).or_default() += *length;
            }
            _ => {}
        }
    }
    let world = Rc::new(World {
        record: Record::default(),
        is_calm: weather == Weather::Calm,
        calls: rng.range(1..12),
        all_calls: if rng.chance(0.7) { 10_000 } else { rng.range(1..6) },
        servers_end: weather != Weather::Calm && rng.chance(0.5),
        serves_singly: rng.chance(0.5),
        is_text: rng.chance(0.3),
        allowances,
    });
    for host in SERVERS {
        let world = world.clone();
        sim.client(host, move || server_host(world.clone(), host));
    }
    for host in CLIENTS {
        let world = world.clone();
        sim.client(host, move || client_host(world.clone(), host));
    }
    // Handlers that go on after an interruption are among the scripts.
    sim.cleanup_limit(None);
    sim.network(network).faults(plan).time_limit(Duration::from_secs(600));
    sim.invariant("no rule is broken", move || {
        let wrong = world.record.wrong.borrow();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    });
}

const SEEDS: u64 = 8;

#[test]
fn calm_worlds_keep_the_rules() {
    let runs = Runs::new("worlds::calm_worlds_keep_the_rules").seeds(SEEDS).keep_all_faults();
    runs.run(|sim| world(sim, Weather::Calm));
}

#[test]
fn worlds_of_network_faults_keep_the_rules() {
    let runs =
        Runs::new("worlds::worlds_of_network_faults_keep_the_rules").seeds(SEEDS).keep_all_faults();
    runs.run(|sim| world(sim, Weather::Network));
}

#[test]
fn worlds_of_host_faults_keep_the_rules() {
    let runs =
        Runs::new("worlds::worlds_of_host_faults_keep_the_rules").seeds(SEEDS).keep_all_faults();
    runs.run(|sim| world(sim, Weather::Hosts));
}
