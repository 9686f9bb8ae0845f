//! One connection that the tasks of a kernel share, with many queries under way.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use pikake_pool::{GetError, Verify};
use pikake_sync::{Mutex, Semaphore};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::config::{Config, Reset};
use crate::connection::Connection;
use crate::error::{ConnectError, Error, Fate};
use crate::pool::{Lease, Manager, Pool};

/// One connection that the tasks of a kernel share: the queries of many tasks are under way at
/// once.
///
/// A query is sent without waiting for the answers to those before it, and queries of the same
/// moment are one write. The server runs them one after the other, in the order in which they were
/// sent. So many short queries cost less than over a pool, and a long one delays those behind it.
///
/// Statements are prepared once and kept, as those of a [`Connection`]. A query whose statement is
/// not prepared yet is sent after that.
///
/// The first query connects. When the connection is lost, the next query connects again. After a
/// failed attempt, queries fail at once until the next attempt is due, as with a
/// [pool](pikake_pool::Builder::backoff).
///
/// # No transactions and no session
///
/// Each query is a transaction of its own, which ends with it. What a query left in the session
/// would be there for all others. So statements that begin or end transactions, change the session,
/// or copy are refused ([`Error::Config`]): `BEGIN`, `COMMIT`, `SAVEPOINT`, `SET`, `LISTEN`,
/// `PREPARE`, `DECLARE`, `COPY` and their like.
///
/// Functions can do the same, and so can `DO` and `CALL`, which may also commit in their middle:
/// none of them is looked into. Do not run those with an effect on the session, as
/// `set_config(…, false)` or `pg_advisory_lock`, nor create temporary tables (also by `SELECT …
/// INTO TEMP`). The connection is never reset.
///
/// # Cancellation
///
/// Each query is an interruption point, and its error tells what became of it ([`Fate`]). An
/// interrupted or dropped query does not disturb others:
///
/// * A query that has not been sent is not sent.
/// * While others are under way, the query is not cancelled on the server, since a request to
///   cancel names a session and not a query. The call returns at once with [`Fate::Unknown`], and
///   the answer is discarded.
/// * A query that is alone is cancelled as a statement of a [`Connection`]. Later queries wait for
///   that. A query that was dropped is cancelled before the next one, unless others were under way.
///
/// # Errors
///
/// An error of one query concerns no other. When the connection is lost, all queries under way fail
/// with [`Error::Lost`] and [`Fate::Unknown`]: the server may have run them, or not. A query that
/// has not been sent is sent over the next connection; if there is none, the error is
/// [`Error::Connect`].
///
/// # Examples
///
/// ```no_run
/// use pikake::postgres::{Config, Error};
/// use pikake::spawn;
/// use std::rc::Rc;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config = "postgres://shop@localhost/shop".parse()?;
/// let database = Rc::new(config.pipelined(100));
/// let mut prices = Vec::new();
/// for name in ["tea", "jam"] {
///     let database = database.clone();
///     prices.push(spawn(async move {
///         let price = "SELECT price FROM item WHERE name = $1";
///         Ok::<i32, Error>(database.query_one(price, &[&name]).await?.get(0))
///     }));
/// }
/// for price in prices {
///     println!("{}", price.await??);
/// }
/// # Ok(()) }
/// ```
pub struct Pipelined {
    /// Makes the connections, and ends them.
    pool: Pool,
    /// A query that runs keeps its connection, although another one has replaced it.
    connection: RefCell<Option<Rc<Lease>>>,
    /// Held by the query that connects.
    connecting: Mutex<()>,
    /// A permit for each query that may be under way.
    permits: Semaphore,
}

impl Config {
    /// One connection that tasks share, with at most `limit` queries under way. Further queries
    /// wait, and are sent in the order of their calls.
    ///
    /// # Panics
    ///
    /// If the limit is zero.
    #[track_caller]
    pub fn pipelined(self, limit: usize) -> Pipelined {
        assert!(limit > 0, "one query at least is under way: the limit is at least 1");
        // Nothing is left in a session, and a connection that is lost is found by its queries.
        let manager = Manager::new(self.reset(Reset::Transaction));
        let pool = Pool::builder(manager).name("postgres pipelined").limit(usize::MAX);
        Pipelined {
            pool: pool.wait(None).create_within(None).verify(Verify::Never).build(),
            connection: RefCell::default(),
            connecting: Mutex::new(()).named("postgres connecting"),
            permits: Semaphore::bounded(limit).named("postgres queries"),
        }
    }
}

impl Pipelined {
    /// Runs a query, and returns its rows.
    ///
    /// # Errors
    ///
    /// See [`Pipelined`].
    ///
    /// # Panics
    ///
    /// If polled outside a task, or in another kernel than that of the first query.
    pub async fn query(
        &self,
        query: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.run(query, async |connection| connection.query(query, values).await).await
    }

    /// Runs a query that returns one row.
    ///
    /// # Errors
    ///
    /// See [`Pipelined`]; also if there is another number of rows.
    ///
    /// # Panics
    ///
    /// As [`query`](Self::query).
    pub async fn query_one(
        &self,
        query: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        self.run(query, async |connection| connection.query_one(query, values).await).await
    }

    /// Runs a query that returns one row or none.
    ///
    /// # Errors
    ///
    /// See [`Pipelined`]; also if there are more rows.
    ///
    /// # Panics
    ///
    /// As [`query`](Self::query).
    pub async fn query_opt(
        &self,
        query: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        self.run(query, async |connection| connection.query_opt(query, values).await).await
    }

    /// Runs a statement, and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// See [`Pipelined`].
    ///
    /// # Panics
    ///
    /// As [`query`](Self::query).
    pub async fn execute(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.run(statement, async |connection| connection.execute(statement, values).await).await
    }

    async fn run<T>(
        &self,
        text: &str,
        query: impl AsyncFn(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        check(text)?;
        let _permit = self.permits.acquire().await?;
        let connection = self.connection().await.map_err(Error::before)?;
        match query(&connection).await {
            // The connection has ended before the query was sent.
            Err(Error::Lost { fate: Fate::Undone, .. }) => {}
            result => return result,
        }
        let connection = self.connection().await.map_err(Error::before)?;
        query(&connection).await
    }

    /// The connection, or another one if that has ended.
    async fn connection(&self) -> Result<Rc<Lease>, Error> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let _turn = self.connecting.lock().await?;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        // A pool without a connection reports failed attempts, and does not wait for the next one.
        drop(self.connection.take());
        let lease = Rc::new(self.pool.get().await.map_err(connecting_failed)?);
        self.connection.replace(Some(lease.clone()));
        Ok(lease)
    }

    fn current(&self) -> Option<Rc<Lease>> {
        self.connection.borrow().as_ref().filter(|it| !it.is_to_be_replaced()).cloned()
    }
}

fn connecting_failed(error: GetError<Error>) -> Error {
    match error {
        GetError::Interrupted(why) => why.into(),
        GetError::Create(failure) => match failure.error {
            Some(error) => Error::clone(&error),
            // The creation has panicked.
            None => Error::Connect(ConnectError { attempts: Vec::new() }),
        },
        _ => Error::lost(None),
    }
}

/// First words of statements that a shared session must not run. The server takes one statement at
/// a time, so the first word tells which one it is.
const REFUSED: [&str; 18] = [
    "ABORT",
    "BEGIN",
    "COMMIT",
    "COPY",
    "DEALLOCATE",
    "DECLARE",
    "DISCARD",
    "END",
    "LISTEN",
    "LOAD",
    "PREPARE",
    "RELEASE",
    "RESET",
    "ROLLBACK",
    "SAVEPOINT",
    "SET",
    "START",
    "UNLISTEN",
];

/// Refuses a statement that would leave something in the session.
fn check(text: &str) -> Result<(), Error> {
    let word = first_word(text);
    match REFUSED.iter().any(|refused| word.eq_ignore_ascii_case(refused)) {
        true => Err(Error::Config(format!(
            "{} needs a session of its own: use a connection or a pool",
            word.to_ascii_uppercase()
        ))),
        false => Ok(()),
    }
}

/// The first word of a statement, behind space, comments and empty statements.
fn first_word(mut text: &str) -> &str {
    loop {
        text =
            text.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, ';' | '\x0b'));
        if let Some(comment) = text.strip_prefix("--") {
            text = comment.find(['\n', '\r']).map_or("", |end| &comment[end..]);
        } else if let Some(comment) = text.strip_prefix("/*") {
            text = after_comment(comment);
        } else {
            let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
            return &text[..end];
        }
    }
}

/// What follows a comment, which may have others in it.
fn after_comment(mut text: &str) -> &str {
    let mut depth = 1;
    while depth > 0 {
        let Some(at) = text.find(['*', '/']) else { return "" };
        text = &text[at..];
        let (length, change) = match text.as_bytes() {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        text = &text[length..];
        depth += change;
    }
    text
}

impl fmt::Debug for Pipelined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipelined")
            .field("queries", &self.permits)
            .field("is_connected", &self.current().is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_a_session_are_refused() {
        for text in [
            "SET work_mem = '5MB'",
            "  begin",
            "; ;COMMIT",
            "-- a comment\n/* and /* another */ * / */\tListen x",
            "/**/PREPARE x AS SELECT 1",
            "ROLLBACK;",
            "--\rCOPY t FROM STDIN",
        ] {
            assert!(matches!(check(text), Err(Error::Config(_))), "{text}");
        }
    }

    #[test]
    fn queries_are_not_refused() {
        for text in [
            "SELECT 1",
            "(SELECT 1) UNION ALL SELECT 2",
            "WITH it AS (SELECT 1) SELECT * FROM it",
            "settle",
            "-- SET\nINSERT INTO t VALUES (1)",
            "/* BEGIN",
            "--",
            "",
        ] {
            assert!(check(text).is_ok(), "{text}");
        }
    }
}
