//! One connection that many tasks share.

use std::rc::Rc;
use std::time::Duration;

use pikake::postgres::{Connection, Error, Fate, Pipelined};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};
use xtask::{Kind, Server};

use crate::{config, interrupted, poll_and_drop, run, server, sessions, until, until_it_runs};

const PID: &str = "SELECT pg_backend_pid()";
const ONE_MORE: &str = "SELECT $1::INTEGER + 1";
const LOCK: &str = "SELECT pg_advisory_xact_lock(88)";

async fn pid(database: &Pipelined) -> i32 {
    database.query_one(PID, &[]).await.unwrap().get(0)
}

async fn one_more(database: &Pipelined, n: i32) -> i32 {
    database.query_one(ONE_MORE, &[&n]).await.unwrap().get(0)
}

fn ask(database: &Rc<Pipelined>, text: &'static str) -> Task<Result<u64, Error>> {
    let database = database.clone();
    spawn(async move { database.execute(text, &[]).await })
}

/// A connection that holds the lock.
async fn holder(server: &Server) -> Connection {
    let holder = config(server, "holder").connect().await.unwrap();
    holder.batch_execute("SELECT pg_advisory_lock(88)").await.unwrap();
    holder
}

#[test]
fn tasks_share_one_session() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let database = Rc::new(config(server, "shared").pipelined(7));
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let database = database.clone();
                spawn(async move {
                    for round in 0..20 {
                        assert_eq!(one_more(&database, n * round).await, n * round + 1);
                    }
                    database.query("SELECT generate_series(1, $1)", &[&n]).await.unwrap().len()
                })
            })
            .collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), n);
        }
        assert_eq!(sessions(&watcher, "shared").await.len(), 1);
        assert!(database.query_opt("SELECT 1 WHERE FALSE", &[]).await.unwrap().is_none());
        drop(database);
        until("no session", async || sessions(&watcher, "shared").await.is_empty().then_some(()))
            .await;
    });
}

#[test]
fn error_of_a_query_spares_others() {
    let Some(server) = server() else { return };
    run(async {
        let database = Rc::new(config(server, "errors").pipelined(50));
        let first = pid(&database).await;
        let wrong =
            ["SELECT 1 / (random() * 0)::INTEGER", "SELECT nonsense", "SELECT 'x'::INTEGER"];
        let tasks: Vec<_> = (0..30).map(|n| ask(&database, wrong[n % wrong.len()])).collect();
        for n in 0..30 {
            assert_eq!(one_more(&database, n).await, n + 1);
        }
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Statement(_)), "{error:?}");
            assert_eq!(error.fate(), Fate::Undone);
        }
        assert_eq!(pid(&database).await, first);
    });
}

/// Each query is a transaction of its own: the lock of one ends with it.
#[test]
fn queries_are_transactions_of_their_own() {
    let Some(server) = server() else { return };
    run(async {
        let database = config(server, "apart").pipelined(5);
        database.execute(LOCK, &[]).await.unwrap();
        let held =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        assert_eq!(database.query_one(held, &[]).await.unwrap().get::<_, i64>(0), 0);
        for text in ["BEGIN", " set work_mem = '5MB'", "/* */ LISTEN a", "COPY pg_class TO STDOUT"]
        {
            let error = database.execute(text, &[]).await.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert_eq!(error.fate(), Fate::Undone);
        }
        database.query("SHOW work_mem", &[]).await.unwrap();
    });
}

#[test]
fn interrupted_query_spares_others() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let holder = holder(server).await;
        let database = Rc::new(config(server, "spares").pipelined(50));
        let first = pid(&database).await;
        one_more(&database, 1).await;
        let waiting = ask(&database, LOCK);
        until_it_runs(&watcher, "spares", "88").await;
        // Sent behind the one that waits, and given up.
        let error = interrupted(database.query_one(ONE_MORE, &[&1])).await.unwrap_err();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Unknown, .. }), "{error:?}");
        for n in 0..20 {
            poll_and_drop(database.query_one(ONE_MORE, &[&n])).await;
        }
        let others: Vec<_> = (0..20).map(|_| ask(&database, "SELECT 1")).collect();
        yield_now().await.unwrap();
        holder.batch_execute("SELECT pg_advisory_unlock(88)").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), 1);
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), 1);
        }
        assert_eq!((one_more(&database, 6).await, pid(&database).await), (7, first));
    });
}

#[test]
fn interrupted_query_that_is_alone_is_cancelled() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let database = Rc::new(config(server, "alone").pipelined(50));
        let first = pid(&database).await;
        let asleep = ask(&database, "SELECT pg_sleep(3600)");
        until_it_runs(&watcher, "alone", "pg_sleep").await;
        asleep.request_cancel("enough");
        // One that comes meanwhile waits for the end of the other.
        yield_now().await.unwrap();
        assert_eq!(one_more(&database, 1).await, 2);
        let error = asleep.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Undone, .. }), "{error:?}");
        // Dropped, which the next query makes good.
        poll_and_drop(database.execute("SELECT pg_sleep(3600)", &[])).await;
        assert_eq!((one_more(&database, 2).await, pid(&database).await), (3, first));
        assert_eq!(sessions(&watcher, "alone").await.len(), 1);
    });
}

#[test]
fn lost_connection_fails_queries_under_way() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let holder = holder(server).await;
        let database = Rc::new(config(server, "lost").pipelined(3));
        let first = pid(&database).await;
        database.query("SELECT 1", &[]).await.unwrap();
        let mut tasks = vec![ask(&database, LOCK)];
        until_it_runs(&watcher, "lost", "88").await;
        tasks.extend((0..4).map(|_| ask(&database, "SELECT 1")));
        yield_now().await.unwrap();
        watcher.query("SELECT pg_terminate_backend($1)", &[&first]).await.unwrap();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap().map_err(|error| {
                assert!(matches!(error, Error::Lost { .. }), "{error:?}");
                error.fate()
            }));
        }
        // The last two had to wait for a permit, and were not sent before.
        let unknown = Err(Fate::Unknown);
        assert_eq!(outcomes, [unknown, unknown, unknown, Ok(1), Ok(1)]);
        assert_ne!(pid(&database).await, first);
        assert_eq!(sessions(&watcher, "lost").await.len(), 1);
        drop(holder);
    });
}

#[test]
fn lost_idle_connection_is_replaced() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let database = config(server, "replaced").pipelined(3);
        let first = pid(&database).await;
        watcher.query("SELECT pg_terminate_backend($1, 10000)", &[&first]).await.unwrap();
        let next = until("replaced", async || {
            let row = database.query_one(PID, &[]).await.ok()?;
            Some(row.get::<_, i32>(0))
        });
        assert_ne!(next.await, first);
    });
}

#[test]
fn queries_beyond_the_limit_wait() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let holder = holder(server).await;
        let database = Rc::new(config(server, "limit").pipelined(2));
        database.query("SELECT 1", &[]).await.unwrap();
        let first = ask(&database, LOCK);
        until_it_runs(&watcher, "limit", "88").await;
        let [second, third] = [ask(&database, "SELECT 1"), ask(&database, "SELECT 1")];
        yield_now().await.unwrap();
        third.request_cancel("enough");
        second.request_cancel("enough");
        assert_eq!(third.await.unwrap().unwrap_err().fate(), Fate::Undone);
        assert_eq!(second.await.unwrap().unwrap_err().fate(), Fate::Unknown);
        holder.batch_execute("SELECT pg_advisory_unlock(88)").await.unwrap();
        assert_eq!(first.await.unwrap().unwrap(), 1);
    });
}

#[test]
fn queries_without_a_server_fail_before_they_are_sent() {
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    run(async {
        let database = config(&server, "away").pipelined(2);
        database.query("SELECT 1", &[]).await.unwrap();
        let killer = config(&server, "killer").connect().await.unwrap();
        let kill = "COPY (SELECT 1) TO PROGRAM \
                    'cat > /dev/null; kill -QUIT $(head -n 1 postmaster.pid)'";
        drop(killer.batch_execute(kill).await);
        let refused = async || match database.query("SELECT 1", &[]).await {
            Err(error @ Error::Connect(_)) => Some(error),
            _ => None,
        };
        assert_eq!(until("no server", refused).await.fate(), Fate::Undone);
        // Also those that come before the next attempt, and those that are the next attempt.
        for _ in 0..10 {
            assert!(refused().await.is_some());
        }
    });
}

/// A deadline for each query, far shorter than some of them need.
#[test]
fn impatient_callers_get_their_own_answers() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let database = Rc::new(config(server, "impatient").pipelined(20));
        let text = "SELECT $1::INTEGER, pg_sleep($2)::TEXT";
        database.query(text, &[&0, &0.0_f64]).await.unwrap();
        let tasks: Vec<_> = (0..40)
            .map(|n: i32| {
                let database = database.clone();
                spawn(async move {
                    let mut answers = 0;
                    for _ in 0..10 {
                        let length = f64::from(n % 7) / 2_000.0;
                        let limit = Duration::from_millis(u64::from(n.unsigned_abs() % 5) + 1);
                        let values: [&(dyn pikake::postgres::types::ToSql + Sync); 2] =
                            [&n, &length];
                        let asked = timeout_after(limit, database.query_one(text, &values)).await;
                        if let Ok(Ok(row)) = asked {
                            assert_eq!(row.get::<_, i32>(0), n);
                            answers += 1;
                        }
                    }
                    answers
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(one_more(&database, 1).await, 2);
        sleep(Duration::from_millis(1)).await.unwrap();
        assert_eq!(sessions(&watcher, "impatient").await.len(), 1);
    });
}
