//! Pools: the next holder finds nothing of the last one's, and servers that go away cost no more
//! than their connections.

use std::time::Duration;

use pikake::postgres::{Config, Connection, Lease, Pool, Reset};
use pikake::{spawn, timeout_after};
use xtask::{Kind, Server};

use crate::{config, poll_and_drop, run, server, sessions, until, until_it_runs};

async fn pid(connection: &Connection) -> i32 {
    connection.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// The port of the server.
async fn port(connection: &Connection) -> i32 {
    connection.query_one("SELECT inet_server_port()", &[]).await.unwrap().get(0)
}

/// A configuration for the first of two servers that allows writes.
fn read_write(first: &Server, second: &Server) -> Config {
    let ports = format!("{},{}", first.port(), second.port());
    let hosts = "host=127.0.0.1,127.0.0.1 user=pikake dbname=postgres";
    format!("{hosts} port={ports} target_session_attrs=read-write").parse().unwrap()
}

async fn text(connection: &Connection, question: &str) -> String {
    connection.query_one(question, &[]).await.unwrap().get(0)
}

/// A connection of a pool whose server may be away for a moment.
async fn working(pool: &Pool) -> Lease {
    let try_it = async || {
        let lease = pool.get().await.ok()?;
        lease.query("SELECT 1", &[]).await.ok().map(|_| lease)
    };
    until("a working connection", try_it).await
}

#[test]
fn next_holder_finds_a_fresh_session() {
    let Some(server) = server() else { return };
    run(async {
        let admin = config(server, "watcher").connect().await.unwrap();
        admin.batch_execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest").await.unwrap();
        let pool = config(server, "dirty").pool(1);
        let dirty = pool.get().await.unwrap();
        let first = pid(&dirty).await;
        dirty.query("SELECT 1 AS kept", &[]).await.unwrap();
        let cached = dirty.cached_statements();
        let dirt = "SET search_path = nowhere; SET application_name = 'other'; \
                    CREATE TEMP TABLE dirt (n INTEGER); SELECT pg_advisory_lock(7); LISTEN dirt; \
                    DECLARE dirt CURSOR WITH HOLD FOR SELECT 1; SET SESSION AUTHORIZATION guest; SET ROLE guest; BEGIN";
        dirty.batch_execute(dirt).await.unwrap();
        drop(dirty);

        let clean = pool.get().await.unwrap();
        assert_eq!(pid(&clean).await, first, "the same connection");
        assert!(clean.cached_statements() >= cached, "prepared statements stay");
        assert_eq!(text(&clean, "SHOW search_path").await, "\"$user\", public");
        assert_eq!(text(&clean, "SHOW application_name").await, "dirty");
        assert_eq!(text(&clean, "SELECT session_user || current_user").await, "pikakepikake");
        let left = "SELECT concat_ws(',', to_regclass('pg_temp.dirt')::TEXT, \
                    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
                    (SELECT count(*) FROM pg_cursors WHERE name = 'dirt'), \
                    (SELECT count(*) FROM pg_listening_channels()))";
        assert_eq!(text(&clean, left).await, "0,0,0");
        assert_eq!(sessions(&admin, "dirty").await[0].0, "idle");
    });
}

#[test]
fn unfinished_work_ends_before_the_next_holder() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        for reset in [Reset::Session, Reset::Transaction] {
            let name = format!("unfinished{reset:?}");
            let pool = config(server, &name).reset(reset).pool(1);
            let first = pid(&pool.get().await.unwrap()).await;
            let settled = async |what: &str| {
                let lease = pool.get().await.unwrap();
                assert_eq!(sessions(&watcher, &name).await.len(), 1, "{what}");
                assert_eq!(sessions(&watcher, &name).await[0].0, "idle", "{what}");
                assert_eq!(pid(&lease).await, first, "{what}");
            };

            let mut lease = pool.get().await.unwrap();
            poll_and_drop(lease.transaction()).await;
            drop(lease);
            settled("dropped in BEGIN").await;

            let mut lease = pool.get().await.unwrap();
            drop(timeout_after(Duration::ZERO, lease.transaction()).await);
            drop(lease);
            settled("interrupted in BEGIN").await;

            let lease = pool.get().await.unwrap();
            lease.batch_execute("BEGIN").await.unwrap();
            assert!(lease.batch_execute("SELECT nonsense").await.is_err());
            drop(lease);
            settled("failed").await;

            let lease = pool.get().await.unwrap();
            lease.client().batch_execute("BEGIN").await.unwrap();
            drop(lease);
            settled("past the connection").await;

            let mut lease = pool.get().await.unwrap();
            std::mem::forget(lease.transaction().await.unwrap());
            drop(lease);
            settled("forgotten").await;

            let task = spawn({
                let pool = pool.clone();
                async move {
                    let mut lease = pool.get().await.unwrap();
                    let transaction = lease.transaction().await.unwrap();
                    drop(transaction.execute("SELECT pg_sleep(3600)", &[]).await);
                }
            });
            until_it_runs(&watcher, &name, "pg_sleep").await;
            task.abort();
            settled("aborted").await;

            let lease = pool.get().await.unwrap();
            let mut rows =
                lease.query_rows("SELECT generate_series(1, $1)", &[&i32::MAX]).await.unwrap();
            rows.next().await.unwrap();
            drop(rows);
            drop(lease);
            settled("rows").await;
        }
    });
}

/// The client of tokio-postgres is used once more after the connection has asked for the status.
#[test]
fn request_past_the_connection_leaves_no_transaction() {
    let Some(server) = server() else { return };
    run(async {
        for reset in [Reset::Session, Reset::Transaction] {
            let pool = config(server, "past").reset(reset).pool(1);
            let lease = pool.get().await.unwrap();
            let first = pid(&lease).await;
            let client = lease.client();
            poll_and_drop(lease.query("SELECT 1", &[])).await;
            lease.query("SELECT 1", &[]).await.unwrap();
            poll_and_drop(client.batch_execute("BEGIN")).await;
            drop(lease);
            let lease = pool.get().await.unwrap();
            assert_eq!(pid(&lease).await, first);
            let error = lease.batch_execute("SAVEPOINT outside").await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "25P01", "no transaction");
        }
    });
}

#[test]
fn connection_without_the_drivers_statements_is_replaced() {
    let Some(server) = server() else { return };
    run(async {
        let pool = config(server, "forgetful").pool(1);
        let lease = pool.get().await.unwrap();
        let first = pid(&lease).await;
        let types = "DROP TYPE IF EXISTS mood, hue; CREATE TYPE mood AS ENUM ('fine'); CREATE TYPE hue AS ENUM ('red')";
        lease.batch_execute(types).await.unwrap();
        lease.query("SELECT 'fine'::mood", &[]).await.unwrap();
        lease.batch_execute("DEALLOCATE ALL").await.unwrap();
        // The driver asks for the other type by a statement that is gone.
        let error = lease.query("SELECT 'red'::hue", &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "26000");
        drop(lease);
        let lease = pool.get().await.unwrap();
        assert_ne!(pid(&lease).await, first);
        lease.query("SELECT 'red'::hue", &[]).await.unwrap();
    });
}

#[test]
fn light_reset_keeps_settings() {
    let Some(server) = server() else { return };
    run(async {
        let pool = config(server, "light").reset(Reset::Transaction).pool(1);
        let lease = pool.get().await.unwrap();
        lease.batch_execute("SET work_mem = '5MB'").await.unwrap();
        drop(lease);
        let lease = pool.try_get().expect("it came back at once");
        assert_eq!(text(&lease, "SHOW work_mem").await, "5MB");
    });
}

#[test]
fn dead_connections_are_not_handed_out() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let pool = config(server, "dead").pool(3);
        let leases = [pool.get().await, pool.get().await, pool.get().await];
        drop(leases);
        let terminate = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'dead'";
        watcher.query(terminate, &[]).await.unwrap();
        for _ in 0..3 {
            pool.get().await.unwrap().query("SELECT 1", &[]).await.unwrap();
        }
        // In the middle of a statement: the error tells why.
        let lease = pool.get().await.unwrap();
        let task = spawn(async move { lease.query("SELECT pg_sleep(3600)", &[]).await });
        until_it_runs(&watcher, "dead", "pg_sleep").await;
        watcher.query(terminate, &[]).await.unwrap();
        let error = task.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("administrator"), "{error}");
        pool.get().await.unwrap().query("SELECT 1", &[]).await.unwrap();
    });
}

#[test]
fn pool_recovers_from_a_crash() {
    // A server of its own, since all of its sessions end.
    let Some(server) = Server::start_or_skip(Kind::Postgres) else { return };
    run(async {
        let pool = config(&server, "crash").pool(4);
        let busy = pool.get().await.unwrap();
        let asleep = spawn(async move { busy.query("SELECT pg_sleep(3600)", &[]).await });
        let mut lease = pool.get().await.unwrap();
        let victim = pid(&lease).await;
        let mut transaction = lease.transaction().await.unwrap();
        let savepoint = transaction.savepoint().await.unwrap();
        // The server ends all sessions when one of them dies like this.
        let killer = config(&server, "killer").connect().await.unwrap();
        let kill = format!("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; kill -9 {victim}'");
        drop(killer.batch_execute(&kill).await);
        assert!(savepoint.query("SELECT 1", &[]).await.is_err());
        drop(savepoint);
        assert!(transaction.commit().await.is_err());
        assert!(lease.is_closed());
        drop(lease);
        assert!(asleep.await.unwrap().is_err());
        let fresh = working(&pool).await;
        assert_ne!(pid(&fresh).await, victim);
    });
}

#[test]
fn pool_leaves_a_server_that_became_read_only() {
    let Some(first) = Server::start_or_skip(Kind::Postgres) else { return };
    let Some(second) = server() else { return };
    run(async {
        let pool = read_write(&first, second).pool(1);
        assert_eq!(port(&pool.get().await.unwrap()).await, i32::from(first.port()));
        let admin = config(&first, "admin").connect().await.unwrap();
        let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
        admin.batch_execute(read_only).await.unwrap();
        admin.query("SELECT pg_reload_conf()", &[]).await.unwrap();
        let refused = async || {
            let lease = pool.get().await.unwrap();
            let error = lease.batch_execute("CREATE SEQUENCE IF NOT EXISTS written").await.err()?;
            Some(error.code().unwrap().code().to_owned())
        };
        // The server reads its configuration a moment later.
        assert_eq!(until("read-only", refused).await, "25006");
        assert_eq!(port(&pool.get().await.unwrap()).await, i32::from(second.port()));
    });
}

#[test]
fn pool_follows_a_failover() {
    let Some(first) = Server::start_or_skip(Kind::Postgres) else { return };
    let Some(second) = server() else { return };
    run(async {
        let pool = read_write(&first, second).pool(2);
        let [one, two] = [pool.get().await.unwrap(), pool.get().await.unwrap()];
        assert_eq!([port(&one).await, port(&two).await], [i32::from(first.port()); 2]);
        drop(one);
        // The server stops while one connection is idle and the other is out.
        drop(first);
        assert!(two.query("SELECT 1", &[]).await.is_err());
        drop(two);
        for _ in 0..2 {
            let lease = working(&pool).await;
            assert_eq!(port(&lease).await, i32::from(second.port()));
        }
    });
}
