//! Statements whose wait is interrupted or dropped: the server ends them, and the connection can be
//! used.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use pikake::postgres::{CANCEL_WITHIN, Connection, Error, Fate};
use pikake::time::Instant;
use pikake::{spawn, timeout_after};

use crate::{config, interrupted, poll_and_drop, run, server, sessions, until, until_it_runs};

const SLEEP: &str = "SELECT pg_sleep(3600)";

async fn answers(connection: &Connection) {
    assert_eq!(connection.query_one("SELECT 7", &[]).await.unwrap().get::<_, i32>(0), 7);
}

async fn is_asleep(watcher: &Connection, name: &str) -> bool {
    let sessions = sessions(watcher, name).await;
    sessions.iter().any(|(state, query)| state == "active" && query.contains("pg_sleep"))
}

#[test]
fn interrupted_statement_is_gone_from_the_server() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "interrupted").connect().await.unwrap();
        let task = spawn(async move {
            let error = connection.execute(SLEEP, &[]).await.unwrap_err();
            (connection, error)
        });
        until_it_runs(&watcher, "interrupted", SLEEP).await;
        task.request_cancel("enough");
        let (connection, error) = task.await.unwrap();
        let Error::Interrupted { why, fate: Fate::Undone } = error else { panic!("{error:?}") };
        assert_eq!(why.reason(), Some("enough"));
        // The call has waited for that.
        assert!(!is_asleep(&watcher, "interrupted").await);
        answers(&connection).await;
    });
}

#[test]
fn deadline_cancels_statement() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "deadline").connect().await.unwrap();
        for milliseconds in [0, 1, 5, 50] {
            let limit = Duration::from_millis(milliseconds);
            assert!(timeout_after(limit, connection.execute(SLEEP, &[])).await.is_err());
            assert!(!is_asleep(&watcher, "deadline").await);
            answers(&connection).await;
        }
    });
}

#[test]
fn dropped_statement_ends_before_the_next() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "dropped").connect().await.unwrap();
        connection.prepare_cached(SLEEP).await.unwrap();
        poll_and_drop(connection.execute(SLEEP, &[])).await;
        until_it_runs(&watcher, "dropped", SLEEP).await;
        answers(&connection).await;
        assert!(!is_asleep(&watcher, "dropped").await);
        // Ended already, or never sent: the request to cancel does not hit a later statement.
        for _ in 0..50 {
            poll_and_drop(connection.query("SELECT 1", &[])).await;
            answers(&connection).await;
            answers(&connection).await;
        }
    });
}

#[test]
fn dropped_connection_cancels_its_statement() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "gone").connect().await.unwrap();
        connection.prepare_cached(SLEEP).await.unwrap();
        poll_and_drop(connection.execute(SLEEP, &[])).await;
        until_it_runs(&watcher, "gone", SLEEP).await;
        drop(connection);
        until("no session", async || sessions(&watcher, "gone").await.is_empty().then_some(()))
            .await;
    });
}

#[test]
fn closed_connection_leaves_no_session() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "closed").connect().await.unwrap();
        connection.prepare_cached(SLEEP).await.unwrap();
        poll_and_drop(connection.execute(SLEEP, &[])).await;
        connection.close().await.unwrap();
        until("no session", async || sessions(&watcher, "closed").await.is_empty().then_some(()))
            .await;
    });
}

#[test]
fn interruption_spares_other_statements() {
    let Some(server) = server() else { return };
    run(async {
        let holder = config(server, "holder").connect().await.unwrap();
        let connection = config(server, "siblings").connect().await.unwrap();
        let (locking, unlocking) = ("SELECT pg_advisory_lock(99)", "SELECT pg_advisory_unlock(99)");
        holder.query(locking, &[]).await.unwrap();
        for text in [locking, "SELECT 1"] {
            connection.prepare_cached(text).await.unwrap();
        }
        let mut long = pin!(connection.query(locking, &[]));
        let sent = poll_fn(|cx| Poll::Ready(long.as_mut().poll(cx).is_pending()));
        assert!(sent.await);
        let short = timeout_after(Duration::from_millis(20), connection.query("SELECT 1", &[]));
        assert!(short.await.is_err(), "it waits behind the other");
        holder.query(unlocking, &[]).await.unwrap();
        assert_eq!(long.await.unwrap().len(), 1);
        answers(&connection).await;
    });
}

#[test]
fn statement_that_ends_first_is_completed() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "completed").connect().await.unwrap();
        // Takes the request to cancel for its own end.
        let stubborn = "CREATE FUNCTION pg_temp.stubborn() RETURNS void LANGUAGE plpgsql AS $$ \
                        BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN END $$";
        connection.batch_execute(stubborn).await.unwrap();
        let task = spawn(async move {
            connection.execute("SELECT pg_temp.stubborn()", &[]).await.unwrap_err()
        });
        until_it_runs(&watcher, "completed", "stubborn").await;
        task.request_cancel("enough");
        let error = task.await.unwrap();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Completed, .. }), "{error:?}");
    });
}

/// The server prepares the statement before the request to cancel arrives, and does not run it.
#[test]
fn statement_interrupted_while_prepared_is_undone() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let create = "DROP TABLE IF EXISTS unsent; CREATE TABLE unsent (n INTEGER)";
        watcher.batch_execute(create).await.unwrap();
        for n in 0..5 {
            let connection = config(server, "unsent").connect().await.unwrap();
            let text = format!("INSERT INTO unsent VALUES ({n})");
            // The first wait is that for the preparation.
            let error = interrupted(connection.execute(&text, &[])).await.unwrap_err();
            assert!(matches!(error, Error::Interrupted { fate: Fate::Undone, .. }), "{error:?}");
        }
        assert!(watcher.query("SELECT n FROM unsent", &[]).await.unwrap().is_empty());
    });
}

#[test]
fn silent_server_costs_the_connection() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        let connection = config(server, "silent").connect().await.unwrap();
        let pid = connection.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
        let pid: i32 = pid.get(0);
        connection.prepare_cached(SLEEP).await.unwrap();
        let signal = |name: &str| {
            format!("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; kill -{name} {pid}'")
        };
        let task = spawn(async move {
            let error = connection.execute(SLEEP, &[]).await.unwrap_err();
            (connection, error)
        });
        until_it_runs(&watcher, "silent", SLEEP).await;
        watcher.batch_execute(&signal("STOP")).await.unwrap();
        let begun = Instant::now();
        task.request_cancel("enough");
        let (connection, error) = task.await.unwrap();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Unknown, .. }), "{error:?}");
        assert!(begun.elapsed() >= CANCEL_WITHIN);
        assert!(connection.is_closed());
        assert!(matches!(connection.query("SELECT 1", &[]).await, Err(Error::Lost { .. })));
        drop(connection);
        watcher.batch_execute(&signal("CONT")).await.unwrap();
        until("no session", async || sessions(&watcher, "silent").await.is_empty().then_some(()))
            .await;
    });
}
