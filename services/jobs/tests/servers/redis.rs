//! Results in a real Redis: one that is killed, one that asks for a password, and one that speaks
//! TLS.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use pikake_jobs::{
    App, AppError, Broker, BrokerError, Call, ChordMember, Handle, JobError, MemoryStore, Outcome,
    OutcomeState,
};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{Interrupted, sleep, spawn, timeout_after};
use tracing::Level;
use xtask::{Kind, Server};

use crate::lines::Lines;

/// What has not happened by then never will.
const HANG: Duration = Duration::from_secs(120);

#[job(crate = pikake_jobs, name = "tests.add")]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[job(crate = pikake_jobs, name = "tests.nap")]
async fn nap(seconds: u64) -> Result<u64, Interrupted> {
    sleep(Duration::from_secs(seconds)).await?;
    Ok(seconds)
}

#[job(crate = pikake_jobs, name = "tests.fail")]
async fn fail(text: String) -> Result<(), String> {
    Err(text)
}

/// What a Redis says to a command in a line.
pub(crate) fn ask(url: &str, command: &str) -> String {
    let (_, at) = url.split_once('@').expect("with a password");
    let (at, db) = at.split_once('/').expect("with a database");
    let db = db.split('?').next().unwrap_or_default();
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "AUTH pikake\r\nSELECT {db}\r\n{command}\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert_eq!([lines.next().unwrap(), lines.next().unwrap()], ["+OK", "+OK"]);
    lines.next().unwrap()
}

fn in_time(program: impl Future<Output = ()>) {
    let kernel = Kernel::new().unwrap();
    kernel.run(async { timeout_after(HANG, program).await }).expect("it hangs");
}

fn app(store: &MemoryStore, results: &str) -> App {
    App::on(std::rc::Rc::new(store.open())).results(results).unwrap()
}

#[test]
fn outcomes_are_kept_for_their_time() {
    let Some(url) = xtask::fresh_redis_url() else { return };
    in_time(async {
        let store = MemoryStore::new();
        let worker = spawn(
            app(&store, &format!("{url}?expires=1000")).jobs([add::JOB, fail::JOB]).run_worker(),
        );
        let client = app(&store, &url).connect().await.unwrap();
        let sum = add::with(2, 3).id("sum").on(&client).send().await.unwrap();
        let failed = fail::with("no".into()).id("fail").on(&client).send().await.unwrap();
        let ignored =
            add::with(2, 3).ignore_result().id("ignored").on(&client).send().await.unwrap();
        assert_eq!(sum.wait().await.unwrap(), 5);
        assert!(
            matches!(failed.wait().await, Err(JobError::Failed(error)) if error.message == "no")
        );
        drop(ignored);
        let lifetime = |job: &str| -> i64 {
            ask(&url, &format!("TTL celery-task-meta-{job}"))[1..].parse().unwrap()
        };
        assert!((900..=1000).contains(&lifetime("sum")), "{}", lifetime("sum"));
        // Another program asks by the id, also after the first has forgotten it.
        drop(sum);
        drop(failed);
        let other = app(&store, &url).connect().await.unwrap();
        let sum = Handle::<i64>::from_id(&other, pikake_jobs::JobId("sum".into()));
        assert_eq!(sum.status().await.unwrap(), Some(OutcomeState::Success));
        assert_eq!(sum.wait().await.unwrap(), 5);
        other.broker().unwrap().probe().await.unwrap();
        client.close().await.unwrap();
        assert!((1..=60).contains(&lifetime("sum")), "{}", lifetime("sum"));
        assert_eq!(ask(&url, "EXISTS celery-task-meta-ignored"), ":0");
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

#[test]
fn killed_redis_loses_no_outcome() {
    let Some(server) = Server::start_or_skip(Kind::Redis) else { return };
    let url = server.fresh_url();
    in_time(async {
        let (lines, _guard) = Lines::collect(&["pikake_jobs::results"], Level::WARN);
        let store = MemoryStore::new();
        let worker = spawn(app(&store, &url).jobs([add::JOB, nap::JOB]).run_worker());
        let client = app(&store, &url).connect().await.unwrap();
        let before = add::with(1, 1).on(&client).send().await.unwrap();
        assert_eq!(before.wait().await.unwrap(), 2);
        // One waits when Redis is killed, and one begins to wait while it is away.
        let early = nap::with(10).on(&client).send().await.unwrap();
        let late =
            add::with(2, 2).countdown(Duration::from_secs(1)).on(&client).send().await.unwrap();
        let waiting = spawn(async move { early.wait().await });
        sleep(Duration::from_millis(300)).await.unwrap();
        server.command("kill");
        let waiting_late = spawn(async move { late.wait().await });
        sleep(Duration::from_secs(3)).await.unwrap();
        assert!(!waiting.is_finished() && !waiting_late.is_finished());
        assert!(matches!(client.broker().unwrap().probe().await, Err(BrokerError::ResultsLost(_))));
        assert_eq!(client.broker().unwrap().state(), "open, without Redis");
        server.command("start");
        assert_eq!(waiting.await.unwrap().unwrap(), 10);
        assert_eq!(waiting_late.await.unwrap().unwrap(), 4);
        assert_eq!(before.wait().await.unwrap(), 2);
        let lines = lines.take();
        let warned = lines.iter().filter(|line| line.contains("no connection")).count();
        assert_eq!(warned, 2, "one of the client and one of the worker: {lines:?}");
        worker.request_cancel("the test is over");
        let stats = worker.await.unwrap().unwrap().stats.all;
        assert_eq!((stats.done, stats.failed, stats.dead), (3, 0, 0), "{stats}");
    });
}

#[test]
fn wrong_password_database_and_address_are_errors() {
    let Some(url) = xtask::fresh_redis_url() else { return };
    in_time(async {
        let connect = async |url: String| {
            let connected = app(&MemoryStore::new(), &url).connect().await;
            match connected.expect_err("it is not connected") {
                AppError::Broker(error) => error,
                error => panic!("{error}"),
            }
        };
        for (wrong, expected) in [
            (url.replace(":pikake@", ":secret@"), "WRONGPASS"),
            (url.replace(":pikake@", ""), "NOAUTH"),
            (format!("{url}99999"), "DB index is out of range"),
        ] {
            let error = connect(wrong).await;
            let BrokerError::ResultsRefused(why) = &error else { panic!("{error}") };
            assert!(why.contains(expected) && !why.contains("secret"), "{why}");
        }
        let error = connect("redis://:secret@127.0.0.1:1".into()).await;
        assert!(error.is_lost() && error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    });
}

#[test]
fn outcomes_go_over_tls() {
    let Some(server) = Server::start_or_skip(Kind::Redis) else { return };
    let (port, folder) = server.tls();
    in_time(async {
        let store = MemoryStore::new();
        let url = |more: &str| format!("rediss://:pikake@localhost:{port}/1?{more}");
        let trusting = url(&format!("ssl_ca_certs={folder}/ca.pem"));
        let worker = spawn(app(&store, &trusting).jobs([add::JOB]).run_worker());
        let client = app(&store, &url("ssl_cert_reqs=none")).connect().await.unwrap();
        let sum = Call::<i64>::named("tests.add", (2, 3)).on(&client).send().await.unwrap();
        assert_eq!(sum.wait().await.unwrap(), 5);
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        for (wrong, expected) in [
            (url(&format!("ssl_ca_certs={folder}/other-ca.pem")), "certificate"),
            (url("ssl_ca_certs=/no/such/file"), "ssl_ca_certs=/no/such/file"),
            (
                format!("rediss://:pikake@localhost:{}/1?ssl_cert_reqs=none", server.port()),
                "no connection",
            ),
        ] {
            let error = app(&store, &wrong).connect().await.expect_err("it is not connected");
            let why = error.to_string();
            assert!(why.contains(expected) && !why.contains(":pikake"), "{why}");
        }
    });
}

fn member(chord: &str, size: u32, index: u64) -> ChordMember {
    let outcome = Outcome::success(index.into());
    ChordMember::new(chord.to_owned(), size, index, format!("job {index}"), outcome)
}

/// The results of the members; `None` as long as they are not all there.
async fn join(
    broker: &dyn Broker,
    member: &ChordMember,
) -> Result<Option<Vec<Outcome>>, BrokerError> {
    let all = broker.join_chord(member).await?;
    Ok(all.map(|all| all.members.into_iter().map(|member| member.outcome).collect()))
}

/// A worker of Celery's has claimed the chord, and is lost: the second run of its member may end
/// the chord.
#[test]
fn chord_with_a_lost_claim_is_tried_again() {
    let Some(url) = xtask::fresh_redis_url() else { return };
    in_time(async {
        let app = app(&MemoryStore::new(), &url).connect().await.unwrap();
        let broker = app.broker().unwrap();
        assert_eq!(join(&*broker, &member("a", 2, 0)).await.unwrap(), None);
        assert_eq!(ask(&url, "SET celery-taskset-meta-a.c 0a1b EX 1000"), "+OK");
        for index in [1, 0, 1] {
            let joined = join(&*broker, &member("a", 2, index)).await;
            assert!(matches!(joined, Err(BrokerError::ResultsLost(_))), "{joined:?}");
        }
        assert_eq!(ask(&url, "DEL celery-taskset-meta-a.c"), ":1");
        let all = join(&*broker, &member("a", 2, 0)).await.unwrap().expect("all members");
        assert_eq!(all, [0, 1].map(|value| Outcome::success(value.into())));
        broker.end_chord("a").await.unwrap();
        assert_eq!(join(&*broker, &member("a", 2, 1)).await.unwrap(), None);
        app.close().await.unwrap();
    });
}

/// A chord that two jobs have as their follower has the same id both times.
#[test]
fn chord_that_is_sent_twice_ends_twice() {
    let Some(url) = xtask::fresh_redis_url() else { return };
    in_time(async {
        let app = app(&MemoryStore::new(), &url).connect().await.unwrap();
        let broker = app.broker().unwrap();
        for _ in 0..2 {
            broker.begin_chord("a", 2).await.unwrap();
            assert_eq!(join(&*broker, &member("a", 2, 0)).await.unwrap(), None);
            assert!(join(&*broker, &member("a", 2, 1)).await.unwrap().is_some());
            broker.end_chord("a").await.unwrap();
        }
        app.close().await.unwrap();
    });
}

/// Neither is read: the reply would be too large, and end the connection.
#[test]
fn chord_beyond_the_limits_fails() {
    const MANY: &str = "for i = 1, 500001 do redis.call('ZADD', KEYS[1], i, i) end return true";
    const LARGE: &str = "local x = 'x' for i = 1, 26 do x = x .. x end \
        for i = 1, 5 do redis.call('ZADD', KEYS[1], i, i .. x) end return true";
    // A server of its own: on a busy machine, the scripts hold it up for seconds.
    let Some(server) = Server::start_or_skip(Kind::Redis) else { return };
    let url = server.fresh_url();
    in_time(async {
        let app = app(&MemoryStore::new(), &url).connect().await.unwrap();
        let broker = app.broker().unwrap();
        for (fill, size) in [(MANY, 500_002), (LARGE, 6)] {
            broker.begin_chord("a", size).await.unwrap();
            assert_eq!(ask(&url, &format!("EVAL \"{fill}\" 1 celery-taskset-meta-a.j")), ":1");
            let all = join(&*broker, &member("a", size, 0)).await.unwrap().expect("a failure");
            assert_eq!(all.len(), 1);
            assert_eq!(all[0].result["exc_type"], "ChordError", "{:?}", all[0]);
            broker.end_chord("a").await.unwrap();
        }
        app.close().await.unwrap();
    });
}
