//! Transactions: committed with the server's word, and rolled back however they are left.

use std::cell::Cell;
use std::time::Duration;

use pikake::postgres::{Connection, Error, Fate};
use pikake::testing::Injector;
use pikake::{sleep, spawn, timeout_after};

use crate::{config, interrupted, poll_and_drop, run, server, sessions, until, until_it_runs};

async fn table(connection: &Connection, name: &str) {
    let text = format!("DROP TABLE IF EXISTS {name}; CREATE TABLE {name} (n INTEGER)");
    connection.batch_execute(&text).await.unwrap();
}

async fn numbers(connection: &Connection, table: &str) -> Vec<i32> {
    let rows = connection.query(&format!("SELECT n FROM {table} ORDER BY n"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The state of a test's only session.
async fn state(watcher: &Connection, name: &str) -> String {
    sessions(watcher, name).await.remove(0).0
}

#[test]
fn commit_keeps_and_drop_discards() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "kept").await;
        let mut connection = config(server, "kept").connect().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO kept VALUES (1)", &[]).await.unwrap();
        transaction.commit().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO kept VALUES (2)", &[]).await.unwrap();
        drop(transaction);
        let transaction = connection.transaction_as("ISOLATION LEVEL SERIALIZABLE").await.unwrap();
        transaction.execute("INSERT INTO kept VALUES (3)", &[]).await.unwrap();
        transaction.rollback().await.unwrap();
        assert_eq!(state(&watcher, "kept").await, "idle");
        // The next statement is outside of any transaction.
        connection.execute("INSERT INTO kept VALUES (4)", &[]).await.unwrap();
        assert_eq!(numbers(&watcher, "kept").await, [1, 4]);
    });
}

#[test]
fn savepoint_is_rolled_back_alone() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "saved").await;
        let mut connection = config(server, "saved").connect().await.unwrap();
        let mut transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO saved VALUES (1)", &[]).await.unwrap();
        let savepoint = transaction.savepoint().await.unwrap();
        savepoint.execute("INSERT INTO saved VALUES (2)", &[]).await.unwrap();
        assert!(savepoint.execute("INSERT INTO nowhere VALUES (2)", &[]).await.is_err());
        drop(savepoint);
        let mut savepoint = transaction.savepoint().await.unwrap();
        savepoint.execute("INSERT INTO saved VALUES (3)", &[]).await.unwrap();
        let inner = savepoint.savepoint().await.unwrap();
        inner.execute("INSERT INTO saved VALUES (4)", &[]).await.unwrap();
        inner.rollback().await.unwrap();
        savepoint.commit().await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(numbers(&watcher, "saved").await, [1, 3]);
    });
}

#[test]
fn failed_transaction_is_not_committed() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "failed").await;
        let mut connection = config(server, "failed").connect().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO failed VALUES (1)", &[]).await.unwrap();
        assert!(transaction.execute("INSERT INTO failed VALUES (1 / 0)", &[]).await.is_err());
        assert!(matches!(transaction.commit().await, Err(Error::Aborted)));
        assert_eq!(state(&watcher, "failed").await, "idle");
        assert!(numbers(&watcher, "failed").await.is_empty());
    });
}

#[test]
fn interrupted_begin_leaves_no_transaction() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "begun").await;
        let mut connection = config(server, "begun").connect().await.unwrap();
        for n in 0..20 {
            match n % 2 {
                0 => poll_and_drop(connection.transaction()).await,
                // Now and then the server answers first.
                _ => drop(timeout_after(Duration::ZERO, connection.transaction()).await),
            }
            connection.execute("INSERT INTO begun VALUES ($1)", &[&n]).await.unwrap();
            assert_eq!(numbers(&watcher, "begun").await.len(), n as usize + 1);
        }
        assert_eq!(state(&watcher, "begun").await, "idle");
    });
}

#[test]
fn interrupted_commit_tells_its_outcome() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "slow").await;
        // The COMMIT waits for a lock.
        let slow = "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                    $$ BEGIN PERFORM pg_advisory_lock(98); RETURN NULL; END $$; \
                    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED \
                    FOR EACH ROW EXECUTE FUNCTION slow()";
        watcher.batch_execute(slow).await.unwrap();
        watcher.query("SELECT pg_advisory_lock(98)", &[]).await.unwrap();
        let mut connection = config(server, "slow").connect().await.unwrap();
        let task = spawn(async move {
            let transaction = connection.transaction().await.unwrap();
            transaction.execute("INSERT INTO slow VALUES (1)", &[]).await.unwrap();
            transaction.commit().await.unwrap_err()
        });
        until_it_runs(&watcher, "slow", "COMMIT").await;
        task.request_cancel("enough");
        watcher.query("SELECT pg_advisory_unlock(98)", &[]).await.unwrap();
        let error = task.await.unwrap();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Completed, .. }), "{error:?}");
        assert_eq!(numbers(&watcher, "slow").await, [1]);
    });
}

#[test]
fn interrupted_rollback_before_commit_commits_nothing() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "early").await;
        let mut connection = config(server, "early").connect().await.unwrap();
        let mut transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO early VALUES (1)", &[]).await.unwrap();
        drop(transaction.savepoint().await.unwrap());
        let error = interrupted(transaction.commit()).await.unwrap_err();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Undone, .. }), "{error:?}");
        connection.query("SELECT 1", &[]).await.unwrap();
        assert!(numbers(&watcher, "early").await.is_empty());
    });
}

/// The request of the rows is answered with the first of them, and the statement fails later.
#[test]
fn commit_knows_that_interrupted_rows_failed() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "streamed").await;
        let mut connection = config(server, "streamed").connect().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        transaction.execute("INSERT INTO streamed VALUES (1)", &[]).await.unwrap();
        let rows = "SELECT generate_series(1, 5000000)";
        transaction.prepare_cached(rows).await.unwrap();
        let error = interrupted(transaction.query_rows(rows, &[])).await.unwrap_err();
        assert!(matches!(error, Error::Interrupted { fate: Fate::Unknown, .. }), "{error:?}");
        let is_committed = transaction.commit().await.is_ok();
        assert_eq!(is_committed, !numbers(&watcher, "streamed").await.is_empty());
        assert!(!is_committed, "the request to cancel came too late");
    });
}

/// However the end of a savepoint is awaited, the transaction around it goes on.
#[test]
fn interrupted_end_of_savepoint_spares_the_transaction() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "nested").await;
        let mut connection = config(server, "nested").connect().await.unwrap();
        let mut transaction = connection.transaction().await.unwrap();
        for n in 0..6 {
            let savepoint = transaction.savepoint().await.unwrap();
            let text = "INSERT INTO nested VALUES ($1)";
            savepoint.execute(text, &[&n]).await.unwrap();
            match n {
                0 => poll_and_drop(savepoint.commit()).await,
                1 => {
                    let error = interrupted(savepoint.commit()).await.unwrap_err();
                    let is_known =
                        matches!(error, Error::Interrupted { fate: Fate::Completed, .. });
                    assert!(is_known, "{error:?}");
                }
                2 => assert!(interrupted(savepoint.rollback()).await.is_err()),
                3 => poll_and_drop(savepoint.rollback()).await,
                4 => {
                    assert!(
                        savepoint.execute("INSERT INTO nowhere VALUES (1)", &[]).await.is_err()
                    );
                    assert!(matches!(savepoint.commit().await, Err(Error::Aborted)));
                }
                _ => savepoint.commit().await.unwrap(),
            }
            transaction.execute(text, &[&(10 + n)]).await.unwrap();
        }
        transaction.commit().await.unwrap();
        let expected = [0, 1, 5, 10, 11, 12, 13, 14, 15];
        assert_eq!(numbers(&watcher, "nested").await, expected);
    });
}

/// Makes each `COMMIT` that inserts into a table wait for an advisory lock.
async fn commits_wait_for(watcher: &Connection, table: &str, lock: i32) {
    let slow = format!(
        "CREATE OR REPLACE FUNCTION {table}() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_lock_shared({lock}); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION {table}()"
    );
    watcher.batch_execute(&slow).await.unwrap();
    watcher.query("SELECT pg_advisory_lock($1)", &[&i64::from(lock)]).await.unwrap();
}

#[test]
fn dropped_commit_is_not_cancelled() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "late").await;
        commits_wait_for(&watcher, "late", 97).await;
        let names = ["late_next", "late_close", "late_drop"];
        let mut waits = Vec::new();
        for (n, name) in (0..).zip(names) {
            let mut connection = config(server, name).connect().await.unwrap();
            let transaction = connection.transaction().await.unwrap();
            transaction.execute("INSERT INTO late VALUES ($1)", &[&n]).await.unwrap();
            poll_and_drop(transaction.commit()).await;
            until_it_runs(&watcher, name, "COMMIT").await;
            waits.push(spawn(async move {
                match n {
                    0 => drop(connection.query("SELECT 1", &[]).await.unwrap()),
                    1 => connection.close().await.unwrap(),
                    _ => drop(connection),
                }
            }));
        }
        // A chance for requests to cancel, if there were any.
        sleep(Duration::from_millis(200)).await.unwrap();
        assert!(!waits[0].is_finished() && !waits[1].is_finished());
        watcher.query("SELECT pg_advisory_unlock(97)", &[]).await.unwrap();
        for wait in waits {
            wait.await.unwrap();
        }
        let all = async || (numbers(&watcher, "late").await == [0, 1, 2]).then_some(());
        until("three rows", all).await;
    });
}

/// A cancel or a deadline at each wait: the row is there if and only if the program knows so, and
/// no session stays.
#[test]
fn interruption_anywhere_leaves_no_transaction() {
    let Some(server) = server() else { return };
    run(async {
        let watcher = config(server, "watcher").connect().await.unwrap();
        table(&watcher, "anywhere").await;
    });
    let config_of_runs = config(server, "anywhere");
    let committed = Cell::new(None);
    let report = Injector::new().patience(Duration::from_millis(100)).run(
        || {
            committed.set(Some(false));
            async {
                let mut connection = config_of_runs.connect().await?;
                let transaction = connection.transaction().await?;
                transaction.execute("INSERT INTO anywhere VALUES (1)", &[]).await?;
                let outcome = transaction.commit().await;
                committed.set(match &outcome {
                    Ok(()) | Err(Error::Interrupted { fate: Fate::Completed, .. }) => Some(true),
                    // Nobody knows.
                    Err(Error::Interrupted { fate: Fate::Unknown, .. }) => None,
                    Err(_) => Some(false),
                });
                outcome
            }
        },
        |_| {
            run(async {
                let watcher = config(server, "watcher").connect().await.unwrap();
                let is_gone =
                    async || sessions(&watcher, "anywhere").await.is_empty().then_some(());
                until("no session", is_gone).await;
                let found = !numbers(&watcher, "anywhere").await.is_empty();
                assert!(committed.get().is_none_or(|known| known == found), "found: {found}");
                watcher.batch_execute("TRUNCATE anywhere").await.unwrap();
            });
        },
    );
    assert!(report.suspensions >= 4 && report.cancels > 0 && report.timeouts > 0, "{report:?}");
}
