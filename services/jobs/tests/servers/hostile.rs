//! Messages of any form that a real RabbitMQ passes on: a worker runs or buries each, with a
//! reason, and goes on.

use std::collections::BTreeSet;
use std::env;
use std::time::{Duration, Instant};

use pikake_amqp::{Array, Channel, Properties, Table, Value, persistent, short};
use pikake_jobs::{App, Stats};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{sleep, spawn, timeout_after};

use crate::child;

const QUEUE: &str = "hostile";
/// What has not happened by then never will.
const HANG: Duration = Duration::from_secs(300);
/// Below what RabbitMQ takes.
const HUGE: usize = 100_000_000;
const DEEP: usize = 100_000;
/// Brackets that only open. A worker without optimizations reads seven million of them in a second.
const BRACKETS: usize = 10_000_000;
/// A message of [`HUGE`] takes five times its size while it is buried: as it came, for another try,
/// as it is sent, and in buffers that have grown. Two are handled side by side.
const MOST_MEMORY: usize = 12 * HUGE;

/// The headers of Celery's protocol, and those of pikake.
const HEADERS: [&str; 26] = [
    "lang",
    "task",
    "id",
    "root_id",
    "parent_id",
    "group",
    "group_index",
    "eta",
    "expires",
    "retries",
    "timelimit",
    "argsrepr",
    "kwargsrepr",
    "origin",
    "shadow",
    "ignore_result",
    "replaced_task_nesting",
    "stamped_headers",
    "stamps",
    "compression",
    "meth",
    "traceparent",
    "pikake_kills",
    "pikake_deliveries",
    "pikake_max_retries",
    "pikake_expires",
];

#[job(crate = pikake_jobs, name = "hostile.add")]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[job(crate = pikake_jobs, name = "hostile.length")]
async fn length(text: String) -> usize {
    text.len()
}

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

/// Values of every type, few of which are what a header should have.
fn values() -> Vec<Value> {
    let mut table = Table::default();
    table.insert(short("key").unwrap(), Value::LongString(vec![0xff, 0xfe].into()));
    let mut nested = Value::Void;
    for _ in 0..60 {
        nested = Value::FieldArray(Array::from(vec![nested]));
    }
    vec![
        Value::Void,
        Value::Boolean(true),
        Value::LongInt(-1),
        Value::LongLongInt(i64::MAX),
        Value::Double(f64::MIN),
        Value::Timestamp(u64::MAX),
        text(""),
        text("\u{0}\u{202e}1e999"),
        Value::LongString(vec![0xff; 300].into()),
        Value::ByteArray(vec![0xc3, 0x28].into()),
        Value::FieldTable(table),
        Value::FieldArray(Array::from(vec![Value::LongInt(i32::MIN), Value::Boolean(false)])),
        nested,
    ]
}

/// A call with this header in place of its own.
fn properties(number: usize, header: Option<(&str, Value)>) -> Properties {
    let mut headers = Table::default();
    headers.insert(short("task").unwrap(), text("hostile.add"));
    headers.insert(short("id").unwrap(), text(&format!("hostile-{number}")));
    if let Some((name, value)) = header {
        headers.insert(short(name).unwrap(), value);
    }
    let json = short("application/json").unwrap();
    let properties = persistent().with_headers(headers).with_content_type(json);
    properties.with_content_encoding(short("utf-8").unwrap())
}

/// Members of `embed` that no Celery writes.
fn members() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let nested = (0..200).fold("null".to_owned(), |inner, _| {
        format!("{{\"task\": \"hostile.add\", \"chain\": [{inner}]}}")
    });
    let wrong = [
        "1",
        "true",
        "-1e400",
        "\"text\"",
        "{}",
        "[1]",
        "[null]",
        "[[]]",
        "[{}]",
        "{\"task\": 3}",
        "[{\"task\": 3}]",
        "[{\"task\": \"hostile.add\", \"args\": 5}]",
        "[{\"task\": \"hostile.add\", \"options\": []}]",
        "[{\"task\": \"hostile.add\", \"options\": {\"queue\": {}, \"task_id\": 7}}]",
        "[{\"task\": \"celery.group\", \"kwargs\": {\"tasks\": 5}}]",
        "[{\"task\": \"celery.chord\", \"kwargs\": {\"header\": null, \"body\": []}}]",
        "{\"task\": \"hostile.add\", \"chord_size\": -1, \"options\": {\"group_id\": []}}",
    ];
    let mut all: Vec<_> = wrong.into_iter().map(str::to_owned).collect();
    all.extend([format!("[{nested}]"), nested, deep]);
    all
}

/// Ended runs of whichever end.
fn ended(stats: &Stats) -> u64 {
    let all = stats.all;
    all.done + all.failed + all.retried + all.revoked + all.dead
}

/// Sends messages to a worker, until all of them have ended and their queue is empty. Returns what
/// is dead.
async fn work_off(
    url: &str,
    messages: impl ExactSizeIterator<Item = (Properties, Vec<u8>)>,
) -> Vec<pikake_jobs::DeadJob> {
    let count = messages.len();
    let app = App::new(url).unwrap().default_queue(QUEUE).jobs([add::JOB, length::JOB]);
    let app = app.connect().await.unwrap();
    let worker = spawn(app.run_worker());
    let channel: Channel = app.amqp().unwrap().connection().channel().await.unwrap();
    while app.broker().unwrap().counts(QUEUE).await.is_err() {
        sleep(Duration::from_millis(20)).await.unwrap();
    }
    for (properties, body) in messages {
        channel.publish("", QUEUE, properties, body, true).await.unwrap();
    }
    let broker = app.broker().unwrap();
    while ended(&app.stats()) < count as u64 {
        sleep(Duration::from_millis(20)).await.unwrap();
    }
    // The worker goes on.
    let value = add::with(1, 2).on(&app).send().await.unwrap().wait().await.unwrap();
    assert_eq!(value, 3);
    let counts = broker.counts(QUEUE).await.unwrap();
    assert_eq!((counts.ready, counts.delayed), (0, 0));
    let dead = broker.dead(QUEUE, 2 * count).await.unwrap();
    worker.request_cancel("the test is over");
    let stats = worker.await.unwrap().unwrap().stats.all;
    assert_eq!((stats.running, stats.given_back), (0, 0), "{stats}");
    // A connection that is lost on the way has a message buried once more.
    assert!(stats.done + stats.revoked + dead.len() as u64 >= count as u64, "{stats}");
    dead
}

fn run(test: impl AsyncFnOnce(String)) {
    let Some(url) = xtask::fresh_url() else { return };
    let kernel = Kernel::new().unwrap();
    kernel.run(async { timeout_after(HANG, test(url)).await }).expect("it hangs");
}

#[test]
fn headers_of_any_type_end_no_worker() {
    run(async |url| {
        let mut messages = Vec::new();
        for header in HEADERS {
            for value in values() {
                let properties = properties(messages.len(), Some((header, value)));
                messages.push((properties, b"[[1, 2], {}, {}]".to_vec()));
            }
        }
        let dead = work_off(&url, messages.into_iter()).await;
        assert!(dead.iter().all(|dead| !dead.reason.is_empty()), "{dead:?}");
        // All wrong values of the headers without which there is no job, at least.
        assert!(dead.len() >= 20, "{}", dead.len());
    });
}

#[test]
fn embeds_of_any_form_end_no_worker() {
    run(async |url| {
        let mut messages = Vec::new();
        for name in ["callbacks", "errbacks", "chain", "chord"] {
            for member in members() {
                // One that succeeds and one that fails.
                for arguments in ["[1, 2]", "[1]"] {
                    let body = format!("[{arguments}, {{}}, {{\"{name}\": {member}}}]");
                    messages.push((properties(messages.len(), None), body.into_bytes()));
                }
            }
        }
        let dead = work_off(&url, messages.into_iter()).await;
        assert!(dead.iter().all(|dead| !dead.reason.is_empty()), "{dead:?}");
    });
}

/// A line of this process's status, in bytes.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

/// In a process of its own, whose memory is measured.
#[cfg(target_os = "linux")]
#[test]
fn huge_and_deep_bodies_leave_no_memory() {
    const NAME: &str = "hostile::huge_and_deep_bodies_leave_no_memory";
    const URL: &str = "PIKAKE_TEST_URL";
    const DONE: &str = "all have ended";
    if child::is_child(NAME) {
        let url = env::var(URL).unwrap();
        let kernel = Kernel::new().unwrap();
        let test = async { timeout_after(HANG, work_off_huge(&url)).await };
        kernel.run(test).expect("it hangs");
        return println!("{DONE}");
    }
    let Some(url) = xtask::fresh_url() else { return };
    let (is_good, printed) = child::run(child::child(NAME).env(URL, url));
    print!("{printed}");
    assert!(is_good && printed.contains(DONE), "{printed}");
}

async fn work_off_huge(url: &str) {
    let filled = |begin: &[u8], fill: u8| {
        let end = b"\"], {}, {}]";
        let mut body = begin.to_vec();
        body.resize(HUGE - end.len(), fill);
        body.extend_from_slice(end);
        body
    };
    let nested =
        |begin: &str, end: &str| [begin.repeat(DEEP), "1".to_owned(), end.repeat(DEEP)].concat();
    // Made when they are sent, so that they are not in memory all at once. The first one succeeds.
    let bodies: [&dyn Fn() -> Vec<u8>; 10] = [
        &|| filled(b"[[\"", b'x'),
        &|| filled(b"[[1, \"", b'x'),
        &|| filled(b"[[\"", 0xff),
        &|| vec![b'['; BRACKETS],
        &|| nested("[", "]").into_bytes(),
        &|| format!("[[{}, 2], {{}}, {{}}]", nested("[", "]")).into_bytes(),
        &|| format!("[[1, 2], {}, {{}}]", nested("{\"a\":", "}")).into_bytes(),
        &|| format!("[[1, 2], {{}}, {{\"chord\": {}}}]", nested("{\"body\":", "}")).into_bytes(),
        &|| b"[[1, \"\xff\"], {}, {}]".to_vec(),
        &|| b"\xff\xfe".to_vec(),
    ];
    let messages = bodies.iter().enumerate().map(|(number, body)| {
        let task = (number == 0).then(|| ("task", text("hostile.length")));
        (properties(number, task), body())
    });
    let (began, before) = (Instant::now(), memory("VmRSS:"));
    let dead = work_off(url, messages).await;
    let numbers: BTreeSet<_> = dead.iter().map(|dead| dead.message.job()).collect();
    assert_eq!(numbers.len(), bodies.len() - 1);
    for dead in &dead {
        assert!((1..4_000).contains(&dead.reason.len()), "{}", dead.reason.len());
    }
    drop(dead);
    let (most, after) = (memory("VmHWM:"), memory("VmRSS:"));
    println!(
        "{:?}, {} MB at most, {} MB after",
        began.elapsed(),
        most / 1_000_000,
        after / 1_000_000
    );
    assert!(after < before + HUGE / 2, "{before} and {after} bytes");
    assert!(most < MOST_MEMORY, "{most} bytes");
}
