//! SQLite where something is wrong: each error says what, nothing is lost, and it goes on
//! afterwards.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{
    App, Broker, BrokerError, Handle, JobId, Message, Next, QueueOptions, SqliteBroker, group, map,
};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_sync::{Event, Promise};
use pikake_traps::{Interrupted, sleep, spawn, timeout_after};
use rusqlite::Connection;
use tempfile::TempDir;

fn opened(path: &Path) -> Result<SqliteBroker, BrokerError> {
    Kernel::new().unwrap().run(SqliteBroker::open(path))
}

fn io_kind(error: &BrokerError) -> Option<ErrorKind> {
    match error {
        BrokerError::Io(error) => Some(error.kind()),
        _ => None,
    }
}

#[test]
fn a_directory_that_is_not_there() {
    let directory = TempDir::new().unwrap();
    let error = opened(&directory.path().join("nowhere/jobs.db")).unwrap_err();
    assert_eq!(io_kind(&error), Some(ErrorKind::NotFound), "{error}");
    assert!(error.to_string().contains("nowhere/jobs.db"), "{error}");
    assert!(error.to_string().contains("its directory does not exist"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written() {
    let error = opened(Path::new("/proc/jobs.db")).unwrap_err();
    assert_eq!(io_kind(&error), Some(ErrorKind::PermissionDenied), "{error}");
}

#[test]
fn a_file_that_is_no_database() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    fs::write(&path, "this is a text, and long enough to be looked at. ".repeat(100)).unwrap();
    let error = opened(&path).unwrap_err();
    assert_eq!(io_kind(&error), Some(ErrorKind::InvalidData), "{error}");
}

#[test]
fn a_database_of_something_else() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("shop.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE orders (id)").unwrap();
    let error = opened(&path).unwrap_err();
    assert!(matches!(error, BrokerError::Refused(_)), "{error}");
    assert!(error.to_string().contains("something else"), "{error}");
}

#[test]
fn a_database_of_another_version() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    drop(opened(&path).unwrap());
    let other = Connection::open(&path).unwrap();
    other.pragma_update(None, "user_version", 7).unwrap();
    let error = opened(&path).unwrap_err();
    assert!(matches!(error, BrokerError::Refused(_)), "{error}");
    assert!(error.to_string().contains("version 7"), "{error}");
}

/// Runs a test with a database of its own, in which there is a queue.
fn on_database(test: impl AsyncFnOnce(SqliteBroker, &Path)) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    Kernel::new().unwrap().run(async {
        let broker = SqliteBroker::open(&path).await.unwrap();
        broker.declare("work", &QueueOptions::default()).await.unwrap();
        test(broker, &path).await;
    });
}

#[test]
fn a_database_that_another_writes_for_too_long() {
    on_database(async |broker, path| {
        let other = Connection::open(path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = broker.publish("work", Message::default(), None).await.unwrap_err();
        let is_lost = matches!(error.cause, PublishFailure::Broker(BrokerError::Lost(_)));
        assert!(is_lost && !error.is_uncertain, "{error}");
        other.execute_batch("ROLLBACK").unwrap();
        broker.publish("work", *error.message, None).await.unwrap();
        assert_eq!(broker.counts("work").await.unwrap().ready, 1);
    });
}

#[test]
fn a_database_that_breaks_tells_who_waits() {
    on_database(async |broker, path| {
        let mut deliveries = broker.consume("work", 1).await.unwrap();
        let other = Connection::open(path).unwrap();
        other.execute_batch("ALTER TABLE message RENAME TO gone").unwrap();
        let told = timeout_after(Duration::from_secs(10), deliveries.next()).await.unwrap();
        assert!(matches!(told, Err(BrokerError::Io(_))), "{told:?}");
        other.execute_batch("ALTER TABLE gone RENAME TO message").unwrap();
        broker.publish("work", Message::default(), None).await.unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(delivery)) = deliveries.next().await {
                broker.ack(delivery.receipt).await.unwrap();
                return;
            }
        }
        panic!("it does not go on");
    });
}

/// Fills a database, and breaks all of it but its first page.
fn broken(path: &Path) {
    Kernel::new().unwrap().run(async {
        let broker = SqliteBroker::open(path).await.unwrap();
        broker.declare("work", &QueueOptions::default()).await.unwrap();
        for _ in 0..20 {
            let mut message = Message::default();
            message.body = vec![b'x'; 10_000];
            broker.publish("work", message, None).await.unwrap();
        }
        broker.close().await.unwrap();
    });
    let mut bytes = fs::read(path).unwrap();
    bytes[4_096..].fill(0x5A);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_database_that_is_broken_inside() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    broken(&path);
    Kernel::new().unwrap().run(async {
        let error = match SqliteBroker::open(&path).await {
            Err(error) => error,
            Ok(broker) => match broker.publish("work", Message::default(), None).await {
                Err(error) => match error.cause {
                    PublishFailure::Broker(error) => error,
                    other => panic!("{other}"),
                },
                Ok(()) => panic!("it was published"),
            },
        };
        assert_eq!(io_kind(&error), Some(ErrorKind::InvalidData), "{error}");
        assert!(error.to_string().contains("restore the file from a copy"), "{error}");
        // A worker says so and ends.
        let app = App::new(format!("sqlite://{}", path.display())).unwrap();
        let ended = timeout_after(Duration::from_secs(60), app.worker().run()).await.unwrap();
        let error = ended.expect_err("it cannot work").to_string();
        assert!(error.contains("malformed"), "{error}");
    });
}

#[job(crate = pikake_jobs)]
async fn outlives(path: String) -> String {
    fs::remove_file(&path).unwrap();
    path
}

#[test]
fn a_database_that_is_deleted_under_way() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    let url = format!("sqlite://{}", path.display());
    Kernel::new().unwrap().run(async {
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        let worker =
            App::new(&url).unwrap().jobs([outlives::JOB]).worker().grace(Duration::from_secs(1));
        let worker = spawn(worker.run());
        let handle = outlives::with(path.display().to_string()).on(&sender).send().await.unwrap();
        let waits = spawn(async move { handle.wait().await });
        let ended = timeout_after(Duration::from_secs(60), worker).await.unwrap().unwrap();
        let error = ended.expect_err("it cannot go on").to_string();
        assert!(error.contains("deleted or replaced while it was open"), "{error}");
        // Neither do those hang who wait or send.
        let told = timeout_after(Duration::from_secs(60), waits).await.unwrap().unwrap();
        let error = told.expect_err("there is no outcome").to_string();
        assert!(error.contains("deleted or replaced while it was open"), "{error}");
        let error = outlives::with(String::new()).on(&sender).send().await.unwrap_err().to_string();
        assert!(error.contains("deleted or replaced while it was open"), "{error}");
    });
    assert!(!path.exists(), "no other one was made");
}

#[test]
fn urls_set_the_lease() {
    let directory = TempDir::new().unwrap();
    let url = format!("sqlite://{}", directory.path().join("jobs.db").display());
    let opened = |query: &str| {
        let url = format!("{url}{query}");
        Kernel::new().unwrap().run(async move { pikake_jobs::open(&url).await?.close().await })
    };
    opened("?lease=30").unwrap();
    opened("?lease=1.5").unwrap();
    for (query, why) in [
        ("?lease=0.9", "a lease of 900ms is not between 1s and a day"),
        ("?lease=86401", "a lease of 86401s is not between 1s and a day"),
        ("?lease=-1", "only `?lease=SECONDS` may follow the path"),
        ("?lease=soon", "only `?lease=SECONDS` may follow the path"),
        ("?mode=ro", "only `?lease=SECONDS` may follow the path"),
    ] {
        let error = opened(query).unwrap_err();
        assert!(matches!(&error, BrokerError::Refused(text) if text.contains(why)), "{error}");
    }
    let files = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 1, "the query is no part of the path");
}

#[cfg(unix)]
#[test]
fn a_database_that_a_link_leads_to() {
    let (directory, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (path, link) = (directory.path().join("jobs.db"), elsewhere.path().join("link.db"));
    Kernel::new().unwrap().run(async {
        let by_name = SqliteBroker::open(&path).await.unwrap();
        by_name.declare("work", &QueueOptions::default()).await.unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let by_link = SqliteBroker::open(&link).await.unwrap();
        for (has, looks) in [(&by_name, &by_link), (&by_link, &by_name)] {
            has.publish("work", Message::default(), None).await.unwrap();
            let mut deliveries = has.consume("work", 1).await.unwrap();
            let delivery = deliveries.next().await.unwrap().unwrap();
            let mut others = looks.consume("work", 1).await.unwrap();
            let other = timeout_after(Duration::from_secs(2), others.next()).await;
            assert!(other.is_err(), "it is not its own: {other:?}");
            has.ack(delivery.receipt).await.unwrap();
        }
        // Where the link leads is seen still.
        fs::remove_file(&link).unwrap();
        let error = by_link.publish("work", Message::default(), None).await.unwrap_err();
        assert!(error.to_string().contains("deleted or replaced while it was open"), "{error}");
        by_name.publish("work", Message::default(), None).await.unwrap();
    });
}

#[test]
fn nothing_is_left_beside_a_database_that_was_closed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    Kernel::new().unwrap().run(async {
        let broker = SqliteBroker::open(&path).await.unwrap();
        broker.declare("work", &QueueOptions::default()).await.unwrap();
        broker.publish("work", Message::default(), None).await.unwrap();
        broker.close().await.unwrap();
    });
    let names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["jobs.db"]);
}

thread_local!(static GO_ON: Rc<Event> = Rc::default());

#[job(crate = pikake_jobs)]
async fn held() -> Result<(), String> {
    GO_ON.with(Rc::clone).wait().await.map_err(|why| why.to_string())
}

#[test]
fn a_worker_that_ends_while_another_writes_takes_no_more() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.db");
    let url = format!("sqlite://{}", path.display());
    Kernel::new().unwrap().run(async {
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        for _ in 0..20 {
            held::with().ignore_result().on(&sender).send().await.unwrap();
        }
        let taken = async || sender.broker().unwrap().counts("pikake").await.unwrap().taken;
        let comes_to = async |count: u64| {
            timeout_after(Duration::from_secs(60), async {
                while taken().await != Some(count) {
                    sleep(Duration::from_millis(20)).await?;
                }
                Ok::<_, Interrupted>(())
            })
            .await
        };
        let app = App::new(&url).unwrap().jobs([held::JOB]).concurrency(1).prefetch(5);
        let started = Rc::new(Promise::new());
        let told = started.clone();
        let worker = app.worker().grace(Duration::from_secs(600));
        let worker = spawn(worker.on_start(move |handle| drop(told.set(handle))).run());
        comes_to(5).await.expect("it fetches").unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        started.wait().await.unwrap().warm();
        // Longer than anybody waits for it.
        sleep(Duration::from_secs(6)).await.unwrap();
        other.execute_batch("ROLLBACK").unwrap();
        comes_to(1).await.expect("only the job that runs is left").unwrap();
        sleep(Duration::from_secs(1)).await.unwrap();
        assert_eq!(taken().await, Some(1));
        GO_ON.with(|go_on| go_on.set());
        let report = worker.await.unwrap().unwrap();
        assert_eq!((report.stats.all.done, report.stats.all.given_back), (1, 4));
        assert_eq!(taken().await, Some(0));
    });
}

#[job(crate = pikake_jobs)]
async fn doubled(number: i64) -> i64 {
    number * 2
}

#[job(crate = pikake_jobs)]
async fn summed(numbers: Vec<i64>) -> i64 {
    numbers.into_iter().sum()
}

#[job(crate = pikake_jobs)]
async fn never(number: i64) -> Result<i64, String> {
    Err(format!("not {number}"))
}

#[job(crate = pikake_jobs, name = "reports")]
async fn reports(id: String) -> String {
    format!("reported {id}")
}

/// The steps of a workflow run in two workers, each with a kernel and a connection to the file of
/// its own, and none of which has sent the workflow.
#[test]
fn workflows_go_through_several_applications() {
    const WIDTH: i64 = 40;
    let directory = TempDir::new().unwrap();
    let url = format!("sqlite://{}", directory.path().join("jobs.db").display());
    let jobs = |url: &str| {
        App::new(url).unwrap().jobs([doubled::JOB, summed::JOB, never::JOB, reports::JOB])
    };
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let url = url.clone();
            let app = move || jobs(&url).concurrency(2).prefetch(2);
            std::thread::spawn(move || Kernel::new().unwrap().run(app().run_worker()).unwrap())
        })
        .collect();
    Kernel::new().unwrap().run(async {
        let app = App::new(&url).unwrap().connect().await.unwrap();
        let chained = doubled::with(1)
            .then(doubled::after())
            .then(doubled::after())
            .on(&app)
            .send()
            .await
            .unwrap();
        let chords = (0..3).map(|_| {
            map(doubled::with, 1..=WIDTH).then(summed::after()).then(doubled::after()).on(&app)
        });
        let mut handles = Vec::new();
        for chord in chords {
            handles.push(chord.send().await.unwrap());
        }
        let failing = group(vec![doubled::with(1), never::with(2)]).then(summed::after());
        let reported = Next::<String, String>::named("reports", ()).set(|call| call.id("reported"));
        let failing =
            failing.then(doubled::after()).on_failure(reported).on(&app).send().await.unwrap();
        let limit = Duration::from_secs(120);
        assert_eq!(timeout_after(limit, chained.wait()).await.unwrap().unwrap(), 8);
        for handle in handles {
            let total = timeout_after(limit, handle.wait()).await.unwrap().unwrap();
            assert_eq!(total, 2 * WIDTH * (WIDTH + 1));
        }
        let error = timeout_after(limit, failing.wait()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("ChordError"), "{error}");
        let reported = Handle::<String>::from_id(&app, JobId("reported".into()));
        let reported = timeout_after(limit, reported.wait()).await.unwrap().unwrap();
        assert!(reported.starts_with("reported "), "{reported}");
        app.control().shutdown().await.unwrap();
    });
    let mut done = Vec::new();
    for worker in workers {
        let report = worker.join().unwrap();
        done.push(report.stats.all.done);
    }
    // 3 of the chain, 42 of each chord, a member and the report.
    assert_eq!(done.iter().sum::<u64>(), 3 + 3 * (WIDTH as u64 + 2) + 2, "{done:?}");
}

#[job(crate = pikake_jobs, batch(size = 200, wait = "600s"))]
async fn count_batch(numbers: Vec<u32>) -> Vec<usize> {
    numbers.iter().map(|_| numbers.len()).collect()
}

/// The prefetch of the queue grows with the batch, so that it is full long before its wait is over.
#[test]
fn a_batch_is_larger_than_the_concurrency() {
    let directory = TempDir::new().unwrap();
    let url = format!("sqlite://{}", directory.path().join("jobs.db").display());
    Kernel::new().unwrap().run(async {
        let app = App::new(&url)
            .unwrap()
            .jobs([count_batch::JOB])
            .concurrency(1)
            .connect()
            .await
            .unwrap();
        let mut jobs = Vec::new();
        for number in 0..200 {
            jobs.push(count_batch::delay(number).await.unwrap());
        }
        let worker = spawn(app.run_worker());
        for job in &jobs {
            let waited = timeout_after(Duration::from_secs(60), job.wait()).await;
            assert_eq!(waited.expect("it is full").unwrap(), 200);
        }
        worker.request_cancel("the test is over");
        assert_eq!(worker.await.unwrap().unwrap().stats.all.done, 200);
    });
}
