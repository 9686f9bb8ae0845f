//! Results in a Redis that is hostile, silent or away, in virtual time.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, AppError, BrokerError, JobId, MemoryStore, Message, Outcome};
use pikake_net::{TcpListener, TcpStream};
use pikake_sim::Sim;
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};
use tracing::Level;

use crate::SECOND;
use crate::lines::Lines;

/// Runs a program in a world with a server, which gets each connection.
fn with_server<S, F>(server: impl Fn(TcpStream) -> S + 'static, program: impl FnOnce() -> F)
where
    S: Future<Output = ()> + 'static,
    F: Future<Output = ()>,
{
    let ran = Sim::new(0).run_here("test", async {
        let listener = TcpListener::bind("127.0.0.1:6379").await.unwrap();
        let _server = spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(spawn(server(stream)));
            }
        })
        .cancel_on_drop();
        program().await;
    });
    ran.unwrap_or_else(|failure| panic!("{failure}")).outcome.unwrap();
}

fn app() -> App {
    let broker = Rc::new(MemoryStore::new().open());
    App::on(broker).results("redis://:secret@127.0.0.1/1").unwrap()
}

/// Writes text, and holds the connection until the other side ends.
async fn say(stream: TcpStream, text: &[u8]) {
    let mut buffer = [0; 1024];
    if !text.is_empty() {
        drop(stream.write_all(text).await);
    }
    while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
}

/// Answers the login and the choice of the database, and then the first command with this text.
async fn log_in(stream: &TcpStream) {
    let mut buffer = [0; 1024];
    drop(stream.read(&mut buffer).await);
    drop(stream.write_all(b"+OK\r\n+OK\r\n").await);
}

fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message
}

#[test]
fn servers_that_let_nobody_in_are_errors() {
    let nested: &'static [u8] = b"*1\r\n".repeat(50_000).leak();
    let cases: [(&'static [u8], &str); 7] = [
        (b"", "no connection and handshake within 10s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Redis's protocol"),
        (b"+O", "no connection and handshake within 10s"),
        (b"*2\r\n+OK\r\n+OK\r\n", "does not speak Redis's protocol"),
        (nested, "lists in lists"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        (b"$99999999999\r\n", "too long"),
    ];
    for (text, expected) in cases {
        with_server(
            move |stream| say(stream, text),
            || async move {
                let begin = now();
                let error = app().connect().await.expect_err("it is not connected");
                let AppError::Broker(BrokerError::ResultsLost(why)) = error else {
                    panic!("{error}")
                };
                assert!(why.contains("127.0.0.1:6379") && why.contains(expected), "{why}");
                assert!(!why.contains("secret"), "{why}");
                assert!(elapsed_since(begin) <= 11 * SECOND);
            },
        );
    }
}

#[test]
fn wrong_password_and_database_are_refused() {
    let cases: [(&'static [u8], &str); 3] = [
        (b"-WRONGPASS invalid username-password pair\r\n-NOAUTH\r\n", "logs in: WRONGPASS"),
        (b"+OK\r\n-ERR DB index is out of range\r\n", "chooses the database: ERR DB index"),
        (b"-ERR AUTH called without any password\r\n+OK\r\n", "logs in: ERR AUTH"),
    ];
    for (text, expected) in cases {
        with_server(
            move |stream| say(stream, text),
            || async move {
                let error = app().connect().await.expect_err("it is not connected");
                let AppError::Broker(BrokerError::ResultsRefused(why)) = error else {
                    panic!("{error}")
                };
                assert!(why.contains(expected) && !why.contains("secret"), "{why}");
            },
        );
    }
}

#[test]
fn url_is_checked_when_it_is_set() {
    let error = App::new("memory://").unwrap().results("http://:secret@host").unwrap_err();
    assert!(matches!(&error, AppError::Url(why) if why.contains("redis://")), "{error}");
    assert!(!error.to_string().contains("secret"));
}

/// Each connection ends in the first reply: half of a reply, no reply, and replies to no command.
#[test]
fn outage_is_one_warning_and_growing_pauses() {
    for text in [b"$100\r\nhalf".as_slice(), b"", b"$-1\r\n+more\r\n+more\r\n"] {
        let connections = Rc::new(Cell::new(0));
        let counted = connections.clone();
        let server = move |stream: TcpStream| {
            counted.set(counted.get() + 1);
            async move {
                log_in(&stream).await;
                let mut buffer = [0; 1024];
                drop(stream.read(&mut buffer).await);
                if !text.is_empty() {
                    drop(stream.write_all(text).await);
                }
                sleep(Duration::from_millis(1)).await.unwrap();
            }
        };
        with_server(server, || async move {
            let (lines, _guard) = Lines::collect(&["pikake_jobs::results"], Level::WARN);
            let app = app().connect().await.unwrap();
            let broker = app.broker().unwrap();
            let mut lost = 0;
            for _ in 0..60 {
                lost += usize::from(broker.outcome(&JobId("a".into())).await.is_err());
                sleep(SECOND).await.unwrap();
            }
            assert!(lost > 30, "{lost}");
            let tried = connections.get();
            assert!((8..60).contains(&tried), "{tried} connections in a minute");
            let lines = lines.take();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(
                lines[0].starts_with("warn no connection to Redis: redis=127.0.0.1:6379"),
                "{lines:?}"
            );
            app.close().await.unwrap();
        });
    }
}

/// A server that answers nothing more is asked for a sign of life, and is lost without one; whoever
/// has asked gets an error that may be retried.
#[test]
fn silent_server_is_lost() {
    let server = async |stream: TcpStream| {
        log_in(&stream).await;
        say(stream, b"").await;
    };
    with_server(server, || async {
        let app = app().connect().await.unwrap();
        let broker = app.broker().unwrap();
        let begin = now();
        let stored = broker.store(&message("a"), Outcome::success(1.into())).await;
        let Err(BrokerError::ResultsLost(why)) = stored else { panic!("{stored:?}") };
        assert!(why.contains("silent for 20s"), "{why}");
        assert_eq!(elapsed_since(begin).as_secs(), 20);
        // A close does not wait for such a server for long.
        sleep(SECOND).await.unwrap();
        let asking = spawn(async move { broker.outcome(&JobId("a".into())).await });
        sleep(SECOND).await.unwrap();
        let begin = now();
        app.close().await.unwrap();
        assert!(elapsed_since(begin) <= 4 * SECOND);
        assert!(matches!(asking.await.unwrap(), Err(BrokerError::Closed)));
    });
}

/// Waiters get an end at a close, and an interruption at once.
#[test]
fn waits_end_with_the_application() {
    let server = async |stream: TcpStream| {
        log_in(&stream).await;
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let answer: &[u8] = match text.contains("SUBSCRIBE") {
                true => b"*3\r\n$9\r\nsubscribe\r\n$18\r\ncelery-task-meta-a\r\n:1\r\n",
                false => b"$-1\r\n",
            };
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
    };
    with_server(server, || async {
        let app = app().connect().await.unwrap();
        let broker = app.broker().unwrap();
        broker.expect(&mut message("a")).await.unwrap();
        let job = JobId("a".into());
        assert!(timeout_after(SECOND, broker.wait(&job)).await.is_err());
        let waiting = spawn({
            let (broker, job) = (broker.clone(), job.clone());
            async move { broker.wait(&job).await }
        });
        sleep(SECOND).await.unwrap();
        app.close().await.unwrap();
        assert!(matches!(waiting.await.unwrap(), Err(BrokerError::Closed)));
    });
}

/// Answers each write of the client, which has these commands.
async fn answering(stream: TcpStream, answer: impl Fn(&str) -> Vec<u8>) {
    log_in(&stream).await;
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..length]);
        if stream.write_all(&answer(&text)).await.is_err() {
            return;
        }
    }
}

fn subscribed(job: &str) -> String {
    let name = format!("celery-task-meta-{job}");
    format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:1\r\n", name.len())
}

/// Redis checks the length of a key's life only when it carries out the transaction.
#[test]
fn error_within_a_transaction_is_refused() {
    let server = |stream| {
        answering(stream, |text| match text.contains("EXEC") {
            true => b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n-ERR invalid expire time\r\n:0\r\n".into(),
            false => b"$-1\r\n".into(),
        })
    };
    with_server(server, || async {
        let app = app().connect().await.unwrap();
        let stored = app.broker().unwrap().store(&message("a"), Outcome::success(1.into())).await;
        let Err(BrokerError::ResultsRefused(why)) = stored else { panic!("{stored:?}") };
        assert!(why.contains("ERR invalid expire time"), "{why}");
        app.close().await.unwrap();
    });
}

/// A wait fails if Redis refuses its subscription, and a wait with a confirmed subscription goes
/// on.
#[test]
fn refused_subscription_fails_its_wait() {
    let subscriptions = Rc::new(Cell::new(0));
    let counted = subscriptions.clone();
    let server = move |stream| {
        let counted = counted.clone();
        answering(stream, move |text| {
            if text.contains("GET") {
                return b"$-1\r\n".into();
            }
            let mut answer = String::new();
            for (at, _) in text.match_indices("SUBSCRIBE\r\n") {
                let is_new = !text[..at].ends_with("UN");
                counted.set(counted.get() + u32::from(is_new));
                answer += &match (is_new, text[at..].contains("meta-a")) {
                    (true, true) => subscribed("a"),
                    (true, false) => "-NOPERM No permissions to access a channel\r\n".to_owned(),
                    (false, _) => "*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n".to_owned(),
                };
            }
            answer.into()
        })
    };
    with_server(server, || async move {
        let app = app().connect().await.unwrap();
        let broker = app.broker().unwrap();
        for job in ["a", "b"] {
            broker.expect(&mut message(job)).await.unwrap();
        }
        let confirmed = spawn({
            let broker = broker.clone();
            async move { broker.wait(&JobId("a".into())).await }
        });
        sleep(SECOND).await.unwrap();
        for _ in 0..2 {
            let refused = timeout_after(SECOND, broker.wait(&JobId("b".into()))).await.unwrap();
            let Err(BrokerError::ResultsRefused(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains("NOPERM") && why.contains("celery-task-meta-b"), "{why}");
        }
        sleep(SECOND).await.unwrap();
        assert!(!confirmed.is_finished());
        assert_eq!(subscriptions.get(), 3);
        app.close().await.unwrap();
    });
}

/// The link of commands is open, and that of announcements is lost again and again.
#[test]
fn outage_of_announcements_is_one_warning() {
    let connections = Rc::new(Cell::new(0));
    let server = move |stream: TcpStream| {
        connections.set(connections.get() + 1);
        let is_first = connections.get() == 1;
        async move {
            match is_first {
                true => answering(stream, |_| b"$-1\r\n".into()).await,
                false => log_in(&stream).await,
            }
        }
    };
    with_server(server, || async {
        let (lines, _guard) = Lines::collect(&["pikake_jobs::results"], Level::WARN);
        let app = app().connect().await.unwrap();
        let broker = app.broker().unwrap();
        broker.expect(&mut message("a")).await.unwrap();
        assert!(timeout_after(60 * SECOND, broker.wait(&JobId("a".into()))).await.is_err());
        let lines = lines.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("no connection to Redis for announcements"), "{lines:?}");
        app.close().await.unwrap();
    });
}

/// A large outcome on a slow connection takes longer than a server may be silent.
#[test]
fn slow_write_is_no_silence() {
    let server = async |stream: TcpStream| {
        log_in(&stream).await;
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let is_whole = buffer[..length].ends_with(b"EXEC\r\n");
            let answer: &[u8] = match buffer.starts_with(b"*2\r\n$3\r\nGET") {
                true => b"$-1\r\n",
                false if is_whole => b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n",
                false => b"",
            };
            if !answer.is_empty() && stream.write_all(answer).await.is_err() {
                return;
            }
            sleep(SECOND / 2).await.unwrap();
        }
    };
    with_server(server, || async {
        let app = app().connect().await.unwrap();
        let (broker, begin) = (app.broker().unwrap(), now());
        let large = Outcome::success("x".repeat(3_000_000).into());
        broker.store(&message("a"), large).await.unwrap();
        let length = elapsed_since(begin);
        assert!(length > 40 * SECOND, "{length:?}");
        app.close().await.unwrap();
    });
}

#[cfg(feature = "amqp")]
mod over_amqp {
    use pikake_jobs::Schedule;

    use super::*;
    use crate::{Running, add};

    /// Runs a program in a world with RabbitMQ, and with a Redis that takes what it gets.
    fn in_a_world<F: Future<Output = ()>>(program: impl FnOnce() -> F) {
        let server = |stream| {
            answering(stream, |text| match text.contains("EXEC") {
                true => b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n".into(),
                false => b"$-1\r\n".into(),
            })
        };
        with_server(server, || async {
            let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
            let broker = pikake_amqp_testing::Broker::new();
            let _serving = spawn(pikake_amqp_testing::serve(broker, listener)).cancel_on_drop();
            program().await;
        });
    }

    fn app(has_results: bool) -> App {
        let app = App::new("amqp://127.0.0.1").unwrap();
        match has_results {
            true => app.results("redis://:secret@127.0.0.1/1").unwrap(),
            false => app,
        }
    }

    /// A worker has been updated, and the sender is not yet.
    #[test]
    fn sender_without_redis_gets_its_outcome() {
        in_a_world(|| async {
            let worker = Running::start(&app(true).jobs([add::JOB]), SECOND).await;
            let client = app(false).connect().await.unwrap();
            let sum = add::with(2, 3).on(&client).send().await.unwrap();
            assert_eq!(timeout_after(60 * SECOND, sum.wait()).await.unwrap().unwrap(), 5);
            client.close().await.unwrap();
            worker.end().await;
        });
    }

    #[test]
    fn schedules_are_listed_with_and_without_redis() {
        for leader_has_results in [true, false] {
            in_a_world(|| async move {
                let schedule = Schedule::every(3_600 * SECOND, add::with(1, 1)).name("hourly");
                let leader = app(leader_has_results).jobs([add::JOB]).schedule(schedule);
                let worker = Running::start(&leader, SECOND).await;
                let asker = app(!leader_has_results).connect().await.unwrap();
                sleep(5 * SECOND).await.unwrap();
                let listed = timeout_after(60 * SECOND, asker.schedules().list()).await;
                assert_eq!(listed.unwrap().unwrap().len(), 1);
                asker.close().await.unwrap();
                worker.end().await;
            });
        }
    }
}
