//! Resets: nobody waits for them, and no statement runs on a session that was not reset.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join;
use pikake::postgres::{Connection, Error, Fate, Lease, Pool};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};

use crate::{config, run, server, sessions, until, until_it_runs};

/// Everything that a program may leave in a session.
const DIRT: &str = "SET work_mem = '5MB'; SET statement_timeout = 60000; LISTEN dirt; \
    CREATE TEMP TABLE dirt (n INTEGER); PREPARE dirt AS SELECT 1; PREPARE \"DIRT\" AS SELECT 2; \
    DECLARE dirt CURSOR WITH HOLD FOR SELECT 1; SELECT pg_advisory_lock(71)";

/// What is left of it.
const LEFT: &str = "SELECT concat_ws(',', current_setting('work_mem'), \
    to_regclass('pg_temp.dirt')::TEXT, (SELECT count(*) FROM pg_listening_channels()), \
    (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), \
    (SELECT count(*) FROM pg_cursors WHERE name = 'dirt'), (SELECT count(*) FROM pg_locks \
    WHERE locktype = 'advisory' AND objid = 71 AND pid = pg_backend_pid()))";

const NOTHING: &str = "4MB,0,0,0,0";

async fn pid(connection: &Connection) -> i32 {
    connection.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn left(connection: &Connection) -> String {
    connection.query_one(LEFT, &[]).await.unwrap().get(0)
}

#[test]
fn return_frees_locks_without_another_use() {
    let Some(server) = server() else { return };
    run(async {
        let other = config(server, "watcher").connect().await.unwrap();
        let pool = config(server, "promptly").pool(1);
        let lease = pool.get().await.unwrap();
        lease.batch_execute(DIRT).await.unwrap();
        let dirty = pid(&lease).await;
        drop(lease);
        let lock = "SELECT pg_advisory_lock(71), pg_advisory_unlock(71)";
        other.query(lock, &[]).await.unwrap();
        let lease = pool.try_get().expect("it came back at once");
        assert_eq!((pid(&lease).await, left(&lease).await.as_str()), (dirty, NOTHING));
    });
}

/// The first statement of the next holder is sent before the answer to the reset.
#[test]
fn next_statement_follows_reset() {
    let Some(server) = server() else { return };
    run(async {
        let pool = config(server, "follows").pool(1);
        let lease = pool.get().await.unwrap();
        assert_eq!(left(&lease).await, NOTHING);
        let cached = lease.cached_statements();
        drop(lease);
        for statements in [DIRT, "PREPARE dirt AS SELECT 1", "BEGIN; SELECT 1 / 0"] {
            let lease = pool.try_get().unwrap();
            assert_eq!(
                lease.batch_execute(statements).await.is_err(),
                statements.contains("1 / 0")
            );
            drop(lease);
            let lease = pool.get().await.unwrap();
            assert_eq!(left(&lease).await, NOTHING, "{statements}");
            assert_eq!(lease.cached_statements(), cached, "prepared statements stay");
        }
        // As a prepared statement, by the holder itself, and by name.
        let lease = pool.try_get().unwrap();
        lease.execute("PREPARE dirt AS SELECT 1", &[]).await.unwrap();
        lease.batch_execute("DEALLOCATE dirt; DEALLOCATE ALL").await.unwrap();
        drop(lease);
        assert_eq!(left(&pool.get().await.unwrap()).await, NOTHING);
    });
}

#[test]
fn lease_that_sent_nothing_is_not_reset() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let pool = config(server, "unused").pool(1);
        let first = pid(&pool.get().await.unwrap()).await;
        drop(pool.get().await.unwrap());
        let changed = "SELECT state_change FROM pg_stat_activity WHERE pid = $1 AND state = 'idle' \
                       AND query LIKE '%DISCARD%'";
        let changed = async || watcher.query_opt(changed, &[&first]).await.unwrap().is_some();
        until("reset", async || changed().await.then_some(())).await;
        let at = "SELECT state_change::TEXT FROM pg_stat_activity WHERE pid = $1";
        let at = async || watcher.query_one(at, &[&first]).await.unwrap().get::<_, String>(0);
        let before = at().await;
        for _ in 0..3 {
            drop(pool.get().await.unwrap());
        }
        sleep(Duration::from_millis(20)).await.unwrap();
        assert_eq!(at().await, before);
    });
}

/// A pool whose connection is being reset, which lasts until the transaction of `holder` ends.
struct Stuck {
    holder: Connection,
    watcher: Connection,
    pool: Pool,
    pid: i32,
}

impl Stuck {
    async fn begin(name: &str) -> Self {
        let server = server().expect("the caller has looked");
        let holder = config(server, "holder").connect().await.unwrap();
        let watcher = config(server, "watcher").connect().await.unwrap();
        let create = format!("DROP TABLE IF EXISTS {name}; CREATE TABLE {name} (n INTEGER)");
        watcher.batch_execute(&create).await.unwrap();
        let pool = config(server, name).pool(1);
        let lease = pool.get().await.unwrap();
        let pid = pid(&lease).await;
        lease.batch_execute("CREATE TEMP TABLE stuck (n INTEGER)").await.unwrap();
        lease.prepare_cached(&Self::insert(name)).await.unwrap();
        let schema = "SELECT nspname::TEXT FROM pg_namespace WHERE oid = pg_my_temp_schema()";
        let schema: String = lease.query_one(schema, &[]).await.unwrap().get(0);
        holder.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.stuck")).await.unwrap();
        drop(lease);
        until_it_runs(&watcher, name, "DISCARD").await;
        Self { holder, watcher, pool, pid }
    }

    fn insert(name: &str) -> String {
        format!("INSERT INTO {name} VALUES (1)")
    }

    /// A statement of the next holder, which is sent behind the reset.
    async fn follow(&self, name: &str) -> Task<(Lease, Result<u64, Error>)> {
        let lease = self.pool.try_get().expect("it came back at once");
        let text = Self::insert(name);
        let task = spawn(async move {
            let result = lease.execute(&text, &[]).await;
            (lease, result)
        });
        yield_now().await.unwrap();
        task
    }

    async fn signal(&self, function: &str) {
        let signal = format!("SELECT {function}($1)");
        self.watcher.query(&signal, &[&self.pid]).await.unwrap();
    }

    async fn count(&self, name: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {name}");
        self.watcher.query_one(&count, &[]).await.unwrap().get(0)
    }
}

#[test]
fn statement_waits_for_slow_reset() {
    if server().is_none() {
        return;
    }
    run(async {
        let stuck = Stuck::begin("slow").await;
        let task = stuck.follow("slow").await;
        stuck.holder.batch_execute("ROLLBACK").await.unwrap();
        let (lease, result) = task.await.unwrap();
        assert_eq!((result.unwrap(), pid(&lease).await), (1, stuck.pid));
        assert_eq!(stuck.count("slow").await, 1);
    });
}

#[test]
fn failed_reset_runs_no_statement() {
    if server().is_none() {
        return;
    }
    run(async {
        for (name, signal) in [("refused", "pg_cancel_backend"), ("killed", "pg_terminate_backend")]
        {
            let stuck = Stuck::begin(name).await;
            let task = stuck.follow(name).await;
            stuck.signal(signal).await;
            let (lease, result) = task.await.unwrap();
            let error = result.unwrap_err();
            let Error::Lost { why: Some(why), fate } = &error else { panic!("{error:?}") };
            assert!(why.as_db_error().is_some(), "the report to the reset: {why}");
            assert!(*fate == Fate::Undone || name == "killed", "{error:?}");
            assert!(lease.is_closed());
            assert!(matches!(lease.query("SELECT 1", &[]).await, Err(Error::Lost { .. })));
            drop(lease);
            assert_ne!(pid(&stuck.pool.get().await.unwrap()).await, stuck.pid, "{name}");
            assert_eq!(stuck.count(name).await, 0, "{name}");
        }
    });
}

#[test]
fn failed_reset_replaces_idle_connection() {
    if server().is_none() {
        return;
    }
    run(async {
        for (name, signal) in
            [("idle_refused", "pg_cancel_backend"), ("idle_killed", "pg_terminate_backend")]
        {
            let stuck = Stuck::begin(name).await;
            stuck.signal(signal).await;
            let is_replaced = async || {
                let lease = stuck.pool.get().await.unwrap();
                let pid = lease.query_one("SELECT pg_backend_pid()", &[]).await.ok()?;
                (pid.get::<_, i32>(0) != stuck.pid).then_some(())
            };
            until("replaced", is_replaced).await;
        }
    });
}

/// The holder has locked what the reset drops, and does not give it back.
#[test]
fn reset_that_hangs_is_cancelled_with_its_pool() {
    if server().is_none() {
        return;
    }
    run(async {
        let Stuck { pool, watcher, holder, .. } = Stuck::begin("hangs").await;
        drop(pool);
        let is_cancelled = async || {
            let sessions = sessions(&watcher, "hangs").await;
            sessions.iter().all(|(state, _)| state != "active").then_some(())
        };
        until("cancelled", is_cancelled).await;
        drop(holder);
    });
}

/// A text that ends the failed transaction of the reset would run its other statements.
#[test]
fn text_is_sent_after_the_reset() {
    if server().is_none() {
        return;
    }
    run(async {
        let stuck = Stuck::begin("texts").await;
        let lease = stuck.pool.try_get().unwrap();
        let sent = spawn(async move {
            let text = format!("ROLLBACK; {}", Stuck::insert("texts"));
            let error = lease.batch_execute(&text).await.unwrap_err();
            (error, lease.execute(&Stuck::insert("texts"), &[]).await.unwrap_err())
        });
        yield_now().await.unwrap();
        stuck.signal("pg_cancel_backend").await;
        let (first, second) = sent.await.unwrap();
        assert_eq!((first.fate(), second.fate()), (Fate::Undone, Fate::Undone), "{first:?}");
        assert_eq!(stuck.count("texts").await, 0);
    });
}

/// The statement that ends a failed transaction is prepared, and another one is sent at once.
#[test]
fn second_statement_is_sent_after_the_reset() {
    if server().is_none() {
        return;
    }
    run(async {
        let stuck = Stuck::begin("second").await;
        let lease = stuck.pool.try_get().unwrap();
        let insert = Stuck::insert("second");
        let both = spawn(async move {
            join(lease.execute("ROLLBACK", &[]), lease.execute(&insert, &[])).await
        });
        yield_now().await.unwrap();
        stuck.signal("pg_cancel_backend").await;
        let (_, second) = both.await.unwrap();
        assert!(matches!(second, Err(Error::Lost { fate: Fate::Undone, .. })), "{second:?}");
        assert_eq!(stuck.count("second").await, 0);
    });
}

#[test]
fn request_to_cancel_spares_the_reset() {
    if server().is_none() {
        return;
    }
    run(async {
        let stuck = Stuck::begin("spared").await;
        let lease = stuck.pool.try_get().unwrap();
        let task = spawn(async move {
            let slept = timeout_after(
                Duration::from_millis(20),
                lease.execute("SELECT pg_sleep(3600)", &[]),
            );
            (slept.await.is_err(), lease)
        });
        sleep(Duration::from_millis(100)).await.unwrap();
        stuck.holder.batch_execute("ROLLBACK").await.unwrap();
        let (is_interrupted, lease) = task.await.unwrap();
        assert!(is_interrupted);
        assert_eq!((pid(&lease).await, left(&lease).await.as_str()), (stuck.pid, NOTHING));
    });
}

/// Two holders, of whom the second uses what the first has left.
async fn uses(pool: &Pool) -> Result<(), Error> {
    let Ok(mut lease) = pool.get().await else { return Ok(()) };
    lease.batch_execute(DIRT).await?;
    let transaction = lease.transaction().await?;
    transaction.execute("UPDATE pg_temp.dirt SET n = 1", &[]).await?;
    transaction.commit().await?;
    drop(lease);
    let Ok(lease) = pool.get().await else { return Ok(()) };
    assert_eq!(lease.query_one(LEFT, &[]).await?.get::<_, &str>(0), NOTHING);
    lease.execute("CREATE TEMP TABLE dirt AS SELECT 1", &[]).await?;
    drop(lease);
    let Ok(lease) = pool.get().await else { return Ok(()) };
    lease.execute("SET work_mem = '6MB'", &[]).await?;
    Ok(())
}

/// Interrupts `uses` at its first wait, at its second one, and so on; then drops it there.
#[test]
fn next_holder_is_clean_wherever_the_last_was_interrupted() {
    let Some(server) = server() else { return };
    run(async {
        for is_dropped in [false, true] {
            let pool = config(server, "everywhere").pool(1);
            for last in 1.. {
                let waits = Rc::new(Cell::new(0));
                let task = spawn({
                    let (pool, waits) = (pool.clone(), waits.clone());
                    async move {
                        let mut uses = pin!(uses(&pool));
                        poll_fn(|cx| {
                            let polled = uses.as_mut().poll(cx);
                            waits.set(waits.get() + u32::from(polled.is_pending()));
                            polled
                        })
                        .await
                    }
                });
                while waits.get() < last && !task.is_finished() {
                    yield_now().await.unwrap();
                }
                let is_over = task.is_finished();
                match is_dropped {
                    true => task.abort(),
                    false => task.request_cancel("enough"),
                }
                match task.await {
                    Ok(Ok(())) | Err(_) => {}
                    Ok(Err(error)) => assert!(error.is_interrupted(), "{last}: {error:?}"),
                }
                let lease = pool.get().await.unwrap();
                assert_eq!(left(&lease).await, NOTHING, "{last}");
                if is_over {
                    break;
                }
            }
            assert_eq!(pool.stats().created, 1, "no interruption costs a connection");
        }
    });
}

/// Statements that wait for the reset together are not in each other's way.
#[test]
fn interruption_behind_a_reset_leaves_other_statements_alone() {
    let Some(server) = server() else { return };
    run(async {
        let holder = config(server, "holder").connect().await.unwrap();
        let watcher = config(server, "watcher").connect().await.unwrap();
        let name = "two_behind_a_reset";
        let pool = config(server, name).pool(1);
        let lease = pool.get().await.unwrap();
        lease.batch_execute("CREATE TEMP TABLE stuck (n INTEGER)").await.unwrap();
        let schema = "SELECT nspname::TEXT FROM pg_namespace WHERE oid = pg_my_temp_schema()";
        let schema: String = lease.query_one(schema, &[]).await.unwrap().get(0);
        holder.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.stuck")).await.unwrap();
        drop(lease);
        until_it_runs(&watcher, name, "DISCARD").await;
        let lease = pool.try_get().unwrap();
        let both = spawn(async move {
            join(
                timeout_after(Duration::from_millis(20), lease.execute("SELECT 1", &[])),
                lease.execute("SELECT pg_sleep(0.1)", &[]),
            )
            .await
        });
        sleep(Duration::from_millis(100)).await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
        let (first, second) = both.await.unwrap();
        first.unwrap_err();
        assert_eq!(second.unwrap(), 1);
    });
}
