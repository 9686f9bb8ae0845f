//! A client of tokio-console's protocol sees the tasks of this process.
//!
//! All tests share one server, and tell their tasks by the names.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{env, fs, io, thread};

use console_api::async_ops::{AsyncOp, AsyncOpUpdate};
use console_api::instrument::instrument_client::InstrumentClient;
use console_api::instrument::{
    InstrumentRequest, PauseRequest, ResumeRequest, StateRequest, TaskDetailsRequest, Temporality,
    Update,
};
use console_api::resources::resource::kind;
use console_api::resources::{Resource, ResourceUpdate};
use console_api::tasks::task_details::PollTimesHistogram;
use console_api::tasks::{DurationHistogram, Stats, Task};
use console_api::{Field, async_ops, field, resources};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use pikake::console::tokio_console;
use pikake::http::{Executor, Io, Timer};
use pikake::net::TcpStream;
use pikake::sync::Mutex;
use pikake::{Kernel, future_wait, sleep, spawn, task, timeout_after, yield_now};
use tonic::body::Body;
use tonic::{Code, Streaming};
use tower_service::Service;

/// The limit of each test: far more than the few seconds that it takes.
const LIMIT: Duration = Duration::from_secs(60);

/// More tasks than ended ones are kept, and than one message has.
const MANY: usize = 6_000;

/// The greatest number of resources that are known at a time.
const RESOURCES: usize = 1_000;

/// The greatest number of tasks in a message.
const TASKS_OF_MESSAGE: usize = 1_024;

fn server() -> SocketAddr {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| tokio_console::start_at(([127, 0, 0, 1], 0).into()).expect("a server"))
}

/// Runs a test in a kernel that the server shows.
fn run<F: Future<Output = ()>>(test: impl FnOnce(SocketAddr) -> F) {
    let server = server();
    Kernel::builder().name("test").build().unwrap().run(async {
        timeout_after(LIMIT, test(server)).await.expect("the test takes too long");
    });
}

/// A hyper connection as tonic wants it.
struct Channel(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<http::Response<Incoming>>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

async fn connect(server: SocketAddr) -> InstrumentClient<Channel> {
    let stream = Io::new(TcpStream::connect(server).await.unwrap());
    let mut builder = http2::Builder::new(Executor);
    let handshake = builder.timer(Timer::new()).handshake(stream);
    let (sender, connection) = future_wait(handshake).await.unwrap().unwrap();
    spawn(connection).detach();
    InstrumentClient::with_origin(Channel(sender), format!("http://{server}").parse().unwrap())
}

/// What a client has learned.
struct Watch {
    updates: Streaming<Update>,
    tasks: BTreeMap<u64, Task>,
    stats: BTreeMap<u64, Stats>,
    resources: BTreeMap<u64, (Resource, resources::Stats)>,
    ops: BTreeMap<u64, (AsyncOp, async_ops::Stats)>,
}

impl Watch {
    async fn begin(client: &mut InstrumentClient<Channel>) -> Self {
        let updates = future_wait(client.watch_updates(InstrumentRequest {})).await.unwrap();
        let updates = updates.unwrap().into_inner();
        let mut watch = Self {
            updates,
            tasks: BTreeMap::new(),
            stats: BTreeMap::new(),
            resources: BTreeMap::new(),
            ops: BTreeMap::new(),
        };
        let first = watch.next().await;
        let described = first.new_metadata.expect("what tasks, resources and async ops are");
        assert_eq!(described.metadata.len(), 3);

        watch
    }

    async fn next(&mut self) -> Update {
        let update = future_wait(self.updates.message()).await.unwrap().unwrap().unwrap();
        let tasks = update.task_update.clone().unwrap();
        assert!(tasks.stats_update.len() <= TASKS_OF_MESSAGE);
        for task in tasks.new_tasks {
            self.tasks.insert(task.id.unwrap().id, task);
        }
        self.stats.extend(tasks.stats_update);
        // tokio-console leaves out a task without figures, and figures without a task.
        assert!(self.tasks.keys().eq(self.stats.keys()));
        self.note_resources(update.resource_update.clone().unwrap());
        self.note_ops(update.async_op_update.clone().unwrap());
        update
    }

    fn note_resources(&mut self, mut update: ResourceUpdate) {
        for new in update.new_resources {
            let id = new.id.unwrap().id;
            let stats = update.stats_update.remove(&id).expect("a new resource has figures");
            assert!(self.resources.insert(id, (new, stats)).is_none(), "it is new");
        }
        for (id, stats) in update.stats_update {
            self.resources.get_mut(&id).expect("the resource is known").1 = stats;
        }
        let known = self.resources.values();
        assert!(known.filter(|(_, stats)| stats.dropped_at.is_none()).count() <= RESOURCES);
    }

    fn note_ops(&mut self, mut update: AsyncOpUpdate) {
        for new in update.new_async_ops {
            let id = new.id.unwrap().id;
            let stats = update.stats_update.remove(&id).expect("a new async op has figures");
            assert!(self.resources.contains_key(&new.resource_id.unwrap().id));
            // tokio-console insists on them.
            assert!(stats.created_at.is_some() && stats.poll_stats.is_some());
            assert!(self.ops.insert(id, (new, stats)).is_none(), "it is new");
        }
        for (id, stats) in update.stats_update {
            self.ops.get_mut(&id).expect("the async op is known").1 = stats;
        }
    }

    /// The resources with this name and their figures, with those that have ended.
    fn resources(&self, name: &str) -> Vec<&(Resource, resources::Stats)> {
        self.resources.values().filter(|(resource, _)| resource.concrete_type == name).collect()
    }

    /// The waits of a task that have not ended.
    fn ops_of(&self, task: &Task) -> Vec<&AsyncOp> {
        let is_its =
            |stats: &async_ops::Stats| stats.task_id == task.id && stats.dropped_at.is_none();
        self.ops.values().filter(|(_, stats)| is_its(stats)).map(|(op, _)| op).collect()
    }

    /// The tasks with this name, with their figures.
    fn named(&self, name: &str) -> Vec<(&Task, &Stats)> {
        let tasks = self.tasks.iter().filter(|(_, task)| text(task, "task.name") == Some(name));
        tasks.map(|(id, task)| (task, &self.stats[id])).collect()
    }

    /// The first task with this name, once its figures are so.
    async fn until(&mut self, name: &str, is_so: impl Fn(&Stats) -> bool) -> (Task, Stats) {
        loop {
            match self.named(name).first() {
                Some((task, stats)) if is_so(stats) => return ((*task).clone(), **stats),
                _ => drop(self.next().await),
            }
        }
    }
}

fn value<'a>(task: &'a Task, name: &str) -> Option<&'a field::Value> {
    let is_it = |field: &&Field| field.name == Some(field::Name::StrName(name.into()));
    task.fields.iter().find(is_it).and_then(|field| field.value.as_ref())
}

fn text<'a>(task: &'a Task, name: &str) -> Option<&'a str> {
    match value(task, name) {
        Some(field::Value::StrVal(text)) => Some(text),
        _ => None,
    }
}

fn number(task: &Task, name: &str) -> Option<u64> {
    match value(task, name) {
        Some(field::Value::U64Val(number)) => Some(*number),
        _ => None,
    }
}

fn attribute(stats: &resources::Stats, name: &str) -> String {
    let fields = stats.attributes.iter().filter_map(|attribute| attribute.field.as_ref());
    let mut its = fields.filter(|field| field.name == Some(field::Name::StrName(name.into())));
    match its.next().and_then(|field| field.value.as_ref()) {
        Some(field::Value::StrVal(text)) => text.clone(),
        Some(field::Value::U64Val(number)) => number.to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

/// The counts of a histogram by the least length in nanoseconds, read by the description of the
/// format: after a header of 40 bytes, numbers of variable length, of which a negative or zero one
/// skips classes.
fn counts(histogram: &DurationHistogram) -> BTreeMap<u64, i64> {
    let (header, mut rest) = histogram.raw_histogram.split_at(40);
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    assert_eq!(
        [word(0), word(8), word(12)],
        [0x1c84_9313, 0, 1],
        "the cookie, the offset, the digits"
    );
    assert_eq!(word(4) as usize, rest.len());
    let (mut counts, mut class) = (BTreeMap::new(), 0_u64);
    while !rest.is_empty() {
        let last = rest.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let coded =
            rest[..=last].iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
        rest = &rest[last + 1..];
        let number = (coded >> 1) as i64 ^ -((coded & 1) as i64);
        let is_count = number > 0;
        if is_count {
            let shift = (class / 16).saturating_sub(1);
            counts.insert((class - 16 * shift) << shift, number);
        }
        class += if is_count { 1 } else { number.unsigned_abs().max(1) };
    }
    counts
}

fn moment(moment: &Option<prost_types::Timestamp>) -> Option<(i64, i32)> {
    moment.map(|moment| (moment.seconds, moment.nanos))
}

/// A length of time on the wire.
fn length(length: Option<&prost_types::Duration>) -> Duration {
    Duration::try_from(*length.unwrap()).unwrap()
}

fn polls(stats: &Stats) -> u64 {
    stats.poll_stats.as_ref().unwrap().polls
}

fn is_running(stats: &Stats) -> bool {
    let times = stats.poll_stats.as_ref().unwrap();
    let began = times.last_poll_started.map(|at| (at.seconds, at.nanos));
    began > times.last_poll_ended.map(|at| (at.seconds, at.nanos))
}

#[test]
fn client_sees_task_its_polls_and_its_end() {
    run(|server| async move {
        let mut client = connect(server).await;
        let mut watch = Watch::begin(&mut client).await;
        let line = line!() + 1;
        let task = task::Builder::new().name("seen").spawn(async {
            for _ in 0..3 {
                yield_now().await.unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
            future_wait(pending::<()>()).await.unwrap();
        });
        // A look in the midst of the fourth step has its beginning, and not its time.
        let is_past = |stats: &Stats| polls(stats) >= 4 && !is_running(stats);
        let (seen, stats) = watch.until("seen", is_past).await;
        assert_eq!(text(&seen, "kind"), Some("task"));
        assert_eq!(number(&seen, "task.id"), Some(task.id().0));
        assert_eq!(number(&seen, "parent"), Some(pikake::current().id().0));
        assert_eq!(number(&seen, "kernel"), Some(pikake::current().kernel().number().into()));
        let place = seen.location.unwrap();
        assert_eq!((place.file.as_deref(), place.line), (Some(file!()), Some(line)));

        assert_eq!((polls(&stats), stats.wakes, stats.self_wakes), (4, 3, 3));
        assert_eq!((stats.waker_clones, stats.waker_drops), (1, 0), "its waker is not lost");
        assert_eq!(stats.dropped_at, None);
        let times = stats.poll_stats.unwrap();
        let busy = times.busy_time.unwrap();
        assert!(busy.seconds > 0 || busy.nanos >= 20_000_000, "{busy:?}");

        task.abort();
        let (_, stats) = watch.until("seen", |stats| stats.dropped_at.is_some()).await;
        assert_eq!(polls(&stats), 4);
        // A client that comes later sees the ended task as well.
        let mut later = Watch::begin(&mut connect(server).await).await;
        later.until("seen", |stats| stats.dropped_at.is_some()).await;
    });
}

#[test]
fn client_sees_running_task_on_another_thread() {
    run(|server| async move {
        let kernels = pikake::Kernels::start(1).unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let stuck = move || async move {
            let blocks = async move { released.recv().unwrap_err() };
            drop(task::Builder::new().name("stuck").spawn(blocks).await);
        };
        kernels.handles()[0].spawn(stuck).unwrap();
        let mut watch = Watch::begin(&mut connect(server).await).await;
        let (stuck, _) = watch.until("stuck", is_running).await;
        assert_ne!(number(&stuck, "kernel"), Some(pikake::current().kernel().number().into()));
        drop(release);
        drop(kernels);
        // The kernel has ended, and so have its tasks.
        watch.until("stuck", |stats| stats.dropped_at.is_some()).await;
    });
}

/// The records of some of the tasks are removed before the client looks again.
#[test]
fn client_learns_end_of_each_task() {
    run(|server| async move {
        let mut watch = Watch::begin(&mut connect(server).await).await;
        let group: Vec<_> = (0..MANY)
            .map(|_| task::Builder::new().name("one of many").spawn(pending::<()>()))
            .collect();
        while watch.named("one of many").len() < MANY {
            watch.next().await;
        }
        for task in group {
            task.abort();
        }
        let ended = |watch: &Watch| {
            let tasks = watch.named("one of many");
            tasks.iter().filter(|(_, stats)| stats.dropped_at.is_some()).count()
        };
        while ended(&watch) < MANY {
            watch.next().await;
        }
        // Ended tasks are kept up to a limit, so a later client sees fewer of them.
        let mut later = Watch::begin(&mut connect(server).await).await;
        task::Builder::new().name("the last one").spawn(async {}).await.unwrap();
        later.until("the last one", |_| true).await;
        let kept = later.named("one of many").len();
        assert!((1..MANY).contains(&kept), "{kept}");
    });
}

#[test]
fn slow_client_delays_no_other() {
    run(|server| async move {
        let mut slow = connect(server).await;
        // More than the windows of a connection hold, and nobody reads it.
        let unread = future_wait(slow.watch_updates(InstrumentRequest {})).await.unwrap().unwrap();
        let spawned: Vec<_> = (0..MANY)
            .map(|number| {
                let name = format!("{number} {}", "a long name ".repeat(15));
                task::Builder::new().name(name).spawn(pending::<()>()).cancel_on_drop()
            })
            .collect();
        let mut watch = Watch::begin(&mut connect(server).await).await;
        task::Builder::new().name("beside").spawn(async {}).await.unwrap();
        watch.until("beside", |stats| stats.dropped_at.is_some()).await;

        // The slow client gets what it has missed.
        let mut names = BTreeSet::new();
        let mut updates = unread.into_inner();
        while !names.contains("beside") {
            let update = future_wait(updates.message()).await.unwrap().unwrap().unwrap();
            let tasks = update.task_update.unwrap().new_tasks;
            names.extend(tasks.iter().filter_map(|task| text(task, "task.name")).map(String::from));
        }
        drop(spawned);
    });
}

#[test]
fn pause_holds_updates_back_and_state_tells() {
    // The pause holds for all clients, so the test has a server of its own.
    run(|_| async move {
        let server = tokio_console::start_at(([127, 0, 0, 1], 0).into()).unwrap();
        let mut client = connect(server).await;
        let states = future_wait(client.watch_state(StateRequest {})).await.unwrap();
        let mut states = states.unwrap().into_inner();
        let mut state = async || {
            let state = future_wait(states.message()).await.unwrap().unwrap().unwrap();
            state.temporality()
        };
        assert_eq!(state().await, Temporality::Live);
        future_wait(client.pause(PauseRequest {})).await.unwrap().unwrap();
        assert_eq!(state().await, Temporality::Paused);
        let mut watch = Watch::begin(&mut client).await;
        let next = future_wait(watch.updates.message());
        let held = timeout_after(Duration::from_millis(1_500), next).await;
        assert!(held.is_err());
        future_wait(client.resume(ResumeRequest {})).await.unwrap().unwrap();
        assert_eq!(state().await, Temporality::Live);
    });
}

#[test]
fn details_are_of_known_tasks() {
    run(|server| async move {
        let mut client = connect(server).await;
        let mut watch = Watch::begin(&mut client).await;
        let running = task::Builder::new().name("detailed").spawn(pending::<()>()).cancel_on_drop();
        let (task, _) = watch.until("detailed", |_| true).await;
        // What nobody reads of a stream takes room from the connection's other streams.
        drop(watch);
        let request = TaskDetailsRequest { id: task.id };
        let details = future_wait(client.watch_task_details(request)).await.unwrap().unwrap();
        let mut details = details.into_inner();
        for _ in 0..2 {
            let details = future_wait(details.message()).await.unwrap().unwrap().unwrap();
            assert_eq!(details.task_id, task.id);
        }
        drop(running);
        for id in [None, Some(u64::MAX.into())] {
            let request = TaskDetailsRequest { id };
            let answer = future_wait(client.watch_task_details(request)).await.unwrap();
            assert_eq!(answer.unwrap_err().code(), Code::NotFound);
        }
    });
}

/// The kernel is in a step when another thread wakes the task, and stays there for a while.
#[test]
fn wake_of_another_thread_counts_from_its_call() {
    const STUCK: Duration = Duration::from_millis(50);
    run(|server| async move {
        let mut watch = Watch::begin(&mut connect(server).await).await;
        let (sender, wakers) = mpsc::channel::<Waker>();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let foreign = poll_fn(move |cx| {
            let _ = sender.send(cx.waker().clone());
            if is_over.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        });
        let woken = task::Builder::new().name("woken").spawn(async move {
            foreign.await;
            yield_now().await.unwrap();
            pending::<()>().await;
        });
        let (_, stats) = watch.until("woken", |stats| polls(stats) == 1).await;
        assert_eq!((stats.wakes, stats.self_wakes, stats.last_wake), (0, 0, None));
        let before = length(stats.scheduled_time.as_ref());

        let wake = move || {
            ends.store(true, Ordering::SeqCst);
            wakers.recv().unwrap().wake();
        };
        thread::spawn(wake).join().unwrap();
        thread::sleep(STUCK);
        let (_, stats) = watch.until("woken", |stats| polls(stats) == 3).await;
        assert_eq!((stats.wakes, stats.self_wakes), (2, 1), "another thread, and the yield");
        let scheduled = length(stats.scheduled_time.as_ref()) - before;
        assert!(scheduled >= STUCK, "{scheduled:?}");
        let began = stats.poll_stats.unwrap().last_poll_started;
        assert!(stats.last_wake.is_some() && moment(&stats.last_wake) <= moment(&began));
        woken.abort();
    });
}

#[test]
fn details_have_histograms_of_steps_and_waits_for_steps() {
    const BUSY: Duration = Duration::from_millis(20);
    run(|server| async move {
        let mut client = connect(server).await;
        let mut watch = Watch::begin(&mut client).await;
        let task = task::Builder::new().name("measured").spawn(async {
            for _ in 0..9 {
                yield_now().await.unwrap();
            }
            thread::sleep(BUSY);
            pending::<()>().await;
        });
        let (measured, _) = watch.until("measured", |stats| polls(stats) == 10).await;
        drop(watch);
        let request = TaskDetailsRequest { id: measured.id };
        let details = future_wait(client.watch_task_details(request)).await.unwrap().unwrap();
        let details = future_wait(details.into_inner().message()).await.unwrap().unwrap().unwrap();
        let Some(PollTimesHistogram::Histogram(polls)) = &details.poll_times_histogram else {
            panic!("{details:?}");
        };
        let polls = counts(polls);
        assert_eq!(polls.values().sum::<i64>(), 10);
        let (longest, count) = polls.last_key_value().unwrap();
        assert!(Duration::from_nanos(longest + longest / 16) >= BUSY, "{polls:?}");
        assert!(*count < 10, "the other steps are short");
        let scheduled = counts(&details.scheduled_times_histogram.unwrap());
        assert_eq!(scheduled.values().sum::<i64>(), 10, "from the spawn, and from each yield");
        task.abort();
    });
}

#[test]
fn waits_are_async_ops_of_resources() {
    run(|server| async move {
        let mut watch = Watch::begin(&mut connect(server).await).await;
        let lock = Rc::new(Mutex::new(()).named("accounts"));
        let guard = lock.lock().await.unwrap();
        let line = line!() + 3;
        let waiter = |name| {
            let lock = lock.clone();
            task::Builder::new().name(name).spawn(async move { drop(lock.lock().await.unwrap()) })
        };
        let waiters = [waiter("first in line"), waiter("second in line")];
        let sleeper = task::Builder::new().name("sleeper").spawn(sleep(LIMIT)).cancel_on_drop();
        // An update may be made while the tasks begin.
        let waits = |watch: &Watch, name| {
            watch.named(name).first().is_some_and(|(task, _)| !watch.ops_of(task).is_empty())
        };
        while !["first in line", "second in line", "sleeper"].iter().all(|name| waits(&watch, name))
        {
            watch.next().await;
        }
        let [(mutex, stats)] = watch.resources("mutex `accounts`")[..] else {
            panic!("two waits are for one lock")
        };
        let kind = mutex.kind.as_ref().unwrap().kind.clone();
        assert_eq!(kind, Some(kind::Kind::Other("mutex".into())));
        let place = mutex.location.as_ref().unwrap();
        assert_eq!((place.file.as_deref(), place.line), (Some(file!()), Some(line)));
        assert_eq!(attribute(stats, "waits"), "2");
        let holder = format!("held by task {} `test`", pikake::current().id());
        assert!(attribute(stats, "state").starts_with(&holder), "{}", attribute(stats, "state"));
        for name in ["first in line", "second in line"] {
            let (task, _) = watch.named(name)[0];
            let [op] = watch.ops_of(task)[..] else { panic!("{name} has one wait") };
            assert_eq!(op.resource_id, mutex.id);
            assert!(op.source.starts_with("park at "), "{}", op.source);
        }
        let (task, _) = watch.named("sleeper")[0];
        let [op] = watch.ops_of(task)[..] else { panic!("the sleeper has one wait") };
        let timer = watch.resources[&op.resource_id.unwrap().id].0.kind.clone().unwrap();
        assert_eq!(timer.kind, Some(kind::Kind::Known(kind::Known::Timer.into())));
        // The sleeper is polled once more for each look, and those polls do not count.
        let (_, stats) = watch.named("sleeper")[0];
        assert_eq!((polls(stats), stats.wakes), (1, 0));

        drop(guard);
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let is_over = |watch: &Watch| watch.resources("mutex `accounts`")[0].1.dropped_at.is_some();
        while !is_over(&watch) {
            watch.next().await;
        }
        let (task, _) = watch.named("first in line")[0];
        assert!(watch.ops_of(task).is_empty());
        drop(sleeper);
    });
}

/// The watch checks the limit with each update.
#[test]
fn resources_are_limited() {
    run(|server| async move {
        let mut watch = Watch::begin(&mut connect(server).await).await;
        let sleepers: Vec<_> = (0..RESOURCES * 3 / 2)
            .map(|_| task::Builder::new().name("one of many").spawn(sleep(LIMIT)).cancel_on_drop())
            .collect();
        while watch.resources.len() < RESOURCES {
            watch.next().await;
        }
        for _ in 0..2 {
            watch.next().await;
        }
        // Those that were left out come when there is room.
        let known = watch.resources.len();
        drop(sleepers);
        let after = task::Builder::new().name("after").spawn(sleep(LIMIT)).cancel_on_drop();
        while watch.resources.len() == known {
            watch.next().await;
        }
        drop(after);
    });
}

#[test]
fn garbage_closes_one_connection() {
    run(|server| async move {
        let garbage = TcpStream::connect(server).await.unwrap();
        garbage.write_all(&[0xff; 1_000]).await.unwrap();
        let mut rest = [0; 1_000];
        while !matches!(garbage.read(&mut rest).await, Ok(0) | Err(_)) {}
        let mut watch = Watch::begin(&mut connect(server).await).await;
        watch.until("test", |_| true).await;
    });
}

#[test]
fn address_in_use_is_an_error() {
    let error = tokio_console::start_at(server()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    // The server itself is not one of the tasks.
    run(|server| async move {
        let mut watch = Watch::begin(&mut connect(server).await).await;
        watch.until("test", |_| true).await;
        sleep(Duration::from_millis(10)).await.unwrap();
        assert!(watch.named("tokio-console").is_empty());
    });
}

/// The program of [`main_serves_where_the_variable_says`], which runs it in a child.
#[test]
#[ignore = "runs in a child"]
fn program() {
    #[pikake::main]
    async fn main() {
        let threads = fs::read_dir("/proc/self/task").unwrap();
        let name = |thread: io::Result<fs::DirEntry>| {
            fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default()
        };
        let is_served = threads.map(name).any(|name| name.trim_end() == "tokio-console");
        println!("served: {is_served}");
    }
    main();
}

#[test]
fn main_serves_where_the_variable_says() {
    let run = |address: Option<&str>| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "tokio_console::program", "--ignored", "--nocapture"]);
        command.env_remove(tokio_console::ADDRESS_VARIABLE);
        command.envs(address.map(|address| (tokio_console::ADDRESS_VARIABLE, address)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let is_served = String::from_utf8(output.stdout).unwrap().contains("served: true");
        (is_served, String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(None), (false, String::new()));
    assert_eq!(run(Some("0")), (false, String::new()));
    assert_eq!(run(Some("127.0.0.1:0")), (true, String::new()));
    let (is_served, said) = run(Some("nowhere"));
    assert!(!is_served && said.contains("`nowhere` is not like `127.0.0.1:6669`"), "{said}");
}
